"""Verdicts on claims: intervals by hand, and every way a claim can end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from espalier.core.errors import ConfigError
from espalier.study.claims import Claim, Interval, difference, interval, judge, read_claims

NAN = math.nan


class Made:
    """Figures of two rows in two columns: values per seed, and what was published."""

    def __init__(
        self, ours: Mapping[tuple[str, str], list[float]], published: float = NAN, *, lower: bool = False
    ) -> None:
        self.table, self.paper, self.small = ours, published, lower
        self.done: dict[str, dict[str, int]] = {}
        self.levels: dict[str, float] = {}
        self.least: dict[tuple[str, str], dict[int, float]] = {}
        self.columns = ["a", "b"]
        self.rows = list(dict.fromkeys(row for row, _ in ours))

    def by_seed(self, row: str, column: str, measure: str) -> Mapping[int, float]:
        return dict(enumerate(self.table.get((row, column), [])))

    def at_least(self, row: str, column: str, measure: str) -> Mapping[int, float]:
        return self.least.get((row, column), {})

    def mean(self, row: str, column: str, measure: str) -> float:
        values = self.table.get((row, column), [])
        return sum(values) / len(values) if values else NAN

    def published(self, row: str, column: str, measure: str) -> float:
        return self.levels.get(column, self.paper)

    def lower(self, measure: str) -> bool:
        return self.small

    def event_counts(self, row: str, column: str) -> Mapping[str, int]:
        return self.done.get(column, {})


CLAIM = Claim("leads", "It leads.", "Table 1", "x/table1", "accuracy", "Ours", near=-1)


def made(first: list[float], second: list[float], published: float = NAN, *, lower: bool = False) -> Made:
    """Return figures in which Base has 50 under every seed and Ours is ahead by so much in columns a and b."""
    base = [50.0] * max(len(first), len(second))
    return Made(
        {
            ("Ours", "a"): [50 + d for d in first],
            ("Base", "a"): base[: len(first)],
            ("Ours", "b"): [50 + d for d in second],
            ("Base", "b"): base[: len(second)],
        },
        published,
        lower=lower,
    )


def test_an_interval_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, standard deviation 1; t(0.975, 2) = 4.3027; half = 4.3027 / sqrt(3) = 2.4841
    found = interval([1, 2, 3])
    assert (found.mean, found.seeds) == (2, 3)
    assert math.isclose(found.low, 2 - 2.48414, abs_tol=1e-4) and math.isclose(found.high, 2 + 2.48414, abs_tol=1e-4)
    assert found.side() == 0
    assert interval([5.0]) == Interval(5.0, -math.inf, math.inf, 1)


def test_a_p_value_by_hand() -> None:
    # With two degrees of freedom p = 1 - t / sqrt(t² + 2). Differences 1, 2, 3: t = 2 sqrt(3), p = 1 - sqrt(12 / 14)
    assert math.isclose(interval([1, 2, 3]).level(), 1 - math.sqrt(12 / 14), abs_tol=1e-9)
    assert math.isclose(interval([-1, -2, -3]).level(), 1 - math.sqrt(12 / 14), abs_tol=1e-9)
    # 2 away from a distance of 4 as well
    assert math.isclose(interval([1, 2, 3]).level(4.0), 1 - math.sqrt(12 / 14), abs_tol=1e-9)
    assert [interval(d).level() for d in ([5.0], [0.0, 0.0], [2.0, 2.0])] == [1.0, 1.0, 0.0]


def test_many_differences_need_smaller_p_values() -> None:
    # 2.8 with a deviation of 1: t = 2.8 sqrt(3), p = 1 - sqrt(23.52 / 25.52) = 0.04; 2 with one of 0.1: p = 0.0008
    weak, strong = [1.8, 2.8, 3.8], [2.0, 2.1, 1.9]
    both = judge(CLAIM, made(weak, weak))
    assert (both.verdict, both.sides(), both.firm()) == ("holds", (2, 0, 0), (0, 0)), "0.04 is more than 5 % by two"
    assert judge(CLAIM, made(weak, strong)).firm() == (2, 0), "0.0008, then 0.04 alone"
    assert judge(CLAIM, made(strong, [-d for d in strong])).firm() == (1, 1)
    assert judge(CLAIM, made([30.0], [30.0])).firm() == (0, 0)


def test_seeds_are_counted_from_the_least() -> None:
    assert "over 3 to 4 seeds" in judge(CLAIM, made([2.0, NAN, 2.1, 1.9], [2.0, 2.1, 1.9, 2.0])).why


def test_only_settings_of_both_rows_are_missed() -> None:
    clear = [2.0, 2.1, 1.9]
    # Ours is planned in column c, too, but nobody to compare it with
    planned = {("Ours", "a"), ("Base", "a"), ("Ours", "b"), ("Base", "b"), ("Ours", "c")}
    assert judge(CLAIM, made(clear, clear), planned=planned).verdict == "holds"
    assert "2 of 3 settings" in judge(CLAIM, made(clear, clear), planned=planned | {("Base", "c")}).why


def test_every_verdict() -> None:
    clear, none, back = [2.0, 2.1, 1.9], [1.0, -1.0, 0.2], [-2.0, -2.1, -1.9]
    assert judge(CLAIM, made(clear, clear)).verdict == "holds"
    assert judge(CLAIM, made(clear, none)).verdict == "holds in part"
    assert judge(CLAIM, made(clear, back)).verdict == "holds in part"
    assert judge(CLAIM, made(none, back)).verdict == "opposed"
    base = [50.0] * 3  # of three differences one is as claimed, two the other way round
    three = {("Ours", c): [50 + d for d in seeds] for c, seeds in {"a": clear, "b": back, "c": back}.items()}
    more = Made({**three, **{("Base", c): base for c in "abc"}})
    more.columns = ["a", "b", "c"]
    assert judge(CLAIM, more).verdict == "opposed" and judge(CLAIM, more).sides() == (1, 2, 0)
    assert judge(CLAIM, made(none, none)).verdict == "cannot be told"
    assert judge(CLAIM, made([], [])).verdict == "not tested"
    # Where small is good the same figures say the reverse.
    assert judge(CLAIM, made(clear, clear, lower=True)).verdict == "opposed"


def test_one_seed_gives_no_verdict() -> None:
    found = judge(CLAIM, made([30.0], [30.0]))
    assert found.verdict == "cannot be told" and "One seed" in found.why


def test_seeds_without_a_figure_are_left_out_of_a_pair() -> None:
    found = judge(CLAIM, made([2.0, NAN, 2.1, 1.9], [2.0, 2.1, 1.9, 2.0]))
    assert found.differences["Ours", "Base", "a"].seeds == 3


def test_a_regime_far_from_the_papers_is_not_a_test() -> None:
    claim = Claim("leads", "It leads.", "Table 1", "x/table1", "accuracy", "Ours", near=10.0)
    near, far = made([2.0, 2.1, 1.9], [2.0, 2.1, 1.9], 55.0), made([2.0, 2.1, 1.9], [2.0, 2.1, 1.9], 80.0)
    assert (judge(claim, near).verdict, judge(claim, near).distance) == ("holds", 5.0)
    found = judge(claim, far)
    assert found.verdict == "not tested" and "30 from" in found.why
    assert found.differences, "the differences are shown all the same"


def test_a_setting_far_from_the_papers_level_is_left_out() -> None:
    # Base has 50 everywhere; the paper has 55 in a and 80 in b: b alone is out of bounds (and the mean, 17.5, too).
    claim = Claim("leads", "It leads.", "Table 1", "x/table1", "accuracy", "Ours", near=10.0)
    figures = made([2.0, 2.1, 1.9], [-2.0, -2.1, -1.9])
    figures.levels = {"a": 55.0, "b": 80.0}
    found = judge(claim, figures)
    assert (found.verdict, found.distance) == ("holds in part", 5.0)
    assert [column for *_, column in found.differences] == ["a"]
    assert found.why.endswith("Left out: b (the baselines are too far from the published).")
    assert "Run in" not in found.why, "it was run"


def test_a_setting_that_stands_in_for_the_papers_is_no_test() -> None:
    claim = Claim("leads", "It leads.", "Table 1", "x/table1", "accuracy", "Ours", columns=("a", "b"))
    clear = [2.0, 2.1, 1.9]
    figures = made(clear, clear)
    figures.levels = {"a": 51.0}  # of b the paper prints nothing
    found = judge(claim, figures)
    assert found.verdict == "holds in part" and "Left out: b (the paper prints no figure of it)." in found.why
    assert judge(claim, made(clear, clear)).verdict == "holds", "a claim of which nothing is printed at all"


def test_a_part_that_never_acted_was_not_tested() -> None:
    claim = Claim("part", "The part helps.", "Table 2", "x/table1", "accuracy", "Ours", near=-1, acts=("late",))
    figures = made([2.0, 2.1, 1.9], [2.0, 2.1, 1.9])
    figures.done = {"a": {"late": 3}, "b": {"late": 1}}
    assert judge(claim, figures).verdict == "holds"
    figures.done = {"a": {"late": 3}, "b": {"late": 0}}
    found = judge(claim, figures)
    assert found.verdict == "holds in part" and [column for *_, column in found.differences] == ["a"]
    assert found.why.endswith("Left out: b (the runs of Ours have none of: late).")
    figures.done = {"a": {"late": 0}}
    found = judge(claim, figures)
    assert found.verdict == "not tested" and "none of: late" in found.why


def test_a_claim_about_rows_that_were_not_run_says_so() -> None:
    claim = Claim("leads", "It leads.", "Table 1", "x/table1", "accuracy", "Ours", than=("Other",), near=-1)
    found = judge(claim, made([2.0, 2.0], [2.0, 2.0]))
    assert found.verdict == "not tested" and "Other" in found.why


def test_a_claim_that_was_run_in_some_of_its_settings_holds_in_part() -> None:
    columns = ("a", "b", "never run")
    claim = Claim("leads", "It leads.", "Table 1", "x/t", "accuracy", "Ours", columns=columns, near=-1)
    figures = made([2.0, 2.1, 1.9], [2.0, 2.1, 1.9])
    found = judge(claim, figures)
    assert found.verdict == "holds in part" and found.why.endswith("Run in 2 of 3 settings.")
    # settings and rows that the paper has and the claim does not name
    plan = [(row, column) for row in ("Ours", "Base", "Other") for column in columns]
    found = judge(CLAIM, figures, planned=plan)
    assert found.verdict == "holds in part" and found.why.endswith("Run in 2 of 3 settings. Not run: Other.")
    assert judge(CLAIM, figures, planned=[p for p in plan if p[0] != "Other" and p[1] in "ab"]).verdict == "holds"


def test_never_the_worst() -> None:
    # Ours is between the two others under every seed: 1 above the worst in a, 2 in b.
    table = {(row, column): [50 + step * k + 0.1 * s for s in range(3)]
             for row, k in (("Low", 0), ("Ours", 1), ("High", 2)) for column, step in (("a", 1), ("b", 2))}  # fmt: skip
    claim = Claim("never worst", "It is never the worst.", "Table 1", "x/t", "acc", "Ours", against="worst", near=-1)
    found = judge(claim, Made(table))
    assert found.verdict == "holds"
    assert [round(d.mean, 9) for d in found.differences.values()] == [1, 2]
    assert judge(claim, Made({k: v for k, v in table.items() if k[0] != "Low"})).verdict == "opposed"


def test_rows_that_are_said_to_be_alike() -> None:
    claim = Claim("alike", "No difference.", "Figure 4", "x/t", "acc", "Ours", within=3.0, near=-1)
    assert judge(claim, made([1.0, 1.1, 0.9], [-1.0, -1.1, -0.9])).verdict == "holds"
    assert judge(claim, made([5.0, 5.1, 4.9], [-5.0, -5.1, -4.9])).verdict == "opposed"
    assert judge(claim, made([-9.0, 9.0, 0.0], [-9.0, 9.0, 0.0])).verdict == "cannot be told"


def test_ablations_are_pairs_of_rows() -> None:
    claim = Claim("part", "The part helps.", "Table 6", "x/t", "acc", pairs=(("#2", "#1"), ("#4", "#3")), near=-1)
    rows = {f"#{n}": [n + 0.01 * s for s in range(3)] for n in (1, 2, 4, 3)}
    found = judge(claim, Made({(row, column): values for row, values in rows.items() for column in "ab"}))
    assert found.verdict == "holds" and len(found.differences) == 4


def test_a_target_that_is_never_reached_counts_as_the_length_of_the_run() -> None:
    # Times: ours 10, 11, 12; the other reaches it once, after 30, and twice not within 100: leads of 20, 89 and 88.
    figures = Made({("Ours", "a"): [10.0, 11.0, 12.0], ("Base", "a"): [30.0, NAN, NAN]}, lower=True)
    figures.least["Base", "a"] = {1: 100.0, 2: 100.0}
    found = difference(figures, "time", "Ours", "Base", "a")
    assert (found.seeds, found.mean) == (3, pytest.approx((20 + 89 + 88) / 3))
    # a run that was shorter than our time says nothing
    figures.least["Base", "a"] = {1: 5.0, 2: 5.0}
    assert difference(figures, "time", "Ours", "Base", "a").seeds == 1


def test_claims_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "claims.toml"
    head = '[[claim]]\nname = "leads"\ntext = "It leads."\nwhere = "Table 1"\nstudy = "x/t"\nmeasure = "accuracy"\n'
    file.write_text(f'{head}better = "Ours"\nthan = ["Base"]\n')
    (claim,) = read_claims(file)
    assert claim.than == ("Base",) and claim.near == 10.0
    file.write_text(f'{head}better = "Ours"\nbettter = 1\n')
    with pytest.raises(ConfigError, match="unknown key 'bettter'"):
        read_claims(file)

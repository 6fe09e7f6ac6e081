from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from espalier.report.groups import compare, describe, flat
from espalier.report.verdict import verdicts
from espalier.world import World
from tests.report.conftest import reading_of


def test_seeds_of_a_method_are_one_group(tmp_path: Path) -> None:
    readings = [reading_of(tmp_path / f"{x}{s}", label=x, seed=s) for x in ("A", "B") for s in (1, 0)]
    found = compare(readings)
    assert [(g.label, g.seeds, g.setting) for g in found.groups] == [("A", (0, 1), 0), ("B", (0, 1), 0)]
    assert found.groups[0].face.seed == 0


def test_different_settings_are_not_compared(tmp_path: Path) -> None:
    one, other = reading_of(tmp_path / "a", label="A", skill=0.9), reading_of(tmp_path / "b", label="A", devices=30)
    better = reading_of(tmp_path / "c", label="B", skill=0.5)
    found = compare([one, other, better])
    assert [g.label for g in found.groups] == ["A · devices 20", "A · devices 30", "B · devices 20"]
    # A and B meet in the first setting; the second has one method
    ranks = [[(p.rank, p.group.label) for p in v.places] for v in verdicts(found)]
    assert ranks == [[(1, "A · devices 20"), (2, "B · devices 20")], [(1, "A · devices 30")]]


def test_what_the_user_chose_makes_methods_of_its_own(tmp_path: Path) -> None:
    """Runs of one method under other options, or trained in another way, are ranked side by side."""
    one, other, third = (reading_of(tmp_path / x) for x in "abc")
    other.experiment["training"] = {**other.experiment["training"], "lr": 0.5}
    third.experiment["methods"] = [{**third.experiment["methods"][0], "kappa2": 1}]
    found = compare([one, other, third])
    assert len(found.settings) == 1
    assert [g.label for g in found.groups] == [
        "HierFAVG (kappa2 3, lr 0.05)", "HierFAVG (kappa2 3, lr 0.5)", "HierFAVG (kappa2 1, lr 0.05)",
    ]  # fmt: skip


def test_the_plan_decides_colours_whoever_has_begun(tmp_path: Path) -> None:
    """A method has its place from its first evaluation on, with filters too; without a plan the order decides."""
    planned = ("Wide", "Narrow", "Alone")
    wide, narrow, alone = (reading_of(tmp_path / x, label=x, planned=planned) for x in planned)
    for there in ([narrow], [narrow, wide], [alone, narrow, wide], [alone, wide]):
        places = {g.label: g.number for g in compare(there).groups}
        assert places == {r.label: planned.index(r.label) for r in there}
    assert [g.label for g in compare([alone, narrow, wide]).groups] == list(planned)
    other = reading_of(tmp_path / "b", label="Other")
    again = reading_of(tmp_path / "c", label="Narrow", planned=planned, lr=0.5)
    numbers = {g.label: g.number for g in compare([narrow, again, other]).groups}
    assert numbers == {"Narrow (lr 0.05)": 1, "Narrow (lr 0.5)": 3, "Other": 4}
    renamed = reading_of(tmp_path / "d", label="Narrow", planned=planned)
    renamed.experiment["methods"] = [{**renamed.experiment["methods"][0], "kappa2": 1}]
    numbers = {g.label: g.number for g in compare([narrow, renamed, other]).groups}
    assert numbers == {"Narrow (kappa2 3)": 1, "Narrow (kappa2 1)": 3, "Other": 4}


def test_settings_are_named_by_their_experiments_where_these_differ(tmp_path: Path) -> None:
    one = reading_of(tmp_path / "a", name="small world")
    other = reading_of(tmp_path / "b", name="large world", devices=30)
    assert [g.label for g in compare([one, other]).groups] == ["HierFAVG · small world", "HierFAVG · large world"]


def test_limits_are_no_setting(tmp_path: Path) -> None:
    readings = [reading_of(tmp_path / "a", seed=0, stop=10), reading_of(tmp_path / "b", seed=1, stop=50)]
    assert len(compare(readings).settings) == 1


def test_of_two_runs_of_one_seed_the_newer_is_shown(tmp_path: Path) -> None:
    old, new = reading_of(tmp_path / "a"), reading_of(tmp_path / "b")
    os.utime(tmp_path / "a" / "run.sqlite", (1, 1))
    for order in ([old, new], [new, old]):
        found = compare(order)
        assert [r.directory for r in found.readings] == [tmp_path / "b"]
        assert "is there twice" in found.notes[0]


def test_the_world_in_one_line(tmp_path: Path) -> None:
    experiment = reading_of(tmp_path / "a").experiment
    assert describe(experiment) == (
        "20 devices at 4 edges learn digits (mlp), partition two_level (edge_fraction 0.5); "
        "world: compute truncated_normal, links uniform"
    )
    assert describe({}).endswith("world: ideal")
    assert describe({"world": World().to_plain()}).endswith("world: ideal")
    world = World.build({"compute": {"kind": "rate", "low": 1, "high": 8}, "mobility": {"kind": "markov"}})
    assert describe({"world": world.to_plain()}).endswith("world: compute rate, links free, mobility markov")


def test_flat_tables() -> None:
    assert flat({"a": {"b": {"c": 1}}, "d": 2}) == {"a.b.c": 1, "d": 2}


def test_progress(tmp_path: Path) -> None:
    reading = reading_of(tmp_path / "a", state="running", stop=40)
    assert reading.progress == 0.25 and reading.rounds == 10
    assert replace(reading, state="finished").progress == 1.0

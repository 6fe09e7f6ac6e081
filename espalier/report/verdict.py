"""The verdict: which method leads at an equal budget, by how much, how sure that is, what it costs; and its picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from textwrap import wrap
from typing import Any

import numpy as np

from espalier.core.errors import ConfigError, RunError, nearest
from espalier.record.measures import ON_DEMAND, human_bytes, lower_is_better, other_scores, spoken
from espalier.report.budget import BUDGETS, Budget, budgets, called, reached
from espalier.report.figures import MUTED, Figure, axis, colour, figure, numbers, symbol
from espalier.report.groups import CommonSetting, Group, Groups, describe
from espalier.report.reading import Reading
from espalier.report.standings import FEWEST_PAIRS, Column, Kind, Place, Values, marked, ranked

#: a score that has risen by no more than this, while the loss did not fall, has risen by chance
UNLEARNT_GAIN = 0.1
#: an accuracy that is no more than this above a constant answer's is no better than it
CONSTANT_GAIN = 0.01
#: what methods can be ranked by beside the task's own score
RANKED_SCOPES = ("device", "device_prior", "global", "edge", "device_worst")
#: … and by another score that was measured
OTHER_SCOPES = ("device", "global", "edge")
#: methods that a sentence names, and that the verdict's picture shows
MOST_NAMED, MOST_DRAWN = 12, 24
#: fills a column: a run → its figure
Reader = Callable[[Reading], float]


@dataclass(frozen=True)
class Verdict:
    """The methods of one setting, ranked; ``columns`` begins with the measure at the equal budget.

    The first ``main`` columns are those of the ranking, the others are more of the same runs. ``warnings`` say what
    keeps the comparison from being whole, ``lines`` how it was made.
    """

    setting: CommonSetting
    measure: str
    budget: Budget
    columns: tuple[Column, ...]
    main: int
    places: tuple[Place, ...]
    headline: str
    detail: str
    warnings: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """What leads, by how much, how sure that is, what it costs; and its picture."""
        return f"{self.headline} {self.detail}".strip()


def verdicts(groups: Groups, measure: str | None = None, budget: str | None = None) -> list[Verdict]:
    """Judge the methods of every setting by a measure (default: the task's score) at an equal budget."""
    found = []
    for number, setting in enumerate(groups.settings):
        here = [g for g in groups.groups if g.setting == number and any(len(r.frame) for r in g.readings)]
        if here:
            found.append(_judge(setting, here, measure, budget))
    if found and groups.notes:
        found[-1] = replace(found[-1], warnings=(*found[-1].warnings, *groups.notes))
    return found


def judged(groups: Groups, measure: str | None, budget: str | None) -> list[Verdict]:
    """Judge as :func:`verdicts` does; a measure or a budget that is not there is refused."""
    known = measures(groups.groups)
    if not known:
        raise RunError("No run has been evaluated yet: there is nothing to compare.")
    if measure is not None and measure not in known:
        name = measure.split("_")[0]
        missing = not any(m.startswith(f"{name}_") for m in known)
        more = f' task.metrics = ["{name}"] measures it.' if missing and name in ON_DEMAND else nearest(measure, known)
        raise ConfigError(f"measure = {measure!r}: the runs have {', '.join(known)}.{more}")
    if budget is not None and budget not in BUDGETS:
        raise ConfigError(f"budget = {budget!r}: must be one of {', '.join(BUDGETS)}.{nearest(budget, BUDGETS)}")
    return verdicts(groups, measure, budget)


def measures(groups: Sequence[Group]) -> list[str]:
    """Return what groups can be ranked by, the task's own score first."""
    shown = [r for g in groups for r in g.readings if len(r.frame)]
    columns = {name for r in shown for name, values in r.columns.items() if np.isfinite(values).any()}
    score = shown[0].score if shown else "acc"
    wanted = [shown[0].experiment.get("task", {}).get("score", f"{score}_device")] if shown else []
    names = [*wanted, *(f"{score}_{scope}" for scope in RANKED_SCOPES)]
    names += [f"{other}_{scope}" for other in other_scores(sorted(columns)) for scope in OTHER_SCOPES]
    return [n for n in dict.fromkeys(names) if n in columns]


def _judge(setting: CommonSetting, groups: list[Group], measure: str | None, kind: str | None) -> Verdict:
    readings = [r for g in groups for r in g.readings]
    known = budgets(readings)
    held = known.get(kind or "") or next(iter(known.values()), Budget("round", float("inf")))
    names = measures(groups)
    name = measure if measure is not None and measure in names else next(iter(names), "acc_device")
    main, more = _ranking(name, held), _more(groups, name, held)
    filled = [(c, [Values(_values(g, reader)) for g in groups]) for c, reader in (*main, *more)]
    shown = [(c, marked(cells, c)) for c, cells in filled if c.key == name or any(cell.known for cell in cells)]
    columns = tuple(c for c, _ in shown)
    places = ranked(groups, [tuple(cells[i] for _, cells in shown) for i in range(len(groups))], columns[0])
    first = sum(c in columns for c, _ in main)
    words = _words(places, columns, held)
    unheld = _unheld(groups, kind, held) if kind is not None and kind != held.kind else ()
    notes = (*unheld, *_warnings(places, name)), tuple(_lines(setting, places, held))
    return Verdict(setting, name, held, columns, first, tuple(places), *words, *notes)


def _unheld(groups: Sequence[Group], kind: str, held: Budget) -> tuple[str, ...]:
    """Say why what was asked for is not held equal."""
    without = [
        g.label for g in groups if any(len(r.frame) and reached(r, kind) != reached(r, kind) for r in g.readings)
    ]
    why = f"{_listed(without)} used none" if without else "it was not used up"
    what, instead = called(kind, held.real), called(held.kind, held.real)
    return (f"The {what} cannot be held equal, for {why}; {instead} is.",)


def _values(group: Group, reader: Reader) -> dict[int, float]:
    return {r.seed: reader(r) for r in group.readings if len(r.frame)}


def _ranking(name: str, held: Budget) -> list[tuple[Column, Reader]]:
    """Return the columns of the ranking: the measure at the budget and at the end, and what the whole run used."""
    title = f"{spoken(name)} at equal {called(held.kind, held.real)}"
    found: list[tuple[Column, Reader]] = [
        (Column(name, title, "score", lower_is_better(name)), lambda r: held.value(r, name)),
        (Column("end", "at its own end", "score"), lambda r: reached(r, name)),
    ]
    kinds: dict[str, Kind] = {"round": "count", "steps": "count", "bytes": "bytes", "time": "seconds"}
    for cost, kind in kinds.items():
        found.append((Column(cost, called(cost, held.real), kind), lambda r, n=cost: reached(r, n)))  # type: ignore[misc]
    return found


def _more(groups: Sequence[Group], name: str, held: Budget) -> list[tuple[Column, Reader]]:
    """Return the other columns: the score's other scopes at the budget, time to the target, bytes per tier."""
    shown = [r for g in groups for r in g.readings if len(r.frame)]
    found: list[tuple[Column, Reader]] = []
    for other in (f"{shown[0].score}_{scope}" for scope in RANKED_SCOPES):
        if other != name:
            column = Column(other, spoken(other), "score", lower_is_better(other))
            found.append((column, lambda r, n=other: held.value(r, n)))  # type: ignore[misc]
    task = shown[0].experiment.get("task", {})
    if task.get("target") is not None:
        title = f"time to {spoken(task.get('score', 'acc_device'))} {task['target']:g}"
        found.append((Column("time_to_target", title, "seconds", True), time_to_target))
    for tier in sorted({c for r in shown for c in r.frame.columns if c.startswith("bytes_")}):
        column = Column(tier, f"bytes {tier.removeprefix('bytes_')}", "bytes")
        found.append((column, lambda r, n=tier: reached(r, n) if n in r.frame else 0.0))  # type: ignore[misc]
    return found


def time_to_target(reading: Reading) -> float:
    """Return the virtual seconds until a run's score first reached its task's target (NaN: not yet)."""
    task = reading.experiment.get("task", {})
    target, score = task.get("target"), task.get("score", "acc_device")
    if target is None or score not in reading.columns:
        return float("nan")
    values = reading.columns[score]
    there = np.flatnonzero(values <= target if lower_is_better(score) else values >= target)
    return float(reading.columns["time"][there[0]]) if len(there) else float("nan")


# -- in words ---------------------------------------------------------------------------------------------------


def _words(places: Sequence[Place], columns: Sequence[Column], held: Budget) -> tuple[str, str]:
    """Say what leads, and when; and by how much, how sure that is, what it costs, and whether it leads at its end."""
    known = [p for p in places if p.rank is not None]
    column, what = columns[0], spoken(columns[0].key)
    if not known:
        return f"No run has a figure for {what} yet.", ""
    lead, value = known[0], known[0].cells[0].text(column)
    if len(known) == 1:
        return f"{lead.group.label} reaches {what} {value} after {held.text}.", _cost([lead], held)
    level = [p.group.label for p in known if p.rank == 1]
    when = f"after {held.text}{_chosen(known, held)}"
    after = _later(known, columns)
    if len(level) > 1:
        return f"{_listed(level)} are level: {what} {value} {when}.", _cost(known[:2], held) + after
    prior = ", whose devices answer with their own label shares as prior,"
    who = lead.group.label + prior * (lead.group.label in _with_prior(places, column.key))
    head = f"{who} leads with {what} {value} {when}."
    return head, f"{_margin(known[1], len(known) > 2)} {_others(known[1:])}{_cost(known[:2], held)}{after}"


def _chosen(places: Sequence[Place], held: Budget) -> str:
    """Say why the figures are of that moment."""
    if held.amount == float("inf"):
        return ""
    early = any(place.ended for place in places)
    of_seed = " of a seed" if held.by_seed else ""
    return f", which every run{of_seed} reached{' that did not end early' if early else ''}"


def _later(places: Sequence[Place], columns: Sequence[Column]) -> str:
    """Say who has the best figure at its own end, if that is not who leads."""
    end = next((i for i, c in enumerate(columns) if c.key == "end"), None)
    if end is None:
        return ""
    sign = 1.0 if columns[0].lower else -1.0
    best = min((p for p in places if p.cells[end].known), key=lambda p: sign * p.cells[end].mean, default=places[0])
    if best.rank == 1 or len({columns[end].text(p.cells[end].mean) for p in (places[0], best)}) == 1:
        return ""  # it is the same one, or the figures are alike as they are written
    (lead, had), (label, has) = ((p.group.label, p.cells[end].text(columns[end])) for p in (places[0], best))
    return f" At its own end {label} has {has}, {lead} {had}."


def _margin(second: Place, several: bool) -> str:
    """Say how far the second is behind, and how sure that is."""
    gap, label = second.gap, second.group.label
    if gap is None:
        return f"{label} comes next, but shares no seed with it: nothing can be told of the difference."
    ahead = f"It is {gap.mean:.3f} ahead of {label}"
    if gap.p is None or gap.low is None or gap.high is None:
        seeds = "one seed" if gap.pairs == 1 else f"{gap.pairs} seeds"
        need = f"{FEWEST_PAIRS} or more are needed"
        return f"{ahead}; whether that is more than chance cannot be told with {seeds} ({need})."
    sure = f"95 % interval {_signed(gap.low)} to {_signed(gap.high)}, {gap.pairs} paired seeds"
    together = ", by Holm's rule" if several else ""
    return f"{ahead} ({sure}{together}){', which may be chance' if second.tied else ''}."


def _signed(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def _others(places: Sequence[Place]) -> str:
    """Say from whom else the leader can be told; the first place is the second's, of whom the margin speaks."""
    tied = [p.group.label for p in places if p.tied]
    apart = [p.group.label for p in places if p.p is not None and not p.tied]
    if len(places) < 2 or not (tied or apart):
        return ""
    if not apart:
        which = "either of the" if len(tied) == 2 else f"any of the {len(tied)}"
        return f"These seeds cannot tell it from {which} others. "
    if not tied:
        return f"It is ahead of {'both' if len(apart) == 2 else f'all {len(apart)}'} others by more than chance. "
    rest = [p.group.label for p in places[1:] if p.tied]
    return f"It cannot be told from {_listed(rest)}{' either' if places[0].tied else ''}. " if rest else ""


def _cost(places: Sequence[Place], held: Budget) -> str:
    """Say what the leader had used within the budget, beside the next."""
    said = []
    for place in places:
        parts = []
        for kind, words in (("round", "round"), ("steps", "local step"), ("bytes", "")):
            used = Values(_values(place.group, lambda r, n=kind: held.value(r, n))).mean  # type: ignore[misc]
            if kind != held.kind and used == used:
                several = "" if f"{used:,.0f}" == "1" else "s"
                parts.append(human_bytes(used) if kind == "bytes" else f"{used:,.0f} {words}{several}")
        said.append(_listed(parts) if parts else "")
    if not said[0]:
        return ""
    rest = f"; {places[1].group.label} {said[1]}" if len(said) > 1 and said[1] else ""
    who = places[0].group.label if len(places) > 1 and places[1].rank == 1 else "it"
    return f"By then {who} had used {said[0]}{rest}."


def _listed(names: Sequence[str]) -> str:
    told = names if len(names) <= MOST_NAMED else [*names[: MOST_NAMED - 1], f"{len(names) - MOST_NAMED + 1} more"]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"


def _lines(setting: CommonSetting, places: Sequence[Place], held: Budget) -> list[str]:
    """Return what must be known to read the table."""
    groups = [p.group for p in places]
    seeds = sorted({s for g in groups for s in g.seeds})
    some = ", ".join(map(str, seeds)) if len(seeds) <= 10 else f"{seeds[0]} … {seeds[-1]}"
    lines = [f"{len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'} ({some})."]
    if len({g.seeds for g in groups}) > 1:
        counts = "; ".join(f"{g.label} under {len(g.seeds)}" for g in groups)
        lines[0] += f" Not every method ran under all of them: {counts}."
    of_seed = " of a seed" if held.by_seed else ""
    lines.append(
        f"Equal budget: {held.text}, the least that any run{of_seed} used before it ended; each run counts with its "
        "last evaluation within it. Rounds, local steps, bytes and time are what the runs had used at their own end."
    )
    if len(seeds) > 1:
        lines.append(
            "Mean ± standard deviation over seeds. Behind the leader: mean difference over the seeds that both ran, "
            f"with a 95 % interval by Student's t where there are {FEWEST_PAIRS} or more. With several methods one may "
            "lead by luck, so the intervals are widened by Holm's rule: that any lead is called more than chance by "
            "mistake has a chance of 5 % at most. All seeds share the test rows: how other ones would turn out is not "
            "in the intervals. ≈: the interval has zero in it, so it cannot be told from the leader. °: too few seeds "
            "to tell."
        )
    where = "A real fleet" if held.real else describe(setting.experiment)
    lines.append(f"{setting.name}: {where}." if setting.name else f"{where}.")
    return [*lines, *(f"{g.label} is a reconstruction: {g.reconstruction}" for g in groups if g.reconstruction)]


def _warnings(places: Sequence[Place], name: str) -> tuple[str, ...]:
    """Return what keeps the comparison from being whole: runs that go on, and such as ended early."""
    going = [r for p in places for r in p.group.readings if r.state != "finished"]
    told = "; ".join(f"{r.title} ({r.state}, round {r.rounds})" for r in going)
    unfinished = [f"Not finished, shown as far as they are: {told}."] if going else []
    idle = [line for place in places for line in _unlearnt(place.group)]
    ended = [line for place in places for line in place.ended]
    return (*unfinished, *ended, *idle, *_constant(places, name), *_unlike(places, name))


def _constant(places: Sequence[Place], name: str) -> list[str]:
    """Say what a model scores that always answers the commonest class, where that is most of the data."""
    found = [r.constant for p in places for r in p.group.readings if r.constant is not None]
    if name != "acc_device" or not found:
        return []
    score = np.mean([value for _, value in found])
    other = next((m for m in measures([p.group for p in places]) if m in ("f1_device", "auc_device")), None)
    way = ' (task.metrics = ["f1", "auc"])' if other is None else (
        f': runs.verdict("{other}") in Python, `espalier report --format md --measure {other}` at the command line'
    )  # fmt: skip
    return [
        f"Always answering {found[0][0]} would score {score:.3f}: read accuracies against that, or rank by what does "
        f"not reward it{way}."
    ]


def _with_prior(places: Sequence[Place], name: str) -> list[str]:
    """Return the methods whose devices answer with their label priors, where others' do not and are ranked without."""
    found = [p.group.label for p in places if p.group.face.with_prior]
    return found if len(found) < len(places) and not name.endswith(("_prior", "_global")) else []


def _unlike(places: Sequence[Place], name: str) -> list[str]:
    """Say which methods' devices answer with their label priors, and how all can be ranked with it."""
    with_prior, measure = _with_prior(places, name), f"{places[0].group.face.score}_device_prior"
    if not with_prior:
        return []
    alike = all(measure in p.group.face.columns for p in places)
    way = f"the measure {measure} ranks" if alike else "evaluate.prior = true measures"
    told = f"Devices of {_listed(with_prior)} answer with their own label shares as prior, others' do not"
    return [f"{told}; {way} all of them with it."]


def _unlearnt(group: Group) -> list[str]:
    """Say that a method's runs are no better than the model they began with, or than one constant answer."""
    found = [(r, *idle) for r in group.readings if (idle := _idle(r))]
    if not found:
        return []
    reading, what, why = found[0]
    lr, seeds = reading.experiment.get("training", {}).get("lr"), ", ".join(str(r.seed) for r, *_ in found)
    return [
        f"{group.label} {what} (seed{'s' * (len(found) > 1)} {seeds}): {why}. "
        f"Try a lower training.lr{'' if lr is None else f' (it is {lr:g})'}, or more rounds."
    ]


def _idle(reading: Reading) -> tuple[str, str] | None:
    """Return what a run has failed in, and what shows it; None if it has learnt."""
    loss, score = (reading.columns.get(name) for name in ("loss_device", f"{reading.score}_device"))
    if reading.stalled or loss is None or score is None or len(loss) < 2:
        return None
    gain = score[-1] - score[0]
    whole = reading.columns.get(f"{reading.score}_global", score)  # a label prior lowers the devices' loss at once
    if whole[-1] - whole[0] > UNLEARNT_GAIN and not lower_is_better(reading.score):
        return _constantly(reading, score[-1])
    if loss[-1] >= loss[0] and (-gain if lower_is_better(reading.score) else gain) <= UNLEARNT_GAIN:
        return "learnt nothing", f"its loss went from {loss[0]:.3g} to {loss[-1]:.3g}"
    return _constantly(reading, score[-1])


def _constantly(reading: Reading, score: float) -> tuple[str, str] | None:
    """Return whether a run is no better than one constant answer; its probabilities may be all the same."""
    if reading.constant is None or reading.score != "acc" or score > reading.constant[1] + CONSTANT_GAIN:
        return None
    return f"is no better than always answering {reading.constant[0]}", f"its accuracy is {score:.3f}"


def lead(verdict: Verdict) -> Figure:
    """Draw the ranking, best on top: left each seed's score and their mean, right the paired differences."""
    shown = [p for p in verdict.places if p.rank is not None][:MOST_DRAWN]
    names = [_name(p) for p in shown]
    data = [t for p, name in zip(shown, names, strict=True) for t in (*_scores(p, name), *_gaps(p, name))]
    compared = len(shown) > 1
    held = called(verdict.budget.kind, verdict.budget.real)
    x = axis(f"{spoken(verdict.measure)} at equal {held}", None, domain=[0, 0.56] if compared else [0, 1])
    values = {v for p in shown for v in p.cells[0].known}
    if len(values) == 1:  # of a single number, Plotly's range begins at zero and has no meaning
        x["range"] = [min(values) - 0.05, max(values) + 0.05]
    y = axis("", None, type="category", autorange="reversed", categoryorder="array", categoryarray=names)
    more: dict[str, Any] = {}
    if compared:
        more["xaxis2"] = axis("behind the leader", None, domain=[0.62, 1], rangemode="tozero", zeroline=True)
        more["xaxis2"] |= {"zerolinecolor": MUTED[0], "zerolinewidth": 1.5}
    return figure(data, x, y, height=90 + 36 * max(1, len(shown)), margin={"l": 8, "r": 16, "t": 8, "b": 48}, **more)


def _name(place: Place) -> str:
    return "<br>".join(map(escape, wrap(place.group.label, 24)))


def _scores(place: Place, name: str) -> list[dict[str, Any]]:
    cell, tone = place.cells[0], colour(place.group.number)
    seeds = [s for s, v in cell.by_seed.items() if v == v]
    shared = {"type": "scatter", "mode": "markers", "showlegend": False}
    every = {
        **shared, "x": numbers(cell.known), "y": [name] * len(seeds), "name": f"{name}, every seed",
        "text": [f"seed {s}" for s in seeds], "hovertemplate": f"{name}, %{{text}}: %{{x:.4f}}<extra></extra>",
        "marker": {"color": tone, "size": 6, "symbol": "line-ns-open", "opacity": 0.7},
    }  # fmt: skip
    mean = {
        **shared, "x": numbers([cell.mean]), "y": [name], "name": name, "meta": {"group": place.group.number},
        "hovertemplate": f"{name}: mean %{{x:.4f}}<extra></extra>",
        "marker": {"color": tone, "size": 11, "symbol": symbol(place.group.number)},
    }  # fmt: skip
    return [every, mean] if len(seeds) > 1 else [mean]


def _gaps(place: Place, name: str) -> list[dict[str, Any]]:
    gap = place.gap
    if gap is None:
        return []
    tone = colour(place.group.number)
    trace: dict[str, Any] = {
        "type": "scatter", "mode": "markers", "showlegend": False, "xaxis": "x2", "x": numbers([gap.mean]), "y": [name],
        "name": f"{name}, behind the leader", "hovertemplate": f"{name}: %{{x:.4f}} behind<extra></extra>",
        "marker": {"color": tone, "size": 9, "symbol": symbol(place.group.number)},
    }  # fmt: skip
    if gap.low is not None and gap.high is not None:
        trace["error_x"] = {
            "type": "data", "symmetric": False, "array": numbers([gap.high - gap.mean]),
            "arrayminus": numbers([gap.mean - gap.low]), "color": MUTED[0] if place.tied else tone, "thickness": 1.6,
        }  # fmt: skip
    return [trace]

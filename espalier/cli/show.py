"""Tables for the terminal and for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich.table import Table
from rich.text import Text

from espalier.record.measures import lower_is_better, main_score
from espalier.record.run import Run
from espalier.record.table import Row, human_bytes, human_seconds, rows

#: scores of a comparison: (scope, heading)
SCORES = (("global", "global"), ("edge", "edge"), ("device", "device"), ("device_worst", "worst tenth"))

#: a heading, and what stands below it for a method
Column = tuple[str, Callable[[Row], Text | str]]


def _settings(runs: Sequence[Run]) -> tuple[float | None, str]:
    task = runs[0].experiment.get("task", {})
    return task.get("target"), task.get("score", "acc_device")


def table(runs: Sequence[Run]) -> Table:
    """Return the comparison of runs: mean ± std over seeds at the end."""
    target, score = _settings(runs)
    found = rows(runs, target, score)
    main = main_score(name for row in found for name in row.values)
    experiment = runs[0].experiment
    seeds = sorted({s for r in found for s in r.seeds})
    out = Table(title=f"{experiment['name']}: {main} at the end, mean ± std over {len(seeds)} seed(s)")
    deployed = bool(runs[0].meta("deployed"))
    columns = [
        *_scores(found, main),
        ("time" if deployed else "virtual time", lambda row: human_seconds(row.mean("time"))),
        ("rounds", lambda row: f"{row.mean('round'):g}"),
        ("local steps", lambda row: f"{row.mean('steps'):,.0f}" if "steps" in row.values else "–"),
        *([] if target is None else [(f"time to {target:g}", _time_to_target)]),
        *_traffic(found),
    ]
    out.add_column("method")
    for heading, _ in columns:
        out.add_column(heading, justify="right")
    for row in found:
        out.add_row(row.label, *(cell(row) for _, cell in columns))
    out.caption = None if deployed else _world_line(experiment)
    return out


def _scores(found: Sequence[Row], main: str) -> Iterator[Column]:
    """Yield a column per scope of the main score, the best mean in bold."""
    for scope, heading in SCORES:
        name = f"{main}_{scope}"
        means = [row.mean(name) for row in found if name in row.values]
        if means:
            best = min(means) if lower_is_better(name) else max(means)
            yield heading, partial(_score, name, best)


def _score(name: str, best: float, row: Row) -> Text | str:
    if name not in row.values:
        return "–"
    value = row.mean(name)
    spread = f" ± {row.std(name):.3f}" if len(row.seeds) > 1 else ""
    return Text(f"{value:.3f}{spread}", style="bold" if value == best else "")


def _time_to_target(row: Row) -> str:
    """Write the mean over the seeds that reached the target, and how many did where not all have."""
    reached = [v for v in row.values["time_to_target"] if v == v]
    if not reached:
        return "never"
    some = "" if len(reached) == len(row.seeds) else f" ({len(reached)}/{len(row.seeds)})"
    return human_seconds(sum(reached) / len(reached)) + some


def _traffic(found: Sequence[Row]) -> Iterator[Column]:
    """Yield a column per tier: the bytes that it carried."""
    for tier in sorted({name for row in found for name in row.values if name.startswith("bytes_")}):
        yield tier.removeprefix("bytes_"), partial(_bytes, tier)


def _bytes(tier: str, row: Row) -> str:
    return human_bytes(row.mean(tier)) if tier in row.values else "0 B"


def _world_line(experiment: Mapping[str, Any]) -> str:
    fleet, task = experiment["fleet"], experiment["task"]
    world = ", ".join(
        f"{k} {v['kind']}" for k, v in experiment["world"].items() if isinstance(v, Mapping) and "kind" in v
    )
    return (
        f"{fleet['devices']} devices, {fleet['edges']} edges, {task['dataset']}, {task['model']}, "
        f"partition {experiment['partition'].get('kind', 'iid')}; {world}"
    )


def plain(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the comparison as plain data."""
    target, score = _settings(runs)
    found = rows(runs, target, score)
    return {
        "experiment": runs[0].experiment,
        "rows": [
            {
                "label": r.label,
                "seeds": list(r.seeds),
                "values": {k: [None if x != x else x for x in v] for k, v in r.values.items()},
            }
            for r in found
        ],
    }

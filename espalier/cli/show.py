"""Tables for the terminal and for programs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from espalier.core.method import Method
from espalier.data.registry import Info
from espalier.record.run import Run
from espalier.record.table import Row, human_bytes, human_seconds, rows

#: columns of a comparison: (metric, heading, kind)
SCORES = (
    ("{}_global", "global", "score"),
    ("{}_edge", "edge", "score"),
    ("{}_device", "device", "score"),
    ("{}_device_worst", "worst tenth", "score"),
)


def _main_score(found: Sequence[Row]) -> str:
    for name in ("acc", "miou"):
        if any(f"{name}_device" in r.values for r in found):
            return name
    names = [n.removesuffix("_device") for r in found for n in r.values if n.endswith("_device")]
    return next((n for n in names if n != "loss"), "loss")


def _settings(runs: Sequence[Run]) -> tuple[float | None, str]:
    task = runs[0].experiment.get("task", {})
    return task.get("target"), task.get("score", "acc_device")


def table(runs: Sequence[Run]) -> Table:
    """Return the comparison of runs: mean ± std over seeds at the end."""
    target, score = _settings(runs)
    found = rows(runs, target, score)
    main = _main_score(found)
    experiment = runs[0].experiment
    seeds = sorted({s for r in found for s in r.seeds})
    out = Table(title=f"{experiment['name']}: {main} at the end, mean ± std over {len(seeds)} seed(s)")
    out.add_column("method")
    columns = [(name.format(main), title) for name, title, _ in SCORES]
    columns = [(n, t) for n, t in columns if any(n in r.values for r in found)]
    lower = main not in ("acc", "miou")
    best = {}
    for name, title in columns:
        out.add_column(title, justify="right")
        means = [r.mean(name) for r in found if name in r.values]
        if means:
            best[name] = min(means) if lower else max(means)
    out.add_column("virtual time", justify="right")
    if target is not None:
        out.add_column(f"time to {target:g}", justify="right")
    tiers = sorted({n for r in found for n in r.values if n.startswith("bytes_")})
    for tier in tiers:
        out.add_column(tier.removeprefix("bytes_"), justify="right")
    for row in found:
        cells: list[Text | str] = [row.label]
        for name, _ in columns:
            if name not in row.values:
                cells.append("–")
                continue
            value = row.mean(name)
            text = f"{value:.3f}" + (f" ± {row.std(name):.3f}" if len(row.seeds) > 1 else "")
            cells.append(Text(text, style="bold" if value == best.get(name) else ""))
        cells.append(human_seconds(row.mean("time")))
        if target is not None:
            reached = [v for v in row.values["time_to_target"] if v == v]
            text = human_seconds(sum(reached) / len(reached)) if reached else "never"
            cells.append(text + (f" ({len(reached)}/{len(row.seeds)})" if 0 < len(reached) < len(row.seeds) else ""))
        cells += [human_bytes(row.mean(t)) if t in row.values else "0 B" for t in tiers]
        out.add_row(*cells)
    out.caption = _world_line(experiment)
    return out


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


def methods(found: Mapping[str, type[Method]]) -> Table:
    """Return the list of methods."""
    out = Table(show_lines=False)
    for title in ("name", "method", "citation"):
        out.add_column(title)
    for name, cls in found.items():
        mark = " (reconstruction)" if cls.reconstruction else ""
        out.add_row(name, cls.title + mark, cls.citation)
    return out


def method(name: str, cls: type[Method]) -> Group:
    """Return a method's page: its module's text and its options."""
    module = inspect.getmodule(cls)
    parts: list[Any] = [Text(f"{cls.title} ({name})", style="bold"), Text(cls.citation), Text("")]
    if cls.reconstruction:
        parts += [Text(f"Reconstruction: {cls.reconstruction}", style="yellow"), Text("")]
    text = inspect.getdoc(module) if module else None
    parts += [Text(inspect.cleandoc(text)), Text("")] if text else []
    parts += [Text(inspect.getdoc(cls) or ""), Text("")]
    options = Table(title="options")
    for title in ("option", "type", "default"):
        options.add_column(title)
    for field in dataclasses.fields(cls):
        default = field.default if field.default is not dataclasses.MISSING else "…"
        options.add_row(field.name, str(field.type), repr(default))
    return Group(*parts, options)


def info(item: Info) -> dict[str, Any]:
    """Return a dataset's line as plain data."""
    found = dataclasses.asdict(item)
    found["where"] = None if item.where is None else str(item.where)
    return found


def datasets(found: Sequence[Info]) -> Table:
    """Return the catalogue of datasets."""
    out = Table()
    for title in ("name", "kind", "train + test", "classes", "found in"):
        out.add_column(title)
    for item in found:
        place = (
            "embedded"
            if item.embedded
            else str(item.where or "– (espalier data fetch)" if item.fetchable else item.where or "–")
        )
        out.add_row(item.name, item.kind, f"{item.samples[0]:,} + {item.samples[1]:,}", str(item.classes), place)
    return out

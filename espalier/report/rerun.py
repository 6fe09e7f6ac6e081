"""How to run it again: the configuration, versions, seeds and commands of what a report shows."""

from __future__ import annotations

import re
import tomllib
from html import escape
from typing import Any

import tomli_w

from espalier.core.spec import without_none
from espalier.report.groups import Group, Groups, flat
from espalier.report.reading import Reading


def experiment_text(comparison: Groups, setting: int) -> str:
    """Return one experiment file that makes all runs of a setting again."""
    groups = [g for g in comparison.groups if g.setting == setting]
    table = dict(comparison.settings[setting].experiment)
    pace = _pace(groups)
    if pace is not None:  # as it was asked for: the first method's rounds, the others get its time
        groups.sort(key=lambda g: g is not pace)
        table["stop"] = pace.face.experiment["stop"]
    methods: list[Any] = [m for g in groups for m in g.face.experiment.get("methods", [])]
    table["methods"] = methods
    table["seeds"] = sorted({s for g in groups for s in g.seeds})
    return tomli_w.dumps(without_none(table))


def about(reading: Reading) -> dict[str, Any]:
    """Return what a run's ``run.toml`` says of its making: versions and the command."""
    if reading.directory is None:
        return {}
    try:
        table = tomllib.loads((reading.directory / "run.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return {}
    found: dict[str, Any] = table.get("about", {})
    return found


def to_html(comparison: Groups) -> str:
    """Return the section as HTML."""
    parts = []
    for number, setting in enumerate(comparison.settings):
        groups = [g for g in comparison.groups if g.setting == number]
        name = re.sub(r"[^\w.-]+", "-", str(setting.experiment.get("name", "experiment"))).strip("-.") or "experiment"
        file = f"{name}.toml" if len(comparison.settings) == 1 else f"{name}-{number + 1}.toml"
        title = f"<h3>{escape(setting.name)}</h3>" if setting.name else ""
        differing = ", ".join(map(escape, _differing(groups)))
        which = f"runs like the first (they differ in {differing}: each one's <code>run.toml</code> has its own)"
        parts.append(
            f"{title}<p>Save the configuration below as <code>{escape(file)}</code>; this makes "
            f"{which if differing else 'the runs again'}:</p><pre><code>espalier run {escape(file)}</code></pre>"
            f"<details><summary>{escape(file)}</summary><pre><code>"
            f"{escape(experiment_text(comparison, number))}</code></pre></details>"
        )
    parts.append(_runs(comparison))
    return "".join(parts)


def _pace(groups: list[Group]) -> Group | None:
    """Return the method whose virtual time the others got, if the runs were made so (``stop.budget = "time"``)."""
    paces = [g for g in groups if all(_stop(r).get("budget") == "time" for r in g.readings)]
    if len(paces) != 1 or len({str(_stop(r)) for r in paces[0].readings}) != 1:
        return None
    times = {r.seed: r.time for r in paces[0].readings}
    rest = [r for g in groups if g is not paces[0] for r in g.readings]
    given = all(set(_stop(r)) == {"budget", "seconds"} and _stop(r)["seconds"] == times.get(r.seed) for r in rest)
    return paces[0] if given else None


def _stop(reading: Reading) -> Any:
    return without_none(reading.experiment.get("stop", {}))


def _differing(groups: list[Group]) -> list[str]:
    """Return the keys that runs of one setting were given different values of: one file has room for one."""
    parts = ("training", "evaluate", *(["stop"] if _pace(groups) is None else []))
    runs = [r.experiment for g in groups for r in g.readings]
    tables = [flat({part: without_none(run.get(part, {})) for part in parts}) for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if len({str(table.get(key)) for table in tables}) > 1]


def _spent(privacy: dict[str, Any] | None) -> str:
    """Return what a run has spent of its devices' privacy in words."""
    if privacy is None:
        return "–"
    parts = [(name, privacy[name]["epsilon"]) for name in ("reports", "statistics", "merges") if name in privacy]
    said = [f"{name} ε = {'∞' if epsilon is None else format(epsilon, '.3g')}" for name, epsilon in parts]
    return f"{', '.join(said)} at δ = {privacy['delta']:.2g}" if said else "nothing yet"


def _runs(groups: Groups) -> str:
    """Return the table of runs; what is the same for all of them is said once."""
    runs = [(g.label, r, about(r)) for g in groups.groups for r in g.readings]
    columns: dict[str, list[str]] = {
        "method": [label for label, *_ in runs],
        "seed": [str(r.seed) for _, r, _ in runs],
        "how it ended": [r.stalled or r.state for _, r, _ in runs],
        "directory": [str(r.directory or "in memory") for _, r, _ in runs],
        "versions": [", ".join(f"{k} {v}" for k, v in facts.get("versions", {}).items()) for *_, facts in runs],
        "command": [str(facts.get("command", "")) for *_, facts in runs],
    }
    if any(r.privacy is not None for _, r, _ in runs):
        columns["privacy"] = [_spent(r.privacy) for _, r, _ in runs]
    shared = [k for k in ("versions", "command") if len(set(columns[k])) == 1]
    said = "".join(f"<p>{k.capitalize()}: <code>{escape(columns.pop(k)[0])}</code></p>" for k in shared)
    heads = "".join(f"<th>{name}</th>" for name in columns)
    styles = {"directory": ' class="path"', "command": ' class="path"'}
    rows = ""
    for i in range(len(runs)):
        cells = (f"<td{styles.get(k, '')}>{escape(v[i])}</td>" for k, v in columns.items())
        rows += f"<tr>{''.join(cells)}</tr>"
    return (
        f'<details class="runs"><summary>Where the {len(runs)} runs are</summary>{said}<div class="wide">'
        f'<table class="text"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>'
    )

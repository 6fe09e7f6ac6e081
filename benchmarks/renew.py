"""Measure what the documents tell of times, sizes and fleets, and write it there: `make bench` (idle machine, 15 min).

    python benchmarks/renew.py                  # every part but those that take an hour
    python benchmarks/renew.py million ray      # these parts only
    python benchmarks/renew.py --missing        # those that nothing is kept of: go on where it was broken off
    python benchmarks/renew.py --tables         # measure nothing, render the pages
    python benchmarks/renew.py --floors         # raise the floors to nine tenths of what was measured; no floor falls
    python benchmarks/renew.py --list           # the parts, their commands, and when each was measured

Every part is kept in benchmarks/measured.json as soon as it is measured, with the day, the processor and the load just
before. The tables between `<!-- measured: NAME -->` and `<!-- end -->` are rendered from that file; one of which
nothing is kept stays as it is. Exit code 1 says that a floor was missed, or a benchmark failed or took too long; the
others are measured all the same.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tables

HERE = Path(__file__).parent
DATA, FLOORS, DOCS = HERE / "measured.json", HERE / "floors.json", HERE.parent / "docs"
PAGES = (DOCS / "performance.md", DOCS / "scale.md", DOCS / "deployment.md", HERE.parent / "SECURITY.md")
_BLOCK = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Part:
    """A benchmark's command, and after how many minutes it is given up."""

    command: str
    most_minutes: int = 8
    rarely: bool = False


OURS = "--peers espalier 'naive loop' torch.func.vmap jax \"HierFL's loop\" --rounds 2 --repeats 1"
OTHERS = "--models resnet8 resnet20 mobile lstm transformer lora --batches 32 --steps 6 --rounds 1"
PARTS = {
    "peers": Part(f"run.py {OURS} --models mlp lenet"),
    "peers_cnn": Part(f"run.py {OURS} --models fedavg_cnn --batches 10"),
    "peers_models": Part(f"run.py {OURS} {OTHERS}"),
    "chunks": Part("native.py --only models"),
    "half": Part("native.py --only half"),
    "layers": Part("native.py --only layers"),
    "linear": Part("native.py --only linear"),
    "operations": Part("operations.py"),
    "shares": Part("parts.py --batches 10"),
    "personal": Part("parts.py --personal", 15),
    "judged": Part("parts.py --judged"),
    "lazy": Part("lazy.py --repeats 1"),
    "fleet": Part("scale.py"),
    "thousand": Part("scale.py --thousand"),
    "hundred_thousand": Part("scale.py --hundred-thousand"),
    "million": Part("scale.py --million"),
    "many_runs": Part("many_runs.py"),
    "start": Part("start.py"),
    "ray": Part("ray_overhead.py --rounds 8"),
    **{f"agreement_{name}": Part(f"fleet_agreement.py --only {name}", 20, rarely=True) for name in tables.AGREEING},
    "standing": Part("fleet_standing.py", 15, rarely=True),
    "faults": Part("fleet_faults.py --repeats 5 --moves 200", 40, rarely=True),  # as root
    "load": Part("fleet_load.py --devices 40 100", 30, rarely=True),
    "hostile": Part("hostile.py --letters 10000", 30, rarely=True),
    "bytes": Part("ray_overhead.py --bytes"),
    "places": Part("ray_overhead.py --places"),
    "facts": Part("ray_overhead.py --facts"),
    "resnet": Part("ray_resnet.py", 60, rarely=True),
    "ten_million": Part("scale.py --ten-million", 60, rarely=True),
    "all_peers": Part("run.py --clients 20 100 --rounds 2 --repeats 1", 180, rarely=True),
}


def machine() -> str:
    """Return this machine in a few words: processor, cores, version of PyTorch."""
    from importlib.metadata import version

    try:
        told = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        told = None
    return f"{told[1] if told else 'unknown processor'}, {os.cpu_count()} cores, torch {version('torch')}"


def measure(part: Part) -> tuple[Any, str]:
    """Run a benchmark; return what it wrote (None: nothing) and what went wrong ('': nothing)."""
    script, *options = shlex.split(part.command)
    # the naive loop has torch's default threads
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with tempfile.TemporaryDirectory() as folder:
        file, wrong = Path(folder) / "found.json", ""
        try:
            command = [sys.executable, str(HERE / script), *options, "--json", str(file)]
            # a group of its own: what is given up ends with all that it has started
            with subprocess.Popen(command, env=env, start_new_session=True) as process:
                try:
                    code = process.wait(60 * part.most_minutes)
                except BaseException:
                    os.killpg(process.pid, signal.SIGKILL)
                    raise
            wrong = f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            wrong = f"given up after {part.most_minutes} minutes"
        found = json.loads(file.read_text()) if file.exists() else None
    if isinstance(found, dict):  # several tables, of which one was asked for
        (found,) = found.values()
    return found, wrong


def keep(data: dict[str, Any]) -> None:
    """Write the figures, whole or not at all."""
    part = DATA.with_suffix(".part")
    part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    part.replace(DATA)


def raise_floors(data: dict[str, Any]) -> None:
    """Write floors of nine tenths of how much faster than the naive loop we were; no floor falls."""
    floors = json.loads(FLOORS.read_text(encoding="utf-8"))
    for row in (row for name in tables.BLOCKS["peers"][1:] for row in data.get(name, {"rows": []})["rows"]):
        times = {peer: t["seconds"] for peer, t in row["timings"].items()}
        if times.get("naive loop") and row["clients"] == 20:
            reached = statistics.median(times["naive loop"]) / statistics.median(times["espalier"])
            plain, native = floors.get(f"{row['model']}/{row['batch']}", (None, 0.0))
            floors[f"{row['model']}/{row['batch']}"] = plain, max(native, math.floor(90 * reached) / 100)
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(found)}" for key, found in floors.items())
    FLOORS.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _loads(kept: list[dict[str, Any]], day: str, where: str) -> str:
    """Return the loads before what was measured on one day and machine."""
    found = [one["load"] for one in kept if (one["day"], one["machine"]) == (day, where)]
    return " to ".join(f"{load:.1f}" for load in sorted({min(found), max(found)}))


def rendered(page: str, data: dict[str, Any]) -> str:
    """Return the page with its tables rendered from what is kept."""

    def block(found: re.Match[str]) -> str:
        render, *wanted = tables.BLOCKS[found[2]]
        kept = [data[name] for name in wanted if name in data]
        if not kept:
            return found[0]
        rows = [row for one in kept for row in one["rows"]]
        places = sorted({(one["day"], one["machine"]) for one in kept})
        told = [f"{day}, {where}, load {_loads(kept, day, where)} before" for day, where in places]
        return found[1] + "\n".join([*render(rows), "", f"Measured {'; '.join(told)}."]) + "\n" + found[3]

    return _BLOCK.sub(block, page)


def render(data: dict[str, Any]) -> None:
    """Write the tables into the pages."""
    for page in PAGES:
        page.write_text(rendered(page.read_text(encoding="utf-8"), data), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--missing", action="store_true", help="only parts that nothing is kept of")
    parser.add_argument("--tables", action="store_true", help="measure nothing")
    parser.add_argument("--floors", action="store_true", help="measure nothing, raise the floors")
    parser.add_argument("--list", action="store_true", help="print the parts")
    args = parser.parse_args()
    if unknown := [name for name in args.parts if name not in PARTS]:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    if args.list:
        for name, part in PARTS.items():
            print(f"{name:18} {data.get(name, {}).get('day', 'never'):12} python benchmarks/{part.command}")
        return
    if args.floors:
        raise_floors(data)
        return
    wrong: dict[str, str] = {}
    chosen = [] if args.tables else args.parts or [name for name, part in PARTS.items() if not part.rarely]
    for name in chosen:
        if args.missing and name in data:
            continue
        print(f"\n{name}: python benchmarks/{PARTS[name].command}", flush=True)
        load, begun = os.getloadavg()[0], time.monotonic()
        rows, failure = measure(PARTS[name])
        if failure:
            wrong[name] = failure
        if rows:
            data[name] = {"day": time.strftime("%Y-%m-%d"), "machine": machine(), "load": load, "rows": rows}
            keep(data)
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
    render(data)
    if wrong:
        sys.exit("\n".join(f"{name}: {why}" for name, why in wrong.items()))


if __name__ == "__main__":
    main()

"""Runs of an experiment side by side: methods × seeds over worker processes, with progress."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espalier.api import slug
from espalier.core.errors import EspalierError, RunError
from espalier.experiment import Experiment
from espalier.simulator.runner import Runner, Stopped
from espalier.simulator.simulation import Simulation


@dataclass(frozen=True)
class Errand:
    """One run to do: a plain experiment of one method and one seed, and its directory."""

    experiment: dict[str, Any]
    directory: Path
    data_dir: Path | None
    workers: int
    title: str


@dataclass(frozen=True)
class News:
    """What a run has to say: how far it is (0…1), its round and time, or how it ended."""

    number: int
    done: float
    text: str
    state: str = "running"


def errands(experiment: Experiment, out: Path, data_dir: Path | None, workers: int) -> list[Errand]:
    """Return the runs of an experiment, methods outermost."""
    found = []
    for entry in experiment.methods:
        for seed in experiment.seeds:
            plain = experiment.only(entry, seed).to_plain()
            where = out / slug(entry.label) / f"seed-{seed}"
            found.append(Errand(plain, where, data_dir, workers, f"{entry.label} · seed {seed}"))
    return found


def do(number: int, errand: Errand, tell: Callable[[News], None]) -> None:
    """Do one run, or go on with it, telling how far it is."""
    experiment = Experiment.build(errand.experiment)
    runner = Runner(experiment, errand.directory, data_dir=errand.data_dir, workers=errand.workers)

    def ask_to_stop(*_: object) -> None:
        runner.stop = True

    before = {s: signal.signal(s, ask_to_stop) for s in (signal.SIGINT, signal.SIGTERM)}
    limits, last = experiment.stop, [0.0]

    def progress(sim: Simulation) -> None:
        now = time.monotonic()
        if now - last[0] < 0.2:
            return
        last[0] = now
        parts = [0.0]
        if limits.rounds is not None:
            parts.append(sim.round / limits.rounds)
        if limits.seconds is not None:
            parts.append(sim.now / limits.seconds)
        score = sim.meter.last.get(experiment.task.score, sim.meter.last.get("acc_global"))
        shown = "" if score is None else f"  {experiment.task.score} {score:.3f}"
        tell(News(number, min(1.0, max(parts)), f"round {sim.round}  {sim.now:,.0f} s{shown}"))

    try:
        runner.run(progress)
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
    tell(News(number, 1.0, f"round {runner.simulation.round}  {runner.simulation.now:,.0f} s", "finished"))


def _work(number: int, errand: Errand, channel: Any) -> None:
    """Entry point of a worker process."""
    try:
        do(number, errand, channel.put)
    except Stopped:
        channel.put(News(number, 0.0, "stopped", "stopped"))
    except EspalierError as error:
        channel.put(News(number, 0.0, str(error), f"error {error.exit_code}"))
    except KeyboardInterrupt:
        channel.put(News(number, 0.0, "stopped before it began", "stopped"))
    except BaseException:
        channel.put(News(number, 0.0, traceback.format_exc(), "crash"))


def run_all(todo: Sequence[Errand], jobs: int, tell: Callable[[News], None]) -> list[News]:
    """Do all runs, ``jobs`` at a time; return how each ended. Stops cleanly on Ctrl-C and SIGTERM."""
    if jobs <= 1 or len(todo) == 1:
        return _one_by_one(todo, tell)
    context = multiprocessing.get_context("spawn")
    channel = context.Queue()
    waiting = list(enumerate(todo))
    running: dict[int, Any] = {}
    ends: dict[int, News] = {}
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True
        for process in running.values():
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGTERM)

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        while running or (waiting and not stopping):
            while waiting and len(running) < jobs and not stopping:
                number, errand = waiting.pop(0)
                process = context.Process(target=_work, args=(number, errand, channel), daemon=False)
                process.start()
                running[number] = process
            try:
                news: News = channel.get(timeout=0.2)
            except queue.Empty:
                for number, process in list(running.items()):
                    if not process.is_alive() and channel.empty():
                        gone = News(number, 0.0, f"the process died (exit code {process.exitcode})", "crash")
                        ends[number] = gone
                        del running[number]
                        tell(gone)
                continue
            tell(news)
            if news.state != "running":
                ends[news.number] = news
                finished = running.pop(news.number, None)
                if finished is not None:
                    finished.join()
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
    for number, _ in waiting:
        ends[number] = News(number, 0.0, "not begun", "stopped")
    return [ends[i] for i in range(len(todo))]


def _one_by_one(todo: Sequence[Errand], tell: Callable[[News], None]) -> list[News]:
    ends: list[News] = []
    for number, errand in enumerate(todo):
        if ends and ends[-1].state == "stopped":
            ends.append(News(number, 0.0, "not begun", "stopped"))
            continue
        try:
            do(number, errand, tell)
            ends.append(News(number, 1.0, "", "finished"))
        except Stopped:
            ends.append(News(number, 0.0, "stopped", "stopped"))
        except EspalierError as error:
            ends.append(News(number, 0.0, str(error), f"error {error.exit_code}"))
            tell(ends[-1])
    return ends


def check_directory(out: Path, *, go_on: bool) -> None:
    """Refuse to write over finished or foreign directories; ``go_on`` accepts unfinished runs."""
    if out.exists() and any(out.iterdir()) and not go_on:
        raise RunError(
            f"{out} is not empty. Go on with its runs with `espalier resume {out}`, or choose another "
            "directory with --out."
        )


def on_terminal() -> bool:
    """Tell whether a person watches."""
    return sys.stderr.isatty()

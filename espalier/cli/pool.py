"""Runs of an experiment side by side: methods × seeds over worker processes, with progress.

The first Ctrl-C or SIGTERM lets every run save itself after the event in hand; the second ends all at once
(which loses what was done since the last checkpoint, and nothing else).
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from espalier.api import following
from espalier.callbacks import loggers
from espalier.core.code import plug_in
from espalier.core.errors import EspalierError
from espalier.data import registry
from espalier.data.dataset import Dataset
from espalier.experiment import Experiment
from espalier.record.run import Run, slug
from espalier.simulator.runner import Runner, Stopped
from espalier.simulator.simulation import Simulation
from espalier.simulator.task import Backend


@dataclass(frozen=True)
class RunRequest:
    """One run to do: a plain experiment of one method and one seed, and its directory.

    ``leader`` is the directory of the run whose virtual time this one has, if they are to have equal time.
    """

    experiment: dict[str, Any]
    directory: Path
    data_dir: Path | None
    workers: int
    title: str
    backend: Backend | None = None
    device: str = "cpu"
    leader: Path | None = None
    plugins: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunStatus:
    """What a run has to say: how far it is (0…1), its round and time, a note, or how it ended.

    ``state`` is ``running``, ``note``, ``warning`` (the same for many runs), ``finished``, ``diverged``, ``stopped``,
    ``crash``, or ``error`` and an exit code.
    """

    number: int
    done: float
    text: str
    state: str = "running"

    @property
    def final(self) -> bool:
        """Whether the run has ended."""
        return self.state not in ("running", "note", "warning")


#: a run that has come to its end, and has said so itself
DONE = ("finished", "diverged")
#: a run that was given no time to save itself
CUT_OFF = "ended at once; its last checkpoint is whole"


def stopped(ends: Sequence[RunStatus]) -> str:
    """Return what to say if somebody stopped the runs; nothing if nobody did."""
    if not any(end.state == "stopped" for end in ends):
        return ""
    lost = any(end.text == CUT_OFF for end in ends)
    return "Stopped at once; what came after the last checkpoint is lost." if lost else "Stopped; everything is saved."


@dataclass
class Stop:
    """Whether somebody asked to stop."""

    asked: bool = False


def run_requests(experiment: Experiment, out: Path, data_dir: Path | None, workers: int) -> list[RunRequest]:
    """Return the runs of an experiment, methods outermost."""
    found = []
    for entry in experiment.methods:
        for seed in experiment.seeds:
            one = experiment.only(entry, seed)
            where, first = (out / slug(e.label) / f"seed-{seed}" for e in (entry, experiment.methods[0]))
            leader = first if experiment.stop.budget == "time" and first != where else None
            title = f"{entry.label} · seed {seed}"
            found.append(
                RunRequest(one.to_plain(), where, data_dir, workers, title, leader=leader, planned=one.planned)
            )
    return found


@lru_cache(maxsize=1)
def _dataset(task: str, data_dir: Path | None) -> Dataset:
    """Read the dataset of a task (as JSON); runs that follow each other on the same data read it once."""
    return Experiment.build({"task": json.loads(task)}).dataset(data_dir)


def do(number: int, request: RunRequest, tell: Callable[[RunStatus], None], stop: Stop) -> str:
    """Do one run, or go on with it, telling how far it is; return how it ended."""
    plug_in(request.plugins)
    experiment = replace(Experiment.build(request.experiment), planned=request.planned)
    if request.leader is not None and (request.leader / "run.sqlite").is_file():
        experiment = experiment.ending_with(Run(request.leader).seconds)
    told = loggers(experiment.record.log)  # what they cannot do is said before anything is written
    task = {k: request.experiment["task"][k] for k in ("dataset", "dataset_options", "judged_on")}
    runner = Runner(
        experiment, request.directory, dataset=_dataset(json.dumps(task), request.data_dir),
        data_dir=request.data_dir, workers=request.workers,
        backend=request.backend, device=request.device,
        tell=lambda text: tell(RunStatus(number, 0.0, text, "note")),
    )  # fmt: skip
    follow = following(runner, told)
    last = [0.0]
    parent = multiprocessing.parent_process()

    def progress(sim: Simulation) -> None:
        runner.stop = stop.asked
        if told:
            follow(sim)
        now = time.monotonic()
        if now - last[0] < 0.2:
            return
        last[0] = now
        if parent is not None and not parent.is_alive():
            runner.stop = True  # nobody is left to hear the news
        score = sim.meter.last.get(experiment.task.score, sim.meter.last.get("acc_global"))
        shown = "" if score is None else f"  {experiment.task.score} {score:.3f}"
        tell(RunStatus(number, experiment.stop.done(sim.round, sim.now), f"round {sim.round}  {sim.now:,.0f} s{shown}"))

    runner.run(progress)
    sim = runner.simulation
    follow(sim)  # the last event ended the run
    for callback in told:
        callback.on_end(Run(request.directory))
    if sim.stalled:
        tell(RunStatus(number, 1.0, f"it ended early. {sim.stalled}", "note"))
    state = "diverged" if sim.diverged else "finished"
    tell(RunStatus(number, 1.0, f"round {sim.round}  {sim.now:,.0f} s", state))
    return state


def attempt(number: int, request: RunRequest, tell: Callable[[RunStatus], None], stop: Stop) -> RunStatus:
    """Do one run; return how it ended, whatever happened."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: tell(RunStatus(number, 0.0, str(message), "warning"))
            return RunStatus(number, 1.0, "", do(number, request, tell, stop))
    except Stopped:
        return RunStatus(number, 0.0, "stopped", "stopped")
    except KeyboardInterrupt:
        return RunStatus(number, 0.0, CUT_OFF, "stopped")
    except EspalierError as error:
        return RunStatus(number, 0.0, str(error), f"error {error.exit_code}")
    except Exception:
        return RunStatus(number, 0.0, traceback.format_exc(), "crash")


def _work(line: Connection) -> None:
    """Entry point of a worker process: do one run after another, until there is none or the parent is gone."""
    # The terminal sends Ctrl-C to every process of the group; the parent passes it on as SIGTERM, once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    stop = Stop()
    signal.signal(signal.SIGTERM, lambda *_: setattr(stop, "asked", True))

    def tell(status: RunStatus) -> None:
        with contextlib.suppress(OSError):  # nobody is left to hear the news
            line.send(status)

    with contextlib.suppress(EOFError):
        while (numbered := line.recv()) is not None:
            number, request = numbered
            end = attempt(number, request, tell, stop)
            if end.state not in DONE:
                tell(end)


@contextlib.contextmanager
def listening(first: Callable[[], None], second: Callable[[], None]) -> Iterator[None]:
    """Call ``first`` on the first Ctrl-C or SIGTERM and ``second`` on each further one."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    count = 0

    def heard(*_: object) -> None:
        nonlocal count
        count += 1
        (first if count == 1 else second)()

    before = {s: signal.signal(s, heard) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)


def run_all(todo: Sequence[RunRequest], jobs: int, tell: Callable[[RunStatus], None]) -> list[RunStatus]:
    """Do all runs, ``jobs`` at a time; return how each ended. Stops cleanly on Ctrl-C and SIGTERM.

    Raises:
        DataError: A dataset is missing; nothing was run.
    """
    tasks = ((r.experiment["task"], r.data_dir) for r in todo)
    for name, kind, data_dir in {(t["dataset"], t["dataset_options"].get("kind"), place) for t, place in tasks}:
        registry.require(name, data_dir, kind)
    ends: dict[int, RunStatus] = {}
    with contextlib.closing(_Side(jobs, tell)) as side:
        for led in (False, True):  # those whose time others are to have come first
            part = [(n, request) for n, request in enumerate(todo) if (request.leader is not None) is led]
            if any(end.state == "stopped" for end in ends.values()):
                ends |= {n: RunStatus(n, 0.0, "not begun", "stopped") for n, _ in part}
            elif jobs <= 1 or len(part) == 1:
                ends |= _one_by_one(part, tell)
            else:
                ends |= side.by_side(part)
    return [ends[n] for n in range(len(todo))]


#: runs by their number in the whole list
Numbered = Sequence[tuple[int, RunRequest]]


def _one_by_one(todo: Numbered, tell: Callable[[RunStatus], None]) -> dict[int, RunStatus]:
    ends: dict[int, RunStatus] = {}
    stop = Stop()

    def at_once() -> None:
        raise KeyboardInterrupt

    with listening(lambda: setattr(stop, "asked", True), at_once):
        for number, request in todo:
            if stop.asked:
                ends[number] = RunStatus(number, 0.0, "not begun", "stopped")
                continue
            ends[number] = attempt(number, request, tell, stop)
            if ends[number].state not in DONE:
                tell(ends[number])
    return ends


@dataclass(frozen=True)
class _Worker:
    """A process that does runs, and the line on which it is given them and tells how far it is."""

    process: Any
    line: Connection


class _Side:
    """Runs side by side, in processes that do one after another: starting one takes longer than a small run."""

    def __init__(self, jobs: int, tell: Callable[[RunStatus], None]) -> None:
        self.jobs, self.tell = jobs, tell
        self.context = multiprocessing.get_context("spawn")
        self.running: dict[int, _Worker] = {}
        self.idle: list[_Worker] = []
        self.ends: dict[int, RunStatus] = {}
        self.stopping = False

    def by_side(self, todo: Numbered) -> dict[int, RunStatus]:
        """Do all runs; return how each ended."""
        waiting, self.ends = list(todo), {}
        with listening(self._stop, lambda: self._signal(signal.SIGKILL)):
            while self.running or (waiting and not self.stopping):
                while waiting and len(self.running) < self.jobs and not self.stopping:
                    self._start(*waiting.pop(0))
                numbers = {worker.line: number for number, worker in self.running.items()}
                for line in wait(list(numbers), timeout=0.2):
                    assert isinstance(line, Connection)
                    self._hear(numbers[line], line)
        return self.ends | {number: RunStatus(number, 0.0, "not begun", "stopped") for number, _ in waiting}

    def close(self) -> None:
        """Let the workers end: all runs have."""
        for worker in self.idle:
            with contextlib.suppress(OSError):
                worker.line.send(None)
            worker.line.close()
        for worker in self.idle:
            worker.process.join()

    def _start(self, number: int, request: RunRequest) -> None:
        self.idle = [worker for worker in self.idle if worker.process.is_alive()]
        worker = self.running[number] = self.idle.pop() if self.idle else self._hire()
        with contextlib.suppress(OSError):  # it died just now, which its line tells
            worker.line.send((number, request))
        if self.stopping:  # asked between the check and the start
            self._signal(signal.SIGTERM)

    def _hire(self) -> _Worker:
        mine, theirs = self.context.Pipe()
        process = self.context.Process(target=_work, args=(theirs,), daemon=False)
        # Ctrl-C would end a process that is just being started with a traceback: until it is ready, the signal is held.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return _Worker(process, mine)

    def _stop(self) -> None:
        self.stopping = True
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for process in [worker.process for worker in (*self.running.values(), *self.idle)]:
            if process.pid and process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def _hear(self, number: int, line: Connection) -> None:
        """Take a run's news; a process that ended without a word has left a broken line."""
        try:
            news: RunStatus = line.recv()
        except (EOFError, OSError):
            worker = self.running.pop(number)
            worker.process.join()
            died = f"the process died (exit code {worker.process.exitcode}); its last checkpoint is whole"
            news = RunStatus(number, 0.0, *((CUT_OFF, "stopped") if self.stopping else (died, "crash")))
        self.tell(news)
        if news.final:
            self.ends[number] = news
            if number in self.running:
                self.idle.append(self.running.pop(number))


def on_terminal() -> bool:
    """Tell whether a person watches."""
    return sys.stderr.isatty()

"""What an output directory holds and what is left to do there.

``experiment.toml`` in it names every run of the experiment, so that a resume also begins those that had not
begun; each run has a directory of its own below.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from espalier.cli.pool import RunRequest, run_requests
from espalier.core.errors import RunError
from espalier.experiment import Experiment
from espalier.record.run import Run
from espalier.simulator.directory import describe, differences, read_description

PLAN = "experiment.toml"


def prepare(
    experiment: Experiment, out: Path, data_dir: Path | None, workers: int, *, go_on: bool = False
) -> list[RunRequest]:
    """Write an experiment's plan into a directory and return its runs; ``go_on`` accepts begun ones.

    Raises:
        RunError: The directory holds something else, or begun runs without ``go_on``.
    """
    todo = run_requests(experiment, out, data_dir, workers)
    if not _begun(out):
        describe(out / PLAN, experiment, data_dir)
        return todo
    if not (out / PLAN).is_file():
        raise RunError(f"{out} is not empty and holds no {PLAN}. Choose another directory with --out.")
    there, _ = read_description(out / PLAN)
    unlike = differences(there, experiment)
    if unlike:
        raise RunError(
            f"{out} holds another experiment: it differs in {', '.join(unlike[:5])}. Choose another directory with "
            f"--out, or go on with the one that is there: espalier resume {out}."
        )
    left = [request for request in todo if not finished(request.directory)]
    if not go_on:
        raise RunError(
            f"{out} holds this experiment already ({len(todo) - len(left)} of {len(todo)} runs are finished). Go on "
            f"with it: espalier resume {out} (or add --resume), or choose another directory with --out."
        )
    return left


def _begun(out: Path) -> bool:
    """Tell whether a directory holds anything that must not be written over."""
    if not out.exists():
        return False
    if not out.is_dir():
        raise RunError(f"{out} is not a directory. Choose another one with --out.")
    try:
        return any(path.name != PLAN for path in out.iterdir())
    except OSError as error:
        raise RunError(f"{out} cannot be read: {error.strerror or error}.") from error


def tidy(out: Path) -> None:
    """Take away the plan of an experiment of which no run could begin."""
    if not _begun(out):
        with contextlib.suppress(OSError):
            (out / PLAN).unlink(missing_ok=True)
            out.rmdir()


def writable(file: Path) -> None:
    """Refuse a file that cannot be written at the end of a run before the run begins.

    Raises:
        RunError: It is a folder, or no file can be made there.
    """
    if file.is_dir():
        raise RunError(f"{file} is a folder; give the name of a file in it.")
    place = next(p for p in file.absolute().parents if p.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise RunError(f"{file} cannot be written: {place}: {error.strerror or error}.") from error


def unfinished(directory: Path, data_dir: Path | None, workers: int) -> list[RunRequest]:
    """Return every run at or below a directory that is not finished, planned ones included.

    Raises:
        RunError: There is no run and no plan.
    """
    found: dict[Path, RunRequest] = {}
    for request in _planned(directory, data_dir, workers):
        found.setdefault(request.directory.resolve(), request)
    if not found:
        raise RunError(f"There is no run at or below {directory}. Runs are made with `espalier run`.")
    return [request for request in found.values() if not finished(request.directory)]


def _planned(directory: Path, data_dir: Path | None, workers: int) -> Iterator[RunRequest]:
    for path in sorted(directory.rglob(PLAN)):
        experiment, about = read_description(path)
        yield from run_requests(experiment, path.parent, data_dir or _remembered(about), workers)
    for path in sorted(directory.rglob("run.toml")):
        experiment, about = read_description(path)
        title = f"{experiment.methods[0].label} · seed {experiment.seeds[0]}"
        yield RunRequest(experiment.to_plain(), path.parent, data_dir or _remembered(about), workers, title)


def _remembered(about: dict[str, object]) -> Path | None:
    found = about.get("data_dir")
    return Path(found) if isinstance(found, str) else None


def finished(directory: Path) -> bool:
    """Tell whether a run directory holds a finished run."""
    if not (directory / "run.sqlite").is_file():
        return False
    return Run(directory).status.get("state") == "finished"

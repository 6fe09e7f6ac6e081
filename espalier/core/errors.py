"""Every error a user can meet, as one tree.

    EspalierError                exit code 1
    ├── ConfigError              2   a key, a value or a combination that cannot be run
    ├── DataError                3   a dataset file that is missing, truncated or of another format
    │   └── PartitionError       3   a split that the data cannot give
    ├── WorldError               4   a trace or a world model that makes no sense
    ├── TrainingError            5   a model or an update that cannot be computed (also: a run that diverged)
    ├── ProtocolError            6   a message that no node may send
    ├── RunError                 7   a run directory that is locked, damaged or of another version
    │   └── ComparisonError      7   some runs of a comparison failed; the others are in its ``runs``
    └── ClusterError             8   a Ray cluster that does not answer or has no workers left

A message names the field, the value, what is accepted, and what to do. The command line prints it
without a traceback and exits with the class's ``exit_code``.
"""

from __future__ import annotations

import difflib
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


class EspalierError(Exception):
    """The root of all errors that are a user's to mend."""

    exit_code = 1


class ConfigError(EspalierError):
    """A configuration that cannot be run."""

    exit_code = 2


class SetupWarning(UserWarning):
    """An experiment that can be run and may not be what was meant."""


class DataError(EspalierError):
    """A dataset that cannot be read."""

    exit_code = 3


class PartitionError(DataError):
    """A partition that the data cannot give."""


class WorldError(EspalierError):
    """A world model or trace that makes no sense."""

    exit_code = 4


class TrainingError(EspalierError):
    """A model or an update that cannot be computed."""

    exit_code = 5


class ProtocolError(EspalierError):
    """A message that no node may send."""

    exit_code = 6


class RunError(EspalierError):
    """A run directory that cannot be used."""

    exit_code = 7


class ComparisonError(RunError):
    """Some runs of a comparison failed; those that did not are in ``runs``."""

    def __init__(self, message: str, runs: Sequence[Any]) -> None:
        super().__init__(message)
        self.runs = list(runs)


class ClusterError(EspalierError):
    """A cluster that does not answer, or has nothing to compute with."""

    exit_code = 8


def raised(error: Exception) -> str:
    """Say in one line what a user's own code raised, and where: ``KeyError: 'k' (mine.py, line 5)``."""
    said = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {said}"  # says its place itself
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not {"site-packages", "espalier"} & set(Path(f.filename).parts)] or frames
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in own[-1:])
    return f"{type(error).__name__}: {said}{where}"


def warn(text: str, category: type[Warning] = SetupWarning) -> None:
    """Warn the user, at the line of their own program that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "espalier":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the known word nearest to ``word``, or an empty string."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {found[0]!r}?" if found else ""

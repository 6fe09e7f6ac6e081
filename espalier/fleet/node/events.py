"""What happens to a host (items), what it is to do (effects), and what it has under way (work)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from espalier.core.address import Address
from espalier.core.codec import register
from espalier.core.messages import Measure, Order, Word
from espalier.core.runtime import RunControl
from espalier.core.store import Ref
from espalier.fleet.links.framing import Letter, ReceivedLetter
from espalier.fleet.membership import Member
from espalier.fleet.node.timers import Timer

#: what a node asked its host to do is kept until it is done
register(Measure)


@dataclass(frozen=True, slots=True)
class ScoreModels:
    """Score models on this node's own test set; ``data`` comes back with the figures."""

    models: tuple[Ref, ...]
    data: dict[str, Any]


@dataclass(slots=True)
class PendingJob:
    """Something for the worker thread: the action, the node that asked, the job's number, and when it was given."""

    id: int
    node: Address
    action: Any
    number: int
    at: float

    def to_plain(self) -> tuple[Any, ...]:
        """Return it as plain data."""
        action = self.action
        what = (action.models, action.data) if isinstance(action, ScoreModels) else action
        return (self.id, self.node, what, self.number, self.at)

    @staticmethod
    def of_plain(plain: tuple[Any, ...]) -> PendingJob:
        """Read what :meth:`to_plain` wrote."""
        number, node, what, job, at = plain
        return PendingJob(number, node, ScoreModels(*what) if isinstance(what, tuple) else what, job, at)


# -- what happens to a host ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """Hosts greeted, here or further down."""

    members: Sequence[Member]


@dataclass(frozen=True, slots=True)
class Gone:
    """Hosts left, or were not heard of for too long."""

    hosts: Sequence[int]


@dataclass(frozen=True, slots=True)
class Linked:
    """This host has a (new) parent on the network."""

    parent: Member


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A host has written down our letters up to a number."""

    dest: int
    series: int
    number: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """A host does not know the series of our letters."""

    dest: int
    series: int
    above: int = 0


@dataclass(frozen=True, slots=True)
class Due:
    """A timer has run out."""

    timer: int


@dataclass(frozen=True, slots=True)
class JobDone:
    """A job is done: what came out (or why nothing did), and the seconds it took."""

    work: int
    result: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class Call:
    """Do something in the engine's thread."""

    what: Callable[[], None]


Item = ReceivedLetter | Joined | Gone | Linked | Acknowledged | Restarted | Due | JobDone | Call


@dataclass
class Effects:
    """What is to be done now that everything is on disk."""

    letters: list[Letter] = field(default_factory=list)
    replaced: dict[int, list[Letter]] = field(default_factory=dict)
    acks: dict[int, tuple[int, int]] = field(default_factory=dict)
    restarts: dict[int, tuple[int, int]] = field(default_factory=dict)
    timers: list[Timer] = field(default_factory=list)
    jobs: list[PendingJob] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)


class HostControl(RunControl, Protocol):
    """What differs between the cloud and everybody else. All is called in the engine's thread."""

    def ordered(self, order: Order) -> None:
        """A device of this host was handed a model."""
        ...

    def handed(self, word: Word) -> None:
        """A root on a device says which models it serves."""
        ...

    def record(self, node: Address | None, kind: str, data: dict[str, Any]) -> None:
        """Write something into the run's record."""
        ...

    def control(self, origin: int, kind: str, data: dict[str, Any]) -> None:
        """Another host's runtime said something."""
        ...

    def changed(self, joined: Sequence[Member], gone: Sequence[int]) -> None:
        """Hosts below came or went."""
        ...

    def worked(self, work: PendingJob, seconds: float, stop: float) -> None:
        """A device was at work for some seconds until ``stop`` (for the time accounts)."""
        ...

    def scored(self, work: PendingJob, figures: list[dict[str, float]]) -> None:
        """Models were scored."""
        ...

    def counted(self, traffic: dict[tuple[str, str, str], int]) -> None:
        """This host has sent so many bytes so far."""
        ...

    def save(self) -> None:
        """Bring the journal up to date, right before a commit."""
        ...

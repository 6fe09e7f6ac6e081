"""What the cloud tells its operators: who is there and how each behaves, rounds and scores as they happen.

Nothing in a run depends on it. Figures about members outlive the process; evaluations are read back from the record.
Written in the engine's thread, read in others: readers take copies.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espalier.core.address import host_of
from espalier.fleet.membership import Member
from espalier.fleet.node.environment import Directory

#: evaluations that are kept at hand, and figures of one that are expected at most
EVALUATIONS, FIGURES = 200, 16


@dataclass(frozen=True, slots=True)
class ScoredRound:
    """The figures of one evaluation, by name."""

    round: int
    time: float
    scores: dict[str, float]

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"round": self.round, "time": round(self.time, 3), "scores": dict(self.scores)}


class Bulletin:
    """Observes one run for whoever looks after it.

    Attributes:
        trained: When each device was last done with a training that it told of.
        late: Rounds that were closed without each member, because it had taken too long.
        refused: Letters and links of each member that were refused.
        evaluations: The newest ones, oldest first.
    """

    def __init__(self, directory: Directory, plain: Mapping[str, Any], record: sqlite3.Connection) -> None:
        """Go on from what :meth:`to_plain` said and what is in the run's record."""
        self._directory = directory
        #: who is there: address -> (name, role, parent's address)
        self._present = {m.address: (m.name, m.role, m.via) for m in directory.members.values()}
        self.trained: dict[int, float] = dict(plain.get("trained", {}))
        self.late: Counter[int] = Counter(plain.get("late", {}))
        self.refused: Counter[int] = Counter(plain.get("refused", {}))
        newest = "SELECT time, round, name, value FROM metrics ORDER BY rowid DESC LIMIT ?"
        rows = record.execute(newest, (EVALUATIONS * FIGURES,)).fetchall()
        found: dict[tuple[int, float], dict[str, float]] = {}
        for time, number, name, value in rows:
            if value is not None:
                found.setdefault((int(number), float(time)), {})[str(name)] = float(value)
        evaluations = [ScoredRound(number, time, scores) for (number, time), scores in found.items()]
        self.evaluations: deque[ScoredRound] = deque(reversed(evaluations), maxlen=EVALUATIONS)
        #: lines for the log that nobody has written yet: (event, fields)
        self.lines: deque[tuple[str, dict[str, Any]]] = deque(maxlen=10_000)

    def to_plain(self) -> dict[str, Any]:
        """Return all that must outlive the process."""
        return {"trained": self.trained, "late": dict(self.late), "refused": dict(self.refused)}

    # -- who is there ------------------------------------------------------------------------------------------

    def changed(self, joined: Sequence[Member], gone: Sequence[int]) -> None:
        """Hosts came, moved or went."""
        for member in joined:
            before = self._present.get(member.address)
            self._present[member.address] = (member.name, member.role, member.via)
            if before is None or before[2] != member.via:
                event = "member joined" if before is None else "member moved"
                where = {"parent": self.name(member.via), "samples": member.samples, "version": member.version}
                self.lines.append((event, {"member": member.name, "role": member.role, **where}))
        for host in [h for h in self._present if h not in self._directory.members] if gone else ():
            name, role, _ = self._present.pop(host)
            self.lines.append(("member left", {"member": name, "role": role}))

    def name(self, host: int) -> str:
        """Return a host's name (its number, if nobody of that number is there)."""
        member = self._directory.members.get(host)
        return str(host) if member is None else member.name

    # -- how each behaves --------------------------------------------------------------------------------------

    def worked(self, origin: int, stop: float) -> None:
        """A device says that a training of its own ended then."""
        self.trained[origin] = max(stop, self.trained.get(origin, 0.0))

    def noted(self, origin: int, kind: str, data: Mapping[str, Any]) -> None:
        """A host notes something for the record. Others were late if the cloud or their parent says so."""
        if kind == "overdue" and isinstance(data.get("children"), list | tuple):
            for child in data["children"]:
                if isinstance(child, int) and self._may_tell(origin, child):
                    self.late[host_of(child)] += 1
        elif kind == "refused" and not self._directory.is_device(origin):
            who, untold = str(data.get("who")), data.get("untold", 0)
            everybody = self._present.get(origin, ("", "cloud", 0))[1] == "cloud"
            for host, (name, _, via) in self._present.items():
                # an edge is asked about those below it only: it could blame anybody
                if who in (name, f"host {host}") and (everybody or via == origin):
                    self.refused[host] += 1 + (untold if isinstance(untold, int) and 0 < untold < 1 << 32 else 0)

    def _may_tell(self, origin: int, child: int) -> bool:
        parent = self._directory.parent(child)
        return origin == self._directory.cloud or (parent is not None and host_of(parent) == origin)

    # -- rounds and scores -------------------------------------------------------------------------------------

    def round_closed(self, number: int, devices: int) -> None:
        """The run has closed a round."""
        self.lines.append(("round closed", {"round": number, "devices": devices}))

    def evaluated(self, number: int, time: float, row: Mapping[str, float]) -> None:
        """Models were evaluated."""
        scores = {name: value for name, value in row.items() if math.isfinite(value)}
        self.evaluations.append(ScoredRound(number, time, scores))
        self.lines.append(("evaluated", {"round": number, **{name: round(v, 4) for name, v in scores.items()}}))

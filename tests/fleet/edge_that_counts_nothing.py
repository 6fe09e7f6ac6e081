"""A plugin that makes its edge dishonest: it does its work, and never says that it has closed a round."""

from __future__ import annotations

from espalier.core.address import Address
from espalier.fleet.coordinator import member


def _say_nothing(self: member.Participant, node: Address, progress: int) -> None:
    """Let the run wait."""


member.Participant.close = _say_nothing  # type: ignore[method-assign]

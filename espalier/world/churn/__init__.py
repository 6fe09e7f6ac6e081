"""Who comes and goes: devices that join and leave, hosts that fail and restart."""

from dataclasses import dataclass

from espalier.world.churn.base import BoundChurn, Churn, Combined
from espalier.world.churn.renewal import Failures, TwoState
from espalier.world.churn.scheduled import ChurnEvent, Scheduled
from espalier.world.shape import Shape


@dataclass(frozen=True)
class NoChurn(Churn, kind="none"):
    """Everybody is there, always."""

    def bind(self, shape: Shape) -> BoundChurn:
        """Return no churn."""
        return BoundChurn(shape)


__all__ = ["BoundChurn", "Churn", "ChurnEvent", "Combined", "Failures", "NoChurn", "Scheduled", "TwoState"]

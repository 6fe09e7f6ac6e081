"""A method of your own in one file: HierFAVG whose cloud weighs edges by the square root of their samples.

python own_method.py
espalier run moving_fleet.toml --plugin own_method.py --method fair
"""

from dataclasses import dataclass
from typing import ClassVar

import espalier
from espalier import Arrival, Merge, Method, View
from espalier.testing import check


@dataclass(frozen=True)
class RootSamples(Merge, kind="root_samples"):
    """Weigh a report by a power of its samples: 1 is FedAvg's weight, 0 counts every edge alike."""

    power: float = 0.5

    def weight(self, view: View, arrival: Arrival, group: str) -> float:
        """Return the weight of a report, before all are scaled to sum to 1."""
        return arrival.report.samples.get(group, 0) ** self.power


@dataclass(frozen=True)
class Fair(Method, kind="fair"):
    """HierFAVG whose cloud weighs edges by a power of their samples, so that large edges do not drown others."""

    title: ClassVar[str] = "Fair"
    citation: ClassVar[str] = "this file"

    power: float = 0.5

    def merge(self) -> Merge:
        """Return the cloud's merge; the edges keep HierFAVG's."""
        return RootSamples(self.power)


if __name__ == "__main__":
    setting = {
        "task": {"model": "mlp", "model_options": {"hidden": [32]}},
        "partition": {"kind": "dirichlet", "alpha": 0.3},
        "fleet": {"devices": 20, "edges": 4},
        "training": {"lr": 0.1, "updates": 2},
        "stop": {"rounds": 5},
    }
    runs = espalier.compare(["hierfavg", "fair"], setting, seeds=range(3))
    print(runs.verdict())
    for promise in ("determinism", "resume", "fixed_point"):  # espalier.testing.CHECKS has them all
        check("fair", promise)
        print("kept:", promise)

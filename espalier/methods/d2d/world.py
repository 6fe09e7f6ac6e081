"""The world that the D2D paper describes, as the preset ``d2d``. One step is one virtual second."""

from __future__ import annotations

from typing import Literal

from espalier.world.compute import Compute, Rate, Redrawn
from espalier.world.links import Pairs
from espalier.world.world import World, register_preset


@register_preset("d2d")
def paper_world(
    experiment: Literal["1a", "1b", "2", "3"] = "1b",
    task: Literal["image", "magnet"] = "image",
    intermittent: bool = False,
) -> World:
    """The D2D paper's Table 4: links and compute redrawn per global round, the server's links ideal.

    A model is m = 10 units; λ in whole units per step, so that a model takes 2 to 10 steps (D11). The
    times to and from the server are not simulated (D9).

    Args:
        experiment: Set 1a has equal links, 1b and 2 links of 1 to 5, 3 also varies the compute.
        task: The magnet task runs 80 batches per step, images 10 (Set 3: 5 to 15).
        intermittent: Set 3's "0/1": λ from 0 on, so that a sixth of the links are absent.
    """
    low, high = (3.0, 3.0) if experiment == "1a" else (1.0, 5.0)
    compute: Compute = Rate(10.0, 10.0) if task == "image" else Rate(80.0, 80.0)
    if experiment == "3" and task == "image":
        compute = Redrawn(Rate(5.0, 15.0, whole=True))
    throughput = (0.0 if intermittent else low, high)
    return World(compute=compute, links=Pairs(throughput, whole=True, model_units=10.0))

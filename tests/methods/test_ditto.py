from __future__ import annotations

from typing import Any

import torch

from espalier.core.device import Device
from espalier.core.messages import ALL, Arrived, Order, Serve, Train, Trained
from espalier.core.policies import Pace
from espalier.core.store import Ref
from espalier.experiment import Experiment
from espalier.methods.ditto import WithPersonal
from espalier.simulator.runner import Runner
from espalier.testing import BASE
from tests.core.fakes import SmallFleet, reports
from tests.methods.test_equivalences import final


def run(method: str | dict[str, Any], **changes: Any) -> Runner:
    runner = Runner(Experiment.build({**BASE, **changes}).only(method, 0), None)
    runner.run()
    return runner


def test_an_order_is_two_trainings() -> None:
    fleet = SmallFleet({0: 10, 10: 20})
    node = Device(0, WithPersonal(lam=0.3), Pace(), fleet)
    for number, start in ((1, Ref(7)), (2, Ref(9))):
        (shared,) = node.on(Arrived(Order(number, 10, 0, {ALL: Ref(7)}, 2, 0, 0, 0.0)), 0.0)
        assert isinstance(shared, Train) and (shared.start, shared.mu, shared.follows) == (Ref(7), 0.0, False)
        (own,) = node.on(Trained(shared.token, Ref(8), 1.0, 2), 1.0)
        assert isinstance(own, Train) and (own.start, own.anchor, own.mu, own.follows) == (start, Ref(7), 0.3, True)
        serve, send = node.on(Trained(own.token, Ref(9), 1.0, 2), 2.0)
        assert serve == Serve({ALL: Ref(9)}) and reports([send])[0].models == {ALL: Ref(8)}


def test_the_shared_model_is_hierfavgs_to_the_bit() -> None:
    assert torch.equal(final({"name": "ditto", "lam": 0.5}), final("hierfavg"))


def test_without_a_pull_the_personal_model_is_trained_alone() -> None:
    # From the first order on: Standalone with the batches of the second training of each order.
    sim = run({"name": "ditto", "lam": 0.0}, fleet={"devices": 6, "edges": 2}).simulation
    for device in range(6):
        vector = sim.ledger.vector(sim.served[device][ALL])
        assert not torch.equal(vector, sim.ledger.vector(sim.served[sim.fleet.cloud][ALL]))
    far = run({"name": "ditto", "lam": 5.0}, fleet={"devices": 6, "edges": 2}).simulation

    def apart(found: Any) -> float:
        shared = found.ledger.vector(found.served[found.fleet.cloud][ALL])
        return float(sum((found.ledger.vector(found.served[d][ALL]) - shared).norm() for d in range(6)))

    assert apart(far) < apart(sim)


def test_two_trainings_take_twice_the_time() -> None:
    one, two = (run(m).simulation.usage.seconds["train"].sum() for m in ("hierfavg", "ditto"))
    assert abs(two / one - 2.0) < 1e-9

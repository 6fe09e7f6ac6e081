from __future__ import annotations

import torch

from espalier.core.messages import ALL
from espalier.testing import BASE
from tests.methods.test_ditto import run

FLEET = {"devices": 6, "edges": 2}


def test_only_the_representation_is_shared() -> None:
    sim = run("fedrep", fleet=FLEET).simulation
    spec, initial = sim.task.spec, sim.task.initial(sim.seed, 0)
    (a, b), *_ = head = spec.spans(spec.last_layer())
    assert len(head) == 1 and b == spec.size
    shared = sim.ledger.vector(sim.served[sim.fleet.cloud][ALL])
    # nobody's head is in what the servers have
    torch.testing.assert_close(shared[a:b], initial[a:b])
    assert not torch.allclose(shared[:a], initial[:a])
    heads = torch.stack([sim.ledger.vector(sim.served[d][ALL])[a:b] for d in range(6)])
    assert all(not torch.equal(heads[0], other) for other in heads[1:])


def test_bytes_are_those_of_the_representation() -> None:
    whole, part = (run(m, fleet=FLEET).simulation for m in ("hierfavg", "fedrep"))
    spec = part.task.spec
    (a, _), *_ = spec.spans(spec.last_layer())
    carried = {k: v for k, v in whole.usage.bytes.items() if k[2] == "model"}
    for key, nbytes in carried.items():
        assert part.usage.bytes[key] * spec.n_float == nbytes * a


def test_with_nothing_shared_it_is_standalone_to_the_bit() -> None:
    alone = run("standalone", fleet=FLEET).simulation
    sim = run({"name": "fedrep", "head": ["*"]}, fleet=FLEET).simulation
    assert alone.round == sim.round == BASE["stop"]["rounds"]
    for device in range(6):
        assert torch.equal(sim.ledger.vector(sim.served[device][ALL]), alone.ledger.vector(alone.served[device][ALL]))
    assert not any(k[2] == "model" for k in sim.usage.bytes)


def test_with_everything_shared_it_is_hierfavg() -> None:
    # No parameter is called so: the head is empty, and the representation is all there is.
    sim = run({"name": "fedrep", "head": ["none"], "body_updates": 2}, fleet=FLEET).simulation
    other = run("hierfavg", fleet=FLEET).simulation
    one, two = (s.ledger.vector(s.served[s.fleet.cloud][ALL]) for s in (sim, other))
    # Reports of one instant come, and are added, in another order: the last bit may be rounded otherwise.
    torch.testing.assert_close(one, two, rtol=0, atol=5e-7)

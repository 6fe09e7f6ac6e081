"""IFCA: devices choose by training loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.core.memory import Memory
from espalier.core.messages import ALL
from espalier.core.method import make
from espalier.core.store import Ref
from espalier.methods.ifca import AllOrOwn, Choosing, Chosen, choice
from espalier.testing import check
from tests.methods.planted import planted, traffic
from tests.methods.test_equivalences import final
from tests.policies.fakes import FakeEnv, arrival, local_view, order, view


def test_choice_by_hand() -> None:
    # Models 0 and 10, loss (x - theta)^2: x = 1 gives 1, 81; x = 9 gives 81, 1; x = 4 gives 16, 36.
    assert [choice([(x - 0) ** 2, (x - 10) ** 2]) for x in (1, 9, 4)] == [0, 1, 0]
    assert choice([float("nan"), 3.0, 3.0]) == 1


def test_a_device_asks_for_losses_only_if_it_has_a_choice() -> None:
    local, seen = Choosing(), local_view()
    both = order({"0": Ref(4), "1": Ref(5)})
    # "losses" is the statistic of the device's training data: no test set is involved.
    assert local.question(seen, both) == "losses"
    assert local.question(seen, order({"1": Ref(5)})) is None
    left = local.answer(seen, both, {"losses": [2.0, 1.0]})
    assert left.models == {"1": Ref(5)}
    # The choice is told once: four bytes.
    assert local.done(seen, left, {"": Ref(6)}).stats == {"choice": 1}
    assert local.done(seen, left, {"": Ref(6)}).stats == {}


def test_a_device_chooses_when_its_last_choice_is_old() -> None:
    env, memory = FakeEnv(), Memory()
    env.groups = {1: "0", 2: "1"}
    models = {"0": Ref(4), "1": Ref(5)}
    down = AllOrOwn(every=10)

    def sent(device: int, clock: int) -> dict[str, Ref]:
        return down.send(view(env, models, clock=clock, memory=memory), device)

    assert sent(1, 3) == models
    assert sent(1, 10) == {"0": Ref(4)}, "seven rounds ago, whatever the round's number"
    # One that was not drawn for a while chooses as soon as it is, and then not for ten rounds.
    assert sent(1, 17) == models
    assert sent(1, 26) == {"0": Ref(4)}
    assert sent(2, 17) == models, "never asked before"


def test_initial_models_are_drawn_until_each_attracts_some() -> None:
    env = FakeEnv(devices=range(4))
    structure = Chosen(clusters=2, least=0.25)
    seen = view(env, {"0": env.store.initial(0), "1": env.store.initial(1)})
    survey = structure.survey(seen)
    assert survey is not None and survey.ask == "losses"
    crowd = {d: arrival(d, {}, losses=[0.1, 0.9]) for d in range(4)}
    found = structure.arrange(seen, crowd)
    # All chose the first: initial models 2 and 3 are tried, and everybody is asked again.
    assert found is not None and found.again and found.models is not None
    assert [env.store.table[r][0].item() for r in found.models.values()] == [2.0, 3.0]
    split = {**crowd, 3: arrival(3, {}, losses=[0.9, 0.1])}
    assert structure.arrange(seen, split) is None
    assert structure.survey(seen) is None


def test_it_finds_planted_clusters() -> None:
    run = planted({"name": "ifca", "every": 1}, seed=1, stop={"rounds": 21})
    assert run.frame()["ari"].iloc[-1] == 1.0
    assert run.frame()["acc_device"].iloc[-1] > 0.85


def test_one_model_is_fedavg_to_the_bit() -> None:
    assert torch.equal(final({"name": "ifca", "clusters": 1}, "global-0"), final("fedavg"))


def test_bytes_by_hand() -> None:
    run = planted({"name": "ifca", "clusters": 3, "every": 2}, stop={"rounds": 3}, evaluate={"every": 1})
    size = run.meta("model_bytes")
    # Rounds 1 and 3 offer three models, round 2 one: 16 devices * (3 + 1 + 3); everybody's one comes back; two choices
    # of four bytes. Both hops.
    for tier in ("dev-edge", "edge-cloud"):
        assert traffic(run, tier, "model", "down") == 16 * 7 * size
        assert traffic(run, tier, "model", "up") == 16 * 3 * size
        assert traffic(run, tier, "ctrl", "up") == 16 * 2 * 4


def test_choosing_takes_time() -> None:
    world: Any = {"compute": {"kind": "constant", "seconds": 1.0}}
    changes: dict[str, Any] = {"world": world, "stop": {"rounds": 1}, "partition": {"kind": "iid", "fraction": 0.2}}
    plain = planted({"name": "ifca", "clusters": 1}, **changes).frame()["time"].iloc[-1]
    chosen = planted({"name": "ifca", "clusters": 3}, **changes).frame()["time"].iloc[-1]
    # Two epochs of training; the losses of three models cost a third of an epoch each.
    assert chosen == pytest.approx(plain * 1.5)


@pytest.mark.parametrize("name", ["resume", "join_and_leave", "fixed_point"])
def test_conformance_with_a_choice_every_round(name: str) -> None:
    check({"name": "ifca", "every": 1, "weighted": False, "least": 0.05, "redraws": 1}, name)


def test_a_model_nobody_chose_stays() -> None:
    env = FakeEnv()
    structure = Chosen()
    seen = view(env, {"0": Ref(1), "1": Ref(2)})
    structure.learn(seen, [arrival(3, {"1": Ref(9)})])
    found = structure.arrange(seen, {})
    assert found is not None and found.groups == {3: "1"} and found.models is None
    assert ALL not in seen.models


def test_impossible_values_are_refused() -> None:
    for options in ({"clusters": 0}, {"every": 0}, {"least": 0.5}, {"redraws": -1}, {"fraction": 2.0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            make("ifca", **options)

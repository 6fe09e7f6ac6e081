"""Secure aggregation between hosts: the sum is right whatever happens, and the edge's host sees no single model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from espalier.core.address import Address
from espalier.core.messages import Order, Train
from espalier.core.policies import Arrangement, Assignment, Contribution, Local, LocalView, Pace, Structure
from espalier.core.store import Ref
from espalier.core.view import Arrival, View
from espalier.fleet.node.events import Gone, Joined, Linked
from espalier.fleet.node.trainer import TrainingRequest, TrainingResult
from espalier.fleet.secure.aggregator import Gathering
from espalier.secure.masks import decode, encode
from tests.fleet.net import Net, OneMore, manifest

ROUNDS = 4
SECURE: dict[str, Any] = {"name": "hierfavg", "edge": {"merge": {"kind": "secure"}}}


def gathering(net: Net, edge: int) -> Gathering | None:
    """The newest sum of an edge."""
    found = list(net.engines[edge].sums._gatherings.values())
    return found[-1] if found else None


def until(net: Net, edge: int, stage: str) -> Gathering:
    """Let things happen until an edge's sum is at a stage."""
    for _ in range(5000):
        found = gathering(net, edge)
        if found is not None and found.stage == stage:
            return found
        if not net.step():
            net.idle()
    raise AssertionError(f"no sum got to {stage}")


def known_keys(net: Net, edge: int) -> set[bytes]:
    """The public keys that an edge knows."""
    return {
        k for s in net.engines[edge].sums._servers.values() for a in s.advertised.values() for k in (a.masks, a.seals)
    }


# -- the sum is right ------------------------------------------------------------------------------------------


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), trouble=st.sampled_from([0.0, 0.1, 0.3]))
def test_it_is_the_average_whatever_happens(quick: Path, seed: int, trouble: float) -> None:
    # Letters are lost, doubled and late, hosts are killed at any moment and go on from their journals: each round adds
    # 1/6 to each device's number, exactly once.
    net = Net(manifest(6, 2, ROUNDS, SECURE), quick / f"{seed}-{trouble}", seed, trouble)
    net.run()
    torch.testing.assert_close(net.model()[:6], torch.full((6,), ROUNDS / 6), atol=1e-6, rtol=0)
    assert not net.model()[6:].any()
    # 3 devices at each edge: two thirds of them (0.67, to be exact) are all three
    assert net.events("secure") == [{"group": "", "clients": 3, "reports": 3, "threshold": 3}] * (2 * ROUNDS)
    assert all(len(engine.store) <= 12 for engine in net.engines.values())


@pytest.mark.parametrize(
    ("method", "each"),
    [
        # flat: the cloud gets the sum of four devices
        ({"name": "fedavg", "root": {"merge": "secure"}}, 1 / 4),
        # both tiers: the cloud gets nothing but a sum of two sums
        ({"name": "hierfavg", "edge": {"merge": "secure"}, "root": {"merge": "secure"}}, 1 / 4),
        # an edge's two rounds add 1/2 + 1/2 to each of its devices, the cloud's average halves that
        ({"name": "hierfavg", "kappa2": 2, "edge": {"merge": "secure"}}, 2 / 4),
        # changes of length 1 are clipped to 1/2 before they are hidden
        ({**SECURE, "local": {"kind": "private", "clip": 0.5}}, 1 / 8),
    ],
)
def test_other_tiers(quick: Path, method: Any, each: float) -> None:
    net = Net(manifest(4, 2, ROUNDS, method), quick, trouble=0.1)
    net.run()
    torch.testing.assert_close(net.model()[:4], torch.full((4,), ROUNDS * each), atol=1e-6, rtol=0)


@dataclass(frozen=True)
class Telling(Local, kind="test_telling"):
    """Reports twice its change beside its model, and minus its change; ``but`` one does not, or under another name."""

    but: int = -1
    other: tuple[str, ...] = ()

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        (start,), (end,), store = order.models.values(), models.values(), view.env.store
        beside = {name: store.combine([(c, end), (-c, start)]) for name, c in (("twice", 2.0), ("minus", -1.0))}
        if view.me == self.but:
            beside = dict.fromkeys(self.other, end)
        return replace(super().done(view, order, models), auxiliary=beside)


@pytest.mark.parametrize("root", [{}, {"root": {"merge": "secure"}}])
def test_vectors_beside_a_model_are_in_the_same_sum(quick: Path, root: Any) -> None:
    net = Net(manifest(4, 2, ROUNDS, {**SECURE, **root, "local": {"kind": "test_telling"}}), quick, trouble=0.1)
    net.run()
    torch.testing.assert_close(net.model()[:4], torch.full((4,), ROUNDS / 4), atol=1e-6, rtol=0)
    engine = net.engines[net.cloud]
    told = engine.nodes[net.cloud].state.auxiliary
    for name, value in (("twice", 2 / 4), ("minus", -1 / 4)):
        vector = engine.store.vector(told[name])
        torch.testing.assert_close(vector[:4], torch.full((4,), value), atol=1e-6, rtol=0)


@pytest.mark.parametrize("other", [(), ("aaa",), ("aaa", "bbb")])
def test_one_device_does_not_decide_what_is_beside_models(quick: Path, other: tuple[str, ...]) -> None:
    net = Net(manifest(6, 1, 2, {**SECURE, "local": {"kind": "test_telling", "but": 0, "other": list(other)}}), quick)
    net.run()
    engine = net.engines[net.cloud]
    told = engine.nodes[net.cloud].state.auxiliary
    assert sorted(told) == ["minus", "twice"]
    # who hides as many vectors as the others is in the sum; else the sum is that of the others
    among = 6 if len(other) == 2 else 5
    torch.testing.assert_close(net.model()[1:6], torch.full((5,), 2 / among), atol=1e-6, rtol=0)
    torch.testing.assert_close(engine.store.vector(told["twice"])[1:6] > 0, torch.ones(5, dtype=torch.bool))


@dataclass(frozen=True)
class Halves(Structure, kind="test_halves"):
    """Even devices share one model, odd ones another."""

    @dataclass
    class State:
        done: bool = False

    def arrange(self, view: View, answers: Mapping[Address, Arrival]) -> Arrangement | None:
        if view.state(self).done:
            return None
        view.state(self).done = True
        model = view.models[""]
        return Arrangement(groups={d: "ab"[d % 2] for d in view.env.devices()}, models={"a": model, "b": model})


def test_groups_have_sums_of_their_own(quick: Path) -> None:
    # One edge, devices 0 and 2 in group a, 1 and 3 in b: each round adds 1/2 to a's numbers 0 and 2 and to b's 1 and 3.
    net = Net(manifest(4, 1, ROUNDS, {**SECURE, "root": {"structure": "test_halves"}}), quick, trouble=0.1)
    net.run()
    engine = net.engines[net.cloud]
    a, b = (engine.store.vector(engine.served[net.cloud][g])[:4] for g in "ab")
    torch.testing.assert_close(a, torch.tensor([0.5, 0, 0.5, 0]) * ROUNDS, atol=1e-6, rtol=0)
    torch.testing.assert_close(b, torch.tensor([0, 0.5, 0, 0.5]) * ROUNDS, atol=1e-6, rtol=0)
    assert {(e["group"], e["clients"]) for e in net.events("secure")} == {("a", 2), ("b", 2)}


def test_counters_are_no_secret(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The model's last number is an integer buffer: device d counts 10 + d trainings per round. It comes from the first
    # device, and not through the masks.
    honest = OneMore.train

    def counting(self: OneMore, request: TrainingRequest) -> TrainingResult:
        learnt = honest(self, request)
        learnt.vector[63] += 10 + request.device
        return learnt

    monkeypatch.setattr(OneMore, "train", counting)
    made = manifest(4, 1, 2, SECURE)
    entries = (("w", (63,), "float32"), ("n", (1,), "int64"))
    net = Net(replace(made, card=replace(made.card, entries=entries, n_params=63, order=("w", "n"))), quick)
    net.run()
    torch.testing.assert_close(net.model()[:4], torch.full((4,), 2 / 4), atol=1e-6, rtol=0)
    assert float(net.model()[63]) == 20


# -- what the edge's process sees ------------------------------------------------------------------------------


def pieces(model: torch.Tensor, samples: int) -> Iterator[bytes]:
    """The first 32 bytes of a model in every form in which it could lie about."""
    numbers = model.numpy()
    for form in (numbers, numbers.astype("<f8"), samples * numbers.astype("<f8"), encode(samples * numbers)):
        yield form.tobytes()[:32]


def test_the_edges_host_never_sees_a_single_model(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: dict[int, torch.Tensor] = {}

    def scatter(self: OneMore, request: TrainingRequest) -> TrainingResult:
        rng = torch.Generator().manual_seed(request.device + 100 * request.number)
        learnt[request.device] = request.work.start + torch.randn(64, generator=rng)
        return TrainingResult(learnt[request.device], 0.0, None, 1)

    monkeypatch.setattr(OneMore, "train", scatter)
    net = Net(manifest(4, 1, 1, SECURE), quick)
    edge, came, kept, held = net.engines[4], [], set(), {}
    take = edge.take

    def watched(items: Any) -> Any:
        for item in items:
            parts = getattr(item, "parts", ())
            came.extend((getattr(item, "origin", None), bytes(p.data)) for p in parts)
            kept.update(bytes(p.data) for p in parts)
            if hasattr(item, "content"):
                kept.add(item.content)
        effects = take(items)
        kept.update(path.read_bytes() for path in (quick / "4").glob("node.sqlite*"))
        held.update({name: value.clone() for name, value in edge.store._values.items()})
        return effects

    monkeypatch.setattr(edge, "take", watched)
    net.run()
    # The sum is right: every device has 10 samples.
    mean = torch.stack([learnt[d] for d in range(4)]).double().mean(0)
    torch.testing.assert_close(net.model().double(), mean, atol=1e-6, rtol=0)
    # Of no device's model is any piece to be found: not in what came, not in its journal, not in its memory.
    everything = [*kept, *(v.numpy().tobytes() for v in held.values())]
    for device in range(4):
        for piece in pieces(learnt[device], 10):
            assert not any(piece in seen for seen in everything)
    # This search finds what is there: the sum, which goes up to the cloud.
    assert any(net.model().numpy().tobytes()[:32] in seen for seen in everything)
    # What each device sent is 64 masked numbers and its masked weight, and nothing like its model.
    reports = [(origin, data) for origin, data in came if origin is not None and origin < 4]
    assert sorted(origin for origin, _ in reports) == [0, 1, 2, 3]
    for _, data in reports:
        numbers = decode(np.frombuffer(data, dtype="<u8").astype(np.uint64))
        assert len(numbers) == 65
        assert np.median(np.abs(numbers)) > 1e10
        for model in learnt.values():
            assert abs(np.corrcoef(numbers[:64], model.numpy())[0, 1]) < 0.6


# -- children that die -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "merged"),
    [
        # before it has told its keys: three of four go on, without it from the beginning
        ("keys", {"clients": 4, "reports": 3, "threshold": 3}),
        # while shares are dealt out: the same
        ("shares", {"clients": 4, "reports": 3, "threshold": 3}),
        # after that: its masks are recovered
        ("numbers", {"clients": 4, "reports": 3, "threshold": 3}),
        # after it has reported: it is in the sum, though it does not help to unmask it
        ("help", {"clients": 4, "reports": 4, "threshold": 3}),
    ],
)
def test_a_device_that_dies_is_made_up_for(quick: Path, stage: str, merged: dict[str, int]) -> None:
    net = Net(manifest(4, 1, 2, SECURE), quick)
    until(net, 4, stage)
    net.leave(0)
    for _ in range(3000):
        net.forget(0)
        if net.coordinator.finished:
            break
        if not net.step():
            net.idle()
    # The second round has three devices. What device 0 had learnt is in the sum only if it had reported it.
    first = torch.tensor([1, 1, 1, 1.0]) / 4 if stage == "help" else torch.tensor([0, 1, 1, 1.0]) / 3
    torch.testing.assert_close(net.model()[:4], first + torch.tensor([0, 1, 1, 1.0]) / 3, atol=1e-6, rtol=0)
    later = {"clients": 3, "reports": 3, "threshold": 3}
    assert net.events("secure") == [{"group": "", **merged}, {"group": "", **later}]


@pytest.mark.parametrize("stage", ["keys", "numbers", "help"])
def test_with_too_few_the_model_stays(quick: Path, stage: str) -> None:
    # Two of four die: the others are fewer than three.
    net = Net(manifest(4, 1, 1, SECURE), quick)
    until(net, 4, stage)
    for device in (0, 1):
        net.leave(device)
    for _ in range(3000):
        for device in (0, 1):
            net.forget(device)
        if net.coordinator.finished:
            break
        if not net.step():
            net.idle()
    assert net.coordinator.finished
    assert not net.model().any()
    (note,) = net.events("secure")
    assert (note["clients"], note["threshold"]) == (4, 3)
    assert note.get("why") == {
        "keys": "2 of 4 shared their keys", "numbers": None, "help": "2 helped to take the masks off",
    }[stage]  # fmt: skip
    # the edge has not kept anybody waiting for ever, nor what nobody can use
    assert len(net.engines[4].store) <= 3


def test_a_sum_of_one_hides_nothing(quick: Path) -> None:
    net = Net(manifest(1, 1, 1, SECURE), quick)
    net.run()
    assert not net.model().any()
    assert net.events("secure") == [
        {"group": "", "clients": 1, "reports": 0, "threshold": 2, "why": "1 of 1 shared their keys"}
    ]


def test_a_device_without_memory_is_a_newcomer(quick: Path) -> None:
    # Device 1 comes back under a new incarnation after it has shared its keys: it is lost for this sum, the
    # next has new keys.
    net = Net(manifest(4, 1, 2, SECURE), quick)
    until(net, 4, "numbers")
    net.forget(1)
    net.incarnations[1] += 1
    net.kill(1, forget=True)
    net.join(1, 4, stamp=2)
    net.run()
    assert [e["reports"] for e in net.events("secure")] == [3, 4]
    expected = torch.tensor([1, 0, 1, 1]) / 3 + torch.full((4,), 1 / 4)
    torch.testing.assert_close(net.model()[:4], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("stage", ["keys", "shares", "numbers", "help"])
def test_an_edge_without_memory_begins_anew(quick: Path, stage: str) -> None:
    # It loses its directory in the middle of a sum. Nothing of that sum is merged; the cloud orders it anew, and it
    # begins another one with the same devices, whose keys are new ones.
    net = Net(manifest(4, 1, 2, SECURE), quick)
    before, keys = until(net, 4, stage), known_keys(net, 4)
    net.wire = [w for w in net.wire if 4 not in w[:2]]
    net.incarnations[4] += 1
    net.kill(4, forget=True)
    net.give(4, Linked(net.member(net.cloud)))
    net.give(net.cloud, Joined([net.member(4, net.cloud, stamp=2)]))
    for device in range(4):
        net.join(device, 4, stamp=2)
    after = until(net, 4, "numbers")
    assert after.id != before.id
    assert known_keys(net, 4)
    assert not known_keys(net, 4) & keys
    net.run()
    torch.testing.assert_close(net.model()[:4], torch.full((4,), 2 / 4), atol=1e-6, rtol=0)
    assert [(e["reports"], "why" in e) for e in net.events("secure")] == [(4, False)] * 2


def test_a_model_without_sense_stays_at_home(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = OneMore.train

    def broken(self: OneMore, request: TrainingRequest) -> TrainingResult:
        learnt = honest(self, request)
        return TrainingResult(learnt.vector * float("nan"), 0.0, None, 1) if request.device == 2 else learnt

    monkeypatch.setattr(OneMore, "train", broken)
    net = Net(manifest(4, 1, 2, SECURE), quick)
    net.run()
    expected = torch.tensor([1, 1, 0, 1.0]) * 2 / 3
    torch.testing.assert_close(net.model()[:4], expected, atol=1e-6, rtol=0)
    assert [(e["clients"], e["reports"]) for e in net.events("secure")] == [(4, 3)] * 2


@dataclass(frozen=True)
class Punctual(Pace, kind="test_punctual"):
    """A round closes after a minute."""

    def deadline(self, view: View, work: Mapping[Address, Assignment]) -> float | None:
        return 60.0


def test_a_round_that_closes_in_time_leaves_out_who_is_late(quick: Path) -> None:
    # Device 0 has shared its keys and trains for longer than a minute: its masks are recovered, and its report, which
    # nobody can unmask any more, is dropped when it comes.
    net = Net(manifest(4, 1, 2, {**SECURE, "edge": {"merge": "secure", "pace": "test_punctual"}}), quick)
    late: list[tuple[int, Any]] = []
    while not net.events("secure"):
        late += [(h, w) for h, w in net.jobs if h == 0]
        net.jobs = [(h, w) for h, w in net.jobs if h != 0]
        if not net.step():
            net.idle()
    assert net.now >= 60
    net.jobs += late
    net.run()
    first = net.events("secure")[0]
    assert (first["clients"], first["reports"]) == (4, 3)
    torch.testing.assert_close(net.model()[:4].sum(), torch.tensor(2.0), atol=1e-6, rtol=0)
    assert {(e["child"], e["why"]) for e in net.events("dropped")} <= {(0, "late")}


def test_a_device_that_moves_takes_part_at_its_new_edge(quick: Path) -> None:
    # Device 0 leaves edge 6 (devices 0, 2, 4) for edge 7 (1, 3, 5) while it trains: what it has learnt is hidden for
    # edge 6's sum and of no use elsewhere. Edge 6 sums up two; from the next round on edge 7 has four.
    merge = {"kind": "secure", "threshold": 0.51}
    net = Net(manifest(6, 2, 2, {**SECURE, "edge": {"merge": merge}}), quick)
    while not any(host == 0 and isinstance(work.action, Train) for host, work in net.jobs):
        net.step()
    training = [(h, w) for h, w in net.jobs if h == 0]
    net.jobs = [(h, w) for h, w in net.jobs if h != 0]
    until(net, 6, "numbers")
    net.jobs += training
    net.join(0, 7, stamp=2)
    net.give(6, Gone([0]))
    net.run()
    assert [(e["child"], "cannot be hidden" in e["why"]) for e in net.events("dropped")] == [(0, True)]
    assert sorted((e["clients"], e["reports"]) for e in net.events("secure")) == [(2, 2), (3, 2), (3, 3), (4, 4)]
    # first round: 1/2 each for 2 and 4, 1/3 each for 1, 3 and 5; samples below the edges are 20 and 40 by then, so
    # 1/3 and 2/3 of that. Second round: the same weights, 1/2 for 2 and 4, 1/4 for the four others.
    first = torch.tensor([0, 2 / 9, 1 / 6, 2 / 9, 1 / 6, 2 / 9])
    second = torch.tensor([1 / 6] * 6)
    torch.testing.assert_close(net.model()[:6], first + second, atol=1e-6, rtol=0)

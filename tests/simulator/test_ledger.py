from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from espalier.core.codec import pack, unpack
from espalier.core.errors import TrainingError
from espalier.core.messages import Train
from espalier.core.params import ParamSpec
from espalier.core.store import Ref
from espalier.simulator.jobs import Job, Outcome
from espalier.simulator.ledger import RECIPE_BYTES, Ledger
from espalier.simulator.reduction import FAN, RunningMerge

SPEC = ParamSpec.of(nn.Linear(2, 1, bias=False))


class Bench:
    """A ledger whose 'training' adds the device's number plus one, and which counts what it computes."""

    def __init__(self, limit: int = 20_000) -> None:
        self.held: list[Ref] = []
        self.waves: list[list[int]] = []
        self.most = 0
        self.ledger = Ledger(
            SPEC, self.compute, lambda i: torch.full((2,), float(i)), self.roots, pending_bytes=limit * RECIPE_BYTES
        )  # fmt: skip

    def roots(self, found: set[int]) -> None:
        found.update(int(r) for r in self.held)

    def compute(
        self, jobs: Sequence[Job], vector: Callable[[Ref], Tensor], memory: Callable[[Ref], Tensor | None]
    ) -> Iterator[Outcome]:
        self.waves.append([j.device for j in jobs])
        for job in jobs:
            if job.device == 999:
                yield Outcome(torch.tensor([float("nan"), 0.0]), 0.5, None)
                continue
            yield Outcome(vector(job.work.start) * 1.0 + job.device + 1, 0.5, None)
            self.most = max(self.most, len(self.ledger._tables.values))

    def train(self, device: int, start: Ref) -> Ref:
        return self.ledger.submit(Job(device, 0, Train(start=start)))


def test_nothing_is_computed_until_someone_looks() -> None:
    bench = Bench()
    start = bench.ledger.initial()
    first = [bench.train(d, start) for d in range(4)]
    mean = bench.ledger.combine([(0.25, r) for r in first])
    second = [bench.train(d, mean) for d in range(4)]
    assert bench.ledger.computed == 0
    # mean = (1 + 2 + 3 + 4) / 4 = 2.5; device 3 then adds 4
    assert bench.ledger.vector(second[3]).tolist() == [6.5, 6.5]
    # the first wave is all of what the mean needs; of the second only what was wanted
    assert bench.waves == [[0, 1, 2, 3], [3]]
    assert (bench.ledger.ordered, bench.ledger.computed) == (8, 5)


def test_abandoned_work_is_never_computed_and_forgotten() -> None:
    bench = Bench()
    start = bench.ledger.initial()
    wanted, abandoned = bench.train(0, start), bench.train(1, start)
    bench.held = [wanted]
    bench.ledger.young.clear()
    assert bench.ledger.vector(wanted)[0] == 1.0
    assert bench.ledger.computed == 1
    with pytest.raises(TrainingError, match="no node held it"):
        bench.ledger.vector(abandoned)


def test_a_round_of_many_devices_is_not_computed_before_someone_looks() -> None:
    bench = Bench()
    ledger = Ledger(SPEC, bench.compute, lambda i: torch.full((2,), float(i)), bench.roots)
    start = ledger.initial()
    bench.held = [ledger.submit(Job(d, 0, Train(start=start))) for d in range(25_000)]
    assert ledger.computed == 0 and not bench.waves


def test_merging_streams() -> None:
    bench = Bench()
    start = bench.ledger.initial()
    refs = [bench.train(d, start) for d in range(500)]
    total = bench.ledger.combine([(1 / 500, r) for r in refs])
    bench.ledger.young.clear()
    bench.held = [total]
    assert bench.ledger.vector(total)[0] == pytest.approx(sum(range(1, 501)) / 500)
    assert bench.most <= FAN  # a node's terms are added together


def test_a_chain_of_mixtures_holds_models_not_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many devices under one asynchronous cloud: each version waits for the one before, as a model (float32)."""
    alive: set[int] = set()
    most: list[int] = []

    class Counted(RunningMerge):
        def __init__(self, spec: ParamSpec, terms: int) -> None:
            super().__init__(spec, terms)
            alive.add(id(self))
            most.append(len(alive))

        def result(self, fallback: Tensor | None) -> Tensor:
            alive.discard(id(self))
            return super().result(fallback)

    monkeypatch.setattr("espalier.simulator.wave.RunningMerge", Counted)
    bench = Bench()
    start = version = bench.ledger.initial()
    trained = [bench.train(d, start) for d in range(20)]
    for model in reversed(trained):  # who was ordered last reports first
        version = bench.ledger.combine([(0.5, version), (0.5, model)])
    # 0.5 v + 0.5 (d + 1) for d = 19 … 0
    expected = 0.0
    for device in range(19, -1, -1):
        expected = 0.5 * expected + 0.5 * (device + 1)
    assert bench.ledger.vector(version).tolist() == pytest.approx([expected, expected])
    assert len(most) == 20 and max(most) == 1


def test_a_model_that_is_not_finite_is_left_out() -> None:
    bench = Bench()
    start = bench.ledger.initial(2)
    refs = [bench.train(d, start) for d in (0, 999, 1)]
    merged = bench.ledger.combine([(0.5, refs[0]), (0.25, refs[1]), (0.25, refs[2])], fallback=start)
    # the others' weights .5 and .25 are scaled to 2/3 and 1/3: 3 * 2/3 + 4 * 1/3
    assert bench.ledger.vector(merged)[0] == pytest.approx(10 / 3)
    alone = bench.ledger.combine([(0.5, refs[1]), (0.5, refs[1])], fallback=start)
    assert bench.ledger.vector(alone).tolist() == [2.0, 2.0]
    hopeless = bench.ledger.combine([(0.5, refs[1]), (0.5, refs[1])])
    with pytest.raises(TrainingError, match="learning rate"):
        bench.ledger.vector(hopeless)


def test_the_same_term_twice_and_the_fallback_among_the_terms() -> None:
    bench = Bench()
    start = bench.ledger.initial(1)
    a = bench.train(0, start)
    both = bench.ledger.combine([(0.25, a), (0.5, start), (0.25, a)], fallback=a)
    assert bench.ledger.vector(both)[0] == pytest.approx(0.5 * 2 + 0.5 * 1)


def test_saved_and_restored_ends_the_same() -> None:
    ends = []
    for interrupted in (False, True):
        bench = Bench()
        ref = bench.ledger.initial()
        for d in range(5):
            ref = bench.ledger.combine([(0.5, ref), (0.5, bench.train(d, ref))])
            if d == 2:
                bench.held = [ref]
                if interrupted:
                    plain, tensors = bench.ledger.save()
                    again = Bench()
                    again.ledger.restore(unpack(pack(plain)), {k: v.clone() for k, v in tensors.items()})
                    bench = again
        ends.append(bench.ledger.vector(ref))
        assert bench.ledger.computed == 5
    assert torch.equal(*ends)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_moment_of_looking_changes_nothing(data: st.DataObject) -> None:
    """An asynchronous history with looks at random moments equals the one with a single look at the end."""
    steps = data.draw(st.lists(st.tuples(st.integers(0, 5), st.floats(0.1, 0.9)), min_size=1, max_size=25))
    looks = data.draw(st.sets(st.integers(0, 24)))
    ends = []
    for look, limit in itertools.product((set(), looks), (20_000, 8)):
        bench = Bench(limit)
        model = bench.ledger.initial(3)
        bench.held = [model]
        stale = model
        for i, (device, rate) in enumerate(steps):
            bench.ledger.young.clear()
            update = bench.train(device, stale if i % 2 else model)
            stale = model
            model = bench.ledger.combine([(1 - rate, model), (rate, update)], fallback=model)
            bench.held = [model, stale]
            if i in look:
                bench.ledger.vector(model)
        ends.append(bench.ledger.vector(model))
    assert all(torch.equal(ends[0], e) for e in ends[1:])


def test_a_splice_is_a_model_but_for_some_places() -> None:
    # device 0 adds 1 to [0, 0], device 4 adds 5: [1, 1] with the second place of [5, 5]; nothing is computed before
    bench = Bench()
    start = bench.ledger.initial()
    base, part = bench.train(0, start), bench.train(4, start)
    mixed = bench.ledger.splice(base, part, ((1, 2),))
    total = bench.ledger.combine([(0.5, mixed), (0.5, start)])
    bench.held = [total, mixed]
    assert bench.waves == [] and bench.ledger.splice(base, part, ()) == base
    plain, tensors = bench.ledger.save()
    again = Bench()
    again.held = bench.held
    again.ledger.restore(unpack(pack(plain)), tensors)
    assert again.ledger.vector(total).tolist() == [0.5, 2.5]
    assert again.ledger.vector(mixed).tolist() == [1.0, 5.0]
    assert int(base) not in again.ledger._tables.values, "what nobody holds is dropped"


def test_an_average_has_the_average_loss() -> None:
    # every training of the bench has loss 0.5; a sum with a negative coefficient is no average
    bench = Bench()
    one, two = bench.train(0, bench.ledger.initial()), bench.train(1, bench.ledger.initial())
    mean, gap = (bench.ledger.combine([(0.25, one), (c, two)]) for c in (0.75, -0.25))
    bench.held = [mean, gap]
    assert bench.ledger.loss(mean) == 0.5 and math.isnan(bench.ledger.loss(gap))

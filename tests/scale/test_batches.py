from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.params import ParamSpec
from espalier.core.store import Ref
from espalier.scale.batches import Batch, cut, size_for
from espalier.simulator.jobs import Sum
from espalier.simulator.reduction import nodes
from espalier.training.models import build


def merge(*names: int) -> Sum:
    return Sum(tuple((1.0, Ref(n)) for n in sorted(names)))


def handed(batches: list[Batch]) -> set[int]:
    return {name for batch in batches for node in batch.nodes for _, name in node.terms}


def test_two_edges_of_ten_are_two_batches_of_one_finished_sum_each() -> None:
    # names are given as orders arrive: the edges' jobs lie between each other
    sums = {100: merge(*range(0, 20, 2)), 101: merge(*range(1, 20, 2))}
    batches = cut(dict.fromkeys(range(20), 1.0), sums, set(range(20)), 2, 64)
    assert [b.names for b in batches] == [tuple(range(0, 20, 2)), tuple(range(1, 20, 2))]
    assert [(n.sum, n.stop, n.of, len(n.terms)) for b in batches for n in b.nodes] == [
        (100, 10, 10, 10),
        (101, 10, 10, 10),
    ]


def test_batches_are_even_and_only_what_evens_them_out_comes_back_as_models() -> None:
    # twenty jobs of one sum for two workers: eights stay whole (0-7, 8-15), the last four are dealt two and two
    batches = cut(dict.fromkeys(range(20), 1.0), {50: merge(*range(20))}, set(range(20)), 2, 64)
    assert [b.names for b in batches] == [(*range(8), 16, 18), (*range(8, 16), 17, 19)]
    assert handed(batches) == set(range(16))


def test_long_jobs_weigh_more() -> None:
    # one job takes as long as the other seven together: it is a batch of its own
    weights = {0: 7.0, **{n: 1.0 for n in range(1, 8)}}
    batches = cut(weights, {}, frozenset(), 2, 64)
    assert sorted(sum(weights[n] for n in b.names) for b in batches) == [7.0, 7.0]


def test_a_job_that_something_else_needs_comes_back() -> None:
    sums = {50: merge(*range(8))}
    assert handed(cut(dict.fromkeys(range(8), 1.0), sums, set(range(8)), 1, 64)) == set(range(8))
    # the node is not whole without job 3, and no stretch of 0 … 2 or 4 … 7 is a node of its own
    assert handed(cut(dict.fromkeys(range(8), 1.0), sums, set(range(8)) - {3}, 1, 64)) == set()


def test_a_job_in_two_sums_is_away_only_if_both_can_do_without_it() -> None:
    names = dict.fromkeys(range(8), 1.0)
    both = {50: merge(*range(8)), 51: merge(*range(8))}
    assert handed(cut(names, both, set(range(8)), 1, 64)) == set(range(8))
    # 99 is no job of this wave, so the second sum's only node is not whole, and the first cannot be away either
    mixed = {50: merge(*range(8)), 51: merge(0, 1, 2, 99)}
    assert handed(cut(names, mixed, set(range(8)), 1, 64)) == set()


def test_two_models_are_not_worth_a_partial_sum_but_a_whole_one() -> None:
    pairs = {50: merge(0, 1), 51: merge(2, 3)}
    assert handed(cut(dict.fromkeys(range(4), 1.0), pairs, set(range(4)), 2, 64)) == set(range(4))


def test_large_models_go_in_batches_of_a_node() -> None:
    resnet = ParamSpec.of(build("resnet18", input_shape=(3, 32, 32), n_classes=10))
    small = ParamSpec.of(build("mlp", input_shape=(1, 8, 8), n_classes=10, hidden=[16]))
    assert (size_for(resnet, 20, 2), size_for(small, 20, 2)) == (8, 256)


def test_many_jobs_go_in_larger_nodes() -> None:
    resnet = ParamSpec.of(build("resnet18", input_shape=(3, 32, 32), n_classes=10))
    # four batches or more for each of two workers: 8 · 64 jobs are enough for nodes of 64, one fewer is not
    assert [size_for(resnet, n, 2) for n in (511, 512, 4095, 4096, 10**6)] == [8, 64, 64, 512, 512]
    names = range(1000)
    batches = cut(dict.fromkeys(names, 1.0), {5000: merge(*names)}, set(names), 2, 64)
    # 1000 = 15 · 64 + 40. A batch is 1000 / 15 = 66.7, or up to 70.8: the node of 64 and, for ten of them, four of the
    # 40 single jobs that no batch has room for as eights (64 + 8 = 72); the others have two or three.
    assert len(batches) == 15 and {len(b.names) for b in batches} == {66, 67}
    assert [len(node.terms) for b in batches for node in b.nodes] == [64] * 15


def test_a_sum_of_several_batches_is_left_in_pieces_that_make_it_up() -> None:
    sums = {5000: merge(*range(50)), 5001: merge(*range(50, 60)), 5002: merge(*range(60, 70), 99)}
    batches = cut(dict.fromkeys(range(70), 1.0), sums, set(range(70)) - {55}, 3, 8, join=True)
    pieces = sorted((node.stop, node) for b in batches for node in b.left)
    # of the three sums one has a job that something else needs, and one a term of another wave
    assert {node.sum for _, node in pieces} == {5000}
    assert [name for _, node in pieces for _, name in node.terms] == list(range(50))
    for stop, node in pieces:
        assert (stop - len(node.terms), stop) in list(nodes(stop - len(node.terms), stop, 50))
    assert not {node.sum for b in batches for node in b.nodes} & {5000}
    assert all({n for node in b.left for _, n in node.terms} <= set(b.names) for b in batches)


@settings(max_examples=50)
@given(st.data())
def test_every_job_is_once_in_a_batch_and_nodes_are_nodes(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 90))
    workers, size = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 70))
    lengths = data.draw(st.lists(st.floats(0.5, 20.0), min_size=1, max_size=8))
    weights = {n: lengths[n % len(lengths)] for n in range(count)}
    sums: dict[int, Sum] = {}
    for key in range(data.draw(st.integers(0, 5))):
        members = data.draw(st.lists(st.integers(0, count + 5), min_size=1, max_size=60))
        sums[1000 + key] = merge(*members)
    free = set(range(count)) - data.draw(st.sets(st.integers(0, count), max_size=20))
    batches = cut(weights, sums, free, workers, size)
    assert sorted(n for b in batches for n in b.names) == list(range(count))
    # even: no batch exceeds a fair share (and a sixteenth) by more than the longest job
    fair = sum(weights.values()) / min(workers, count)
    assert max(sum(weights[n] for n in b.names) for b in batches) <= 17 / 16 * fair + max(weights.values())
    for batch in batches:
        for node in batch.nodes:
            recipe = sums[node.sum]
            first = node.stop - len(node.terms)
            assert node.of == len(recipe.terms)
            assert tuple((c, int(r)) for c, r in recipe.terms[first : node.stop]) == node.terms
            assert (first, node.stop) in list(nodes(first, node.stop, node.of))
            assert {n for _, n in node.terms} <= set(batch.names) & free
    # whoever is in a node is in nodes at every place where it is a term
    places = [(n.sum, p) for b in batches for n in b.nodes for p in range(n.stop - len(n.terms), n.stop)]
    assert len(places) == len(set(places))
    for name in handed(batches):
        assert all((k, p) in set(places) for k, s in sums.items() for p, (_, r) in enumerate(s.terms) if int(r) == name)


def test_jobs_that_even_batches_out_go_where_others_of_their_sum_are() -> None:
    # four edges of a hundred in eight batches: of 64 + 36 the 36 fit whole, two eights join them, six are another batch
    sums = {1000 + edge: merge(*range(100 * edge, 100 * edge + 100)) for edge in range(4)}
    batches = cut(dict.fromkeys(range(400), 1.0), sums, set(range(400)), 4, 50)
    assert sorted(len(b.names) for b in batches) == [48] * 4 + [52] * 4
    assert [len({name // 100 for name in b.names}) for b in batches] == [1] * 8

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.address import host_of, level_of, role
from espalier.core.errors import ProtocolError
from espalier.core.tree import Tree


def small() -> Tree:
    """Devices 0–3 with 1, 2, 3, 4 samples; edges 4 and 5; cloud 6."""
    tree = Tree(np.array([1, 2, 3, 4]), root=6)
    tree.attach(4, 6)
    tree.attach(5, 6)
    tree.populate(np.array([4, 4, 5, -1]))
    return tree


def test_roles_of_a_host() -> None:
    assert role(7, 0) == 7
    assert host_of(role(7, 3)) == 7
    assert level_of(role(7, 3)) == 3


def test_a_block_of_moves_is_its_moves() -> None:
    one, block = small(), small()
    for device, parent in ((0, 5), (1, 5), (2, 4)):
        one.attach(device, parent)
    assert block.children(4) == [0, 1]
    block.move(np.array([0, 1, 2]), np.array([5, 5, 4]))
    assert [block.registered(n) for n in (4, 5, 6)] == [one.registered(n) for n in (4, 5, 6)] == [3, 3, 6]
    assert block.children(4) == one.children(4) == [2] and block.children(5) == one.children(5) == [0, 1]


def test_roles_that_a_device_plays_in_the_tree() -> None:
    tree = small()
    assert tree.roles(1) == []
    tree.attach(role(1, 2), 6)
    tree.attach(role(1, 1), role(1, 2))
    assert tree.roles(1) == [role(1, 1), role(1, 2)] and tree.roles(0) == []


def test_counts_follow_devices() -> None:
    tree = small()
    assert tree.children(4) == [0, 1]
    assert [tree.registered(n) for n in (4, 5, 6)] == [3, 3, 6]
    tree.attach(1, 5)
    tree.attach(3, 5)
    assert [tree.registered(n) for n in (4, 5, 6)] == [1, 9, 10]
    tree.attach(5, None)
    assert tree.registered(6) == 1
    assert tree.leaves(5) == [1, 2, 3]
    assert tree.aggregators() == [4, 6]


def test_a_cycle_and_a_device_as_parent_are_refused() -> None:
    tree = small()
    tree.attach(5, 4)
    with pytest.raises(ProtocolError, match="cycle"):
        tree.attach(4, 5)
    with pytest.raises(ProtocolError, match="aggregator role"):
        tree.attach(1, 0)


def test_a_device_aggregates_through_a_role() -> None:
    tree = small()
    head = role(0, 1)
    tree.attach(head, 6)
    for device in (0, 1, 2):
        tree.attach(device, head)
    assert tree.children(head) == [0, 1, 2]
    assert tree.registered(head) == 6
    assert list(tree.path(2)) == [2, head, 6]


def test_groups() -> None:
    tree = small()
    tree.set_group(2, "a")
    assert [tree.group(i) for i in range(4)] == ["", "", "a", ""]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([10, 11, 12, None])), max_size=40))
def test_saved_and_restored_is_the_same(moves: list[tuple[int, int | None]]) -> None:
    tree = Tree(np.arange(1, 11), root=13)
    for edge in (10, 11, 12):
        tree.attach(edge, 13)
    for node, parent in moves:
        tree.attach(node, parent)
    again = Tree(np.arange(1, 11), root=13)
    again.restore(tree.to_plain())
    for node in (10, 11, 12, 13):
        assert again.children(node) == tree.children(node)
        assert again.registered(node) == tree.registered(node) == sum(d + 1 for d in tree.leaves(node))

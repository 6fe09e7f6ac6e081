from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.core.address import role
from espalier.core.errors import ConfigError
from espalier.record.database import Recorder
from espalier.report.reading import Names, opened
from espalier.report.tree import MOST_DEVICES, dressed, place, tree
from espalier.report.tree_history import absences, moments
from tests.report.made import write_run


def test_places_by_hand() -> None:
    # cloud 6 over edges 4 (devices 0, 1) and 5 (devices 2, 3): four leaves, clockwise from the top, each a quarter
    # turn; leaf k lies at 90° − 360°·(k + ½)/4 = 45°, −45°, −135°, −225°; edges in the middle of theirs: 0°, −180°
    found = place({0: 4, 1: 4, 2: 5, 3: 5, 4: 6, 5: 6}, devices=4)
    h = math.sqrt(0.5)
    wanted = {6: (0, 0), 4: (0.5, 0), 5: (-0.5, 0), 0: (h, h), 1: (h, -h), 2: (-h, -h), 3: (-h, h)}
    assert {n: (pytest.approx(x, abs=1e-12), pytest.approx(y, abs=1e-12)) for n, (x, y) in wanted.items()} == found


def test_several_roots_lie_around_an_empty_middle() -> None:
    found = place({0: 10, 1: 11}, devices=2)
    assert len(found) == 4 and all(math.hypot(*p) > 0.4 for p in found.values())


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60), st.integers(1, 6))
def test_every_node_has_a_place_of_its_own(draws: list[int], edges: int) -> None:
    # a random tree: device i below aggregator draws[i] mod edges, aggregators below earlier ones
    n = len(draws)
    parents = {i: n + d % edges for i, d in enumerate(draws)}
    parents |= {n + e: n + (e - 1) // 2 for e in range(1, edges)}
    found = place(parents, n)
    assert set(found) == set(parents) | set(parents.values())
    assert all(math.hypot(x, y) <= 1 + 1e-9 for x, y in found.values())
    leaves = [p for node, p in found.items() if node < n]
    assert len({(round(x, 9), round(y, 9)) for x, y in leaves}) == len(leaves)


def small(where: Path) -> Path:
    """Four devices at two edges; device 0 moves at 5 s, 3 leaves at 6 s and is back at 8 s, groups change at 7 s."""
    write_run(where, devices=4, edges=2, rounds=0)
    recorder = Recorder(where / "run.sqlite")
    recorder.rewind({"moves": 0})
    for time, node, parent, group in ((0.0, 4, 6, ""), (0.0, 5, 6, ""), (5.0, 0, 5, ""), (6.0, 3, None, ""),
                                      (7.0, 1, 4, "x"), (7.0, 2, 5, "y"), (8.0, 3, 4, "")):  # fmt: skip
        recorder.move(time, node, parent, group)
    recorder.event(6.0, "gone", 3, {"silent": False})
    recorder.event(8.0, "came", 3, {})
    recorder.metric(10.0, 1, "acc_device", 0.5)
    recorder.close()
    return where


def test_the_tree_at_every_moment(tmp_path: Path) -> None:
    with opened(small(tmp_path)) as run:
        found = moments(run)
        assert absences(run) == [(3, 6.0, 8.0)]
    assert [m.time for m in found] == [0.0, 5.0, 6.0, 7.0, 8.0, 10.0]
    assert found[0].parents == {0: 4, 1: 4, 2: 5, 3: 5, 4: 6, 5: 6} and found[0].counts == {}
    assert found[1].parents[0] == 5 and found[1].counts == {"moved": 1} and found[1].changed == {0}
    assert 3 not in found[2].parents and found[2].away == {3} and found[2].counts == {"left": 1}
    assert found[3].groups == {1: "x", 2: "y"} and found[3].counts == {"changed cluster": 2}
    assert found[4].parents[3] == 4 and found[4].counts == {"came": 1} and not found[4].away
    assert found[5].counts == {} and not found[5].changed


def test_few_moments_are_still_exact(tmp_path: Path) -> None:
    with opened(small(tmp_path)) as run:
        found = moments(run, 3)  # 0, 5 and 10 s
    assert [m.time for m in found] == [0.0, 5.0, 10.0]
    # device 3 left edge 1 and came back to edge 0 between the two: to the slider it moved
    assert found[2].counts == {"moved": 1, "changed cluster": 2} and found[2].parents[3] == 4
    assert found[2].changed == {1, 2, 3}


def test_a_device_that_comes_first_was_away_before(tmp_path: Path) -> None:
    write_run(tmp_path, devices=4, edges=2, rounds=0)
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.event(3.0, "came", 2, {})
    recorder.move(3.0, 2, 5, "")
    recorder.close()
    with opened(tmp_path) as run:
        found = moments(run)
        assert absences(run) == [(2, 0.0, 3.0)]
    assert 2 not in found[0].parents and found[0].away == {2} and found[1].parents[2] == 5


def test_flat_trees_hang_on_the_cloud(tmp_path: Path) -> None:
    with opened(write_run(tmp_path, flat=True, moving=0.0)) as run:
        assert set(moments(run)[0].parents.values()) == {24}


def test_frames_tell_what_happened(tmp_path: Path) -> None:
    with opened(small(tmp_path)) as run:
        found = tree(run)
    captions = [f["caption"] for f in found["frames"]]
    assert captions == [
        "0.0 s", "5.0 s: 1 moved", "6.0 s: 1 left; 1 away", "7.0 s: 2 changed cluster; 1 away", "8.0 s: 1 came",
        "10.0 s",
    ]  # fmt: skip
    assert list(found["looks"]) == ["label", "cluster", "home"]
    # clusters x and y at 7 s: devices 1 and 2; the others are in none
    colours = found["looks"]["cluster"]["markers"][3]["symbol"]
    assert colours == ["circle-open", "circle", "square", "circle-open"]
    lines = found["frames"][0]["data"][0]
    assert len(lines["x"]) == 3 * 6
    with pytest.raises(ConfigError, match=r"by = 'clusters'.*Did you mean 'cluster'"):
        dressed(found, "clusters")


def test_heads_on_devices_are_named_by_their_device() -> None:
    names = Names(devices=10, edges=2, cloud=12)
    assert [names.name(a) for a in (3, 11, 12, 13, role(7, 1))] == [
        "device 3", "edge 1", "cloud", "server 0", "device 7 as aggregator, level 1",
    ]  # fmt: skip


def test_large_fleets_are_drawn_by_their_aggregators(tmp_path: Path) -> None:
    with opened(write_run(tmp_path, devices=MOST_DEVICES + 1, edges=3, rounds=1)) as run:
        found = tree(run)
    assert found["looks"] == {} and dressed(found) is found
    assert len(found["frames"][0]["data"][2]["x"]) == 4 and found["frames"][0]["data"][1]["x"] == []

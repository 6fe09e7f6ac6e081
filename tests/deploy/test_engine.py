"""Engines over a channel that loses, doubles and delays, killed at any moment: each update counts exactly once."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.deploy.net import Net, charter

ROUNDS = 4
#: a thousand small transactions: in memory, where there is such a place
SHM = "/dev/shm" if Path("/dev/shm").is_dir() else None


def test_without_trouble(tmp_path: Path) -> None:
    # 4 devices of 10 samples at 2 edges: each round adds 1/4 to each device's number
    net = Net(charter(4, 2, ROUNDS), tmp_path)
    net.run()
    assert net.kills == 0
    torch.testing.assert_close(net.model()[:4], torch.full((4,), ROUNDS / 4))
    assert not net.model()[4:].any()


@pytest.mark.parametrize("method", ["fedavg", {"name": "hierfavg", "kappa2": 2}])
def test_other_shapes(tmp_path: Path, method: object) -> None:
    # flat: the cloud orders devices itself; kappa2 = 2: two edge rounds add twice as much per cloud round
    net = Net(charter(4, 2, ROUNDS, method), tmp_path)
    net.run()
    each = ROUNDS / 4 if method == "fedavg" else 2 * ROUNDS / 4
    if method == "fedavg":
        torch.testing.assert_close(net.model()[:4], torch.full((4,), each))
    else:
        # per cloud round an edge adds 1/2 + 1/2 to each of its two devices' numbers, the cloud halves it
        torch.testing.assert_close(net.model()[:4], torch.full((4,), each))


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), trouble=st.sampled_from([0.1, 0.3]))
def test_every_update_counts_once_whatever_happens(seed: int, trouble: float) -> None:
    folder = Path(tempfile.mkdtemp(dir=SHM))
    try:
        net = Net(charter(4, 2, ROUNDS), folder, seed, trouble)
        net.run()
        torch.testing.assert_close(net.model()[:4], torch.full((4,), ROUNDS / 4))
        # what nobody holds is forgotten
        assert all(len(engine.store) <= 12 for engine in net.engines.values())
    finally:
        shutil.rmtree(folder)

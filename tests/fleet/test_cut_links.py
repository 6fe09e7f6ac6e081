"""A link that is cut in the middle of an upload: nothing is lost, nothing is merged twice."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from espalier.record.run import Run
from tests.fleet import counting
from tests.fleet.spaces import NotAllowed, Space, SpacedFleet

#: longer than a dead link goes unnoticed
CUT = 4.0
DEVICES, ROUNDS = 4, 4


def test_a_cut_during_uploads(tmp_path: Path) -> None:
    try:
        # a model of 220 kB takes half a second
        space = Space(rate="4mbit")
    except NotAllowed as refused:
        assert "need root and the program ip" in str(refused)
        return
    with space:
        made = counting.experiment(DEVICES, 2, ROUNDS, task={"dataset": "digits", "model": "mlp"})
        # devices 0 and 1 are edge 0's
        spaces = {"device-0": space, "device-1": space}
        with counting.fleet(
            made, tmp_path, kind=SpacedFleet, spaces=spaces, patience=60.0,
            listen={0: f"{space.host}:0"},
        ) as fleet:  # fmt: skip
            fleet.start()
            fleet.until("cloud", lambda s: s.get("round", 0) >= 1)
            # device 0 has trained and is sending
            fleet.until("device-0", lambda s: s["letters"] > 0)
            cut = space.cut()
            time.sleep(CUT)
            mended = space.mend()
            fleet.wait(90)
    found = counting.counts(tmp_path / "cloud", DEVICES, counting.weights_of(made))
    expected = torch.full((DEVICES,), ROUNDS / DEVICES, dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    times = counting.merged(Run(tmp_path / "cloud"))
    assert sum(times.values()) == ROUNDS * DEVICES
    assert set(times.values()) == {1}
    # the edge noticed although nobody told it, and the devices came back by themselves
    lines = [json.loads(x) for x in (tmp_path / "edge-0" / "node.log").read_text().splitlines()]
    lost = [x["time"] for x in lines if x["event"] == "link lost" and x["time"] > cut][:2]
    back = [x["time"] for x in lines if x["event"] == "joined" and x["time"] > mended]
    assert [t - cut < CUT + 1 for t in lost] == [True, True]
    assert len(back) == 2


def test_without_the_right_to_make_a_space_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotAllowed, match="need root and the program ip: ip netns add"):
        Space()

"""A run that is killed with SIGKILL at random moments ends as one that is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

METHODS = "hierfavg,fedavg,only_edge,standalone,fedprox"


def test_twenty_kills_change_nothing() -> None:
    # A process of its own: it forks, which a test process with threads of its own should not.
    command = [sys.executable, "-m", "tests.reliability.kills", "--kills", "20", "--methods", METHODS, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
    tally = json.loads(done.stdout)
    assert sum(tally["kills"].values()) == 20
    assert tally["wrong"] == []
    # Not only at random times: also inside checkpoints and inside transactions.
    assert tally["kills"].keys() & {"fsync", "replace"}
    assert tally["kills"].keys() & {"INSERT", "COMMIT"}

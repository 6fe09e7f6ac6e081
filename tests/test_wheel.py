"""The wheel holds everything that a run and a report need, and uses its kernels where there is no compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.wheel import build, smoke


def test_the_wheel_works_without_the_checkout_and_without_a_compiler(tmp_path: Path) -> None:
    wheel = build(tmp_path, isolated=False)
    there = tmp_path / "installed"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(there), str(wheel)], check=True
    )
    smoke(Path(sys.executable), wheel, tmp_path / "empty", path=str(there))

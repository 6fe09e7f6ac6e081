from __future__ import annotations

from typing import Any

import pytest

from espalier.cli.fleet import _Progress


class Running:
    """A fleet that has reached a moment of its life after another."""

    def __init__(self, *moments: dict[str, Any]) -> None:
        self._moments = list(moments)

    def status(self, name: str) -> dict[str, Any]:
        return self._moments.pop(0)


def test_a_run_that_is_over_does_not_count_down_its_devices(capsys: pytest.CaptureFixture[str]) -> None:
    end = {"started": True, "finished": True, "round": 20}
    fleet = Running(
        {"devices": 3}, {**end, "finished": False, "devices": 4}, {**end, "devices": 2}, end | {"devices": 0}
    )
    shown = _Progress(quiet=False)
    for _ in range(4):
        shown.look(fleet)
    assert capsys.readouterr().err == "3 devices have joined\nround 20, 4 devices\nround 20, finished\n"

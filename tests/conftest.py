"""What all tests share."""

from __future__ import annotations

import sys

import pytest
from hypothesis import settings

# How long one example takes says something about the machine's load, not about the code.
settings.register_profile("espalier", deadline=None)
settings.load_profile("espalier")


@pytest.fixture(autouse=True)
def _paths_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back where plug-ins were found: a file of that name must not be found by the tests that follow."""
    monkeypatch.setattr(sys, "path", [*sys.path])

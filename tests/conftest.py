"""What all tests share."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# How long one example takes says something about the machine's load, not about the code.
settings.register_profile("espalier", deadline=None)
settings.load_profile("espalier")


@pytest.fixture(autouse=True)
def _plugins_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget plug-ins and where they were found: a file of that name is another one in the tests that follow."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(tempfile.gettempdir()):
            del sys.modules[name]

"""Every registered method stands the public conformance suite."""

from __future__ import annotations

import pytest

from espalier.core.method import available
from espalier.testing import CHECKS, check


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("method", [m for m, c in available().items() if c.__module__.startswith("espalier.")])
def test_conformance(method: str, name: str) -> None:
    check(method, name)

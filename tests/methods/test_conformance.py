"""Every registered method stands the public conformance suite."""

from __future__ import annotations

import pytest

from espalier.core.errors import ConfigError
from espalier.core.method import available
from espalier.testing import CHECKS, check

#: what a method does not do, and says so: CFLHKD's edges are clusters right below the cloud
REFUSED = {("cflhkd", "deep_tree"): r"fleet\.tiers"}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("method", [m for m, c in available().items() if c.__module__.startswith("espalier.")])
def test_conformance(method: str, name: str) -> None:
    if (method, name) in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[method, name]):
            check(method, name)
    else:
        check(method, name)

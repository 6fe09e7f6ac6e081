"""A few hundred cases of bad input; ``benchmarks/fuzz.py`` does thousands of the same."""

from __future__ import annotations

import pytest

from tests.reliability.fuzzing import run
from tests.reliability.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_bad_input_is_refused(name: str) -> None:
    target = TARGETS[name]
    assert run(target, max(12, target.share // 3)) > 0

"""A few hundred cases of bad input; ``benchmarks/fuzz.py`` does thousands of the same."""

from __future__ import annotations

import pytest

from tests.reliability import fuzz_files, fuzz_settings, fuzz_worlds
from tests.reliability.fuzzing import run

TARGETS = {target.name: target for target in (*fuzz_settings.TARGETS, *fuzz_files.TARGETS, *fuzz_worlds.TARGETS)}


def test_shares() -> None:
    assert sum(target.share for target in TARGETS.values()) == 1000


@pytest.mark.parametrize("name", TARGETS)
def test_bad_input_is_refused(name: str) -> None:
    target = TARGETS[name]
    count, accepted = run(target, max(12, target.share // 3))
    assert count >= 12
    # The cases lie on the border: some are accepted, and some are not. Plain data all are; a damaged checkpoint
    # never is.
    assert (accepted > 0 or name in ("checkpoint", "run directory")) and (accepted < count or name == "message")

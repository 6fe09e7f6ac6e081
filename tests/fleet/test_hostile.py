"""Some hundred letters of a hostile member (`benchmarks/hostile.py` plays as many as it is told)."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.fleet.hostile import HostileMember

TestHostileMember = HostileMember.TestCase
TestHostileMember.settings = settings(
    max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)

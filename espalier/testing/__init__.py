"""The public conformance suite for methods."""

from __future__ import annotations

from espalier.testing.conformance import BASE, CHECKS, check

__all__ = ["BASE", "CHECKS", "check"]

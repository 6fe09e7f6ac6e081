"""The public conformance suite for methods: begin with `check`, which says in a sentence what a method lacks."""

from __future__ import annotations

from espalier.testing.conformance import BASE, CHECKS, check

__all__ = ["BASE", "CHECKS", "check"]

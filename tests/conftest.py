"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# How long one example takes says something about the machine's load, not about the code.
settings.register_profile("espalier", deadline=None)
settings.load_profile("espalier")

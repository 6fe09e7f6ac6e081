"""A typed way to call an autograd function."""

from __future__ import annotations

from typing import Any

import torch


class Function(torch.autograd.Function):
    """`torch.autograd.Function` whose application type-checks."""

    @classmethod
    def call(cls, *args: Any) -> Any:
        """Apply the function."""
        return cls.apply(*args)  # type: ignore[no-untyped-call]

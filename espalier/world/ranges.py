"""A value that is the same for all, or drawn per device from a range."""

from __future__ import annotations

import math

#: One value for all, or the ends ``(low, high)`` of a uniform draw.
Range = float | tuple[float, float]


def ends(value: Range) -> tuple[float, float]:
    """Return the two ends of a range."""
    return value if isinstance(value, tuple) else (value, value)


def ordered(value: Range, *, above: float = -math.inf, strict: bool = False, finite: bool = False) -> bool:
    """Tell whether a range is in order and lies at or above (``strict``: above) a bound.

    An infinite end is only in order as a single value: nothing can be drawn up to infinity.
    """
    low, high = ends(value)
    if low > high or (math.isinf(high) and (finite or low != high)):
        return False
    return low > above if strict else low >= above

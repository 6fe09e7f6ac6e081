"""What numbers a field of a configuration accepts, said in its type.

::

    @dataclass(frozen=True)
    class Noise(Compute, kind="noise"):
        sigma: NonNegativeFloat = 0.3
        width: Annotated[int, Bound(ge=2)] = 4

:func:`espalier.core.coerce.coerce` refuses other values; the configuration reference and the editors' schema show the
same bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Bound:
    """An interval of numbers: greater than ``gt`` or at least ``ge``, less than ``lt`` or at most ``le``.

    Attributes:
        words: What is accepted, where the interval alone does not say it.
    """

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    words: str = ""

    def holds(self, value: float) -> bool:
        """Tell whether a number is in the interval."""
        above = (self.gt is None or value > self.gt) and (self.ge is None or value >= self.ge)
        return above and (self.lt is None or value < self.lt) and (self.le is None or value <= self.le)

    def __str__(self) -> str:
        if self.words:
            return self.words
        low, high = self.gt if self.ge is None else self.ge, self.lt if self.le is None else self.le
        if high is None:
            return "0 or more" if self.ge == 0 else f"{'at least' if self.gt is None else 'more than'} {_plain(low)}"
        if high != 1:
            return f"between {_plain(low)} and {_plain(high)}"
        return f"in {'[' if self.gt is None else '('}{_plain(low)}, {_plain(high)}{']' if self.lt is None else ')'}"


def _plain(number: float | None) -> str:
    return f"{number:,g}".replace("e+0", "e")


PositiveInt = Annotated[int, Bound(ge=1)]
NonNegativeInt = Annotated[int, Bound(ge=0)]
PositiveFloat = Annotated[float, Bound(gt=0)]
NonNegativeFloat = Annotated[float, Bound(ge=0)]
#: a share of a whole that is not empty
Share = Annotated[float, Bound(gt=0, le=1)]
UnitFloat = Annotated[float, Bound(ge=0, le=1)]
#: what is kept of the past: a momentum, a running mean
Decay = Annotated[float, Bound(ge=0, lt=1)]
Probability = Annotated[float, Bound(ge=0, le=1, words="a probability in [0, 1]")]
Cosine = Annotated[float, Bound(ge=-1, le=1, words="a cosine, -1 to 1")]
PositiveFinite = Annotated[float, Bound(gt=0, lt=math.inf, words="a finite number > 0")]
NonNegativeFinite = Annotated[float, Bound(ge=0, lt=math.inf, words="a finite number ≥ 0")]
PositiveSeconds = Annotated[float, Bound(gt=0, lt=math.inf, words="a finite number of seconds > 0")]
Seconds = Annotated[float, Bound(ge=0, lt=math.inf, words="a finite number of seconds ≥ 0")]

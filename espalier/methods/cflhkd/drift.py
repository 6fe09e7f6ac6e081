"""What a drift did to a run: how far the score fell, and how many rounds it took to be back.

The figures of CFLHKD's tables on concept drift. The test distribution drifts with the training data; a drift "at round
50" happens when round 50 has been closed, so the evaluation of round 50 is the first to see it and nothing has been
learnt from it yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from espalier.core.errors import RunError
from espalier.record.run import Run

#: evaluations in which the fall is looked for
WINDOW = 3


@dataclass(frozen=True)
class Shock:
    """One drift and what followed.

    Attributes:
        round: The first round whose evaluation sees the drift.
        before: The score of the last evaluation before it.
        drop: How far the score fell within the first three rounds, in the score's own unit.
        recovery: Rounds of training until the score was back at ``before``; None if it never was.
        devices: How many devices drifted.
    """

    round: int
    before: float
    drop: float
    recovery: int | None
    devices: int


def shock(before: float, after: dict[int, float], at: int, devices: int = 0, window: int = WINDOW) -> Shock:
    """Work out a shock from scores.

    Args:
        before: The score just before.
        after: Scores by round, from ``at`` on.
        at: The round of the drift.
        devices: How many drifted.
        window: Rounds in which the fall is looked for.
    """
    early = [v for r, v in after.items() if r < at + window] or [before]
    back = [r for r, v in sorted(after.items()) if v >= before]
    return Shock(at, before, before - min(early), back[0] - at if back else None, devices)


def shocks(run: Run, score: str = "acc_device", window: int = WINDOW) -> list[Shock]:
    """Return every abrupt drift of a run, oldest first; of a gradual one, what its first step began.

    Drifts in consecutive rounds are one: its beginning counts. Each is followed up to the next.
    """
    frame = run.frame()
    if score not in frame:
        raise RunError(f"The run has no score {score!r}; known: {', '.join(map(str, frame.columns))}.")
    curve = frame.dropna(subset=[score]).drop_duplicates("round", keep="last").set_index("round")[score]
    starts: dict[int, int] = {}
    last = None
    for event in run.events("drift"):
        at = int(event["round"])
        if last is None or at > last + 1:
            starts[at] = len(event["devices"])
        last = at
    found = []
    rounds = [*starts, int(curve.index.max()) + 1]
    for at, until in pairwise(rounds):
        earlier = curve[curve.index < at]
        after = curve[(curve.index >= at) & (curve.index < until)]
        if len(earlier) and len(after):
            values = {int(r): float(v) for r, v in after.items()}  # type: ignore[call-overload]
            found.append(shock(float(earlier.iloc[-1]), values, at, starts[at], window))
    return found

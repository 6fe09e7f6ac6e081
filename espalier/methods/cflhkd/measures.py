"""What CFLHKD's tables read off a finished run: scores, bytes, convergence, and what a drift did to it.

The test distribution drifts with the training data; a drift "at round 50" happens when round 50 has been closed, so the
evaluation of round 50 is the first to see it and nothing has been learnt from it yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from espalier.core.errors import RunError
from espalier.record.run import Run
from espalier.study.base import last

NAN = float("nan")
#: evaluations in which the fall after a drift is looked for
WINDOW_EVALUATIONS = 3


def score(run: Run) -> str:
    """Return the name of a run's main score without its scope."""
    return "miou" if run.experiment["task"]["dataset"] == "cityscapes" else "acc"


def accuracy(run: Run) -> float:
    """Return the devices' mean score after the last round, in percent."""
    return 100 * last(run, f"{score(run)}_device")


def common(run: Run) -> float:
    """Return the cloud's model's score on the whole test set at the end, in percent (NaN if there is no such model)."""
    return 100 * last(run, f"{score(run)}_global")


def sent(run: Run) -> float:
    """Return the bytes between edges and cloud, in GB."""
    frame = run.frame()
    return float(frame["bytes_edge-cloud"].iloc[-1]) / 1e9 if "bytes_edge-cloud" in frame else 0.0


def minutes(run: Run) -> float:
    """Return the virtual minutes until convergence."""
    return convergence_time(run, f"{score(run)}_device", over=2) / 60


def fall(run: Run) -> float:
    """Return by how many points the score fell after the drift."""
    found = shocks(run, f"{score(run)}_device")
    return 100 * found[0].drop if found else NAN


def recovered(run: Run) -> bool:
    """Tell whether the score was ever back."""
    found = shocks(run, f"{score(run)}_device")
    return bool(found) and found[0].recovery is not None


def recovery(run: Run) -> float:
    """Return the rounds until the score was back; all that were left if it never was (a lower bound).

    Leaving such runs out of a mean would reward a method that recovers under one seed and never under another.
    """
    found = shocks(run, f"{score(run)}_device")
    if not found:
        return NAN
    return float(run.rounds - found[0].round if found[0].recovery is None else found[0].recovery)


def left(run: Run) -> float:
    """Return by how many points the end is above the score before the drift."""
    found = shocks(run, f"{score(run)}_device")
    return accuracy(run) - 100 * found[0].before if found else NAN


def first_clusters(run: Run) -> float:
    """Return the number of clusters at the beginning."""
    found = [e["clusters"] for e in run.events("arranged") if "clusters" in e]
    return float(len(found[0])) if found else 1.0


def decided(run: Run) -> dict[str, float]:
    """Return what decided CFLHKD's clusters (empty: nothing was clustered by affinity).

    ``clusterings``: how often all devices were clustered; of these, on average, ``crowded``: devices that the limit of
    clusters put where they are; ``splits``: clusters split by their variance; ``settled``: clusters at rest that were
    left alone; ``moved``: devices that changed their cluster; ``cut``: how often there were too few clusters.
    """
    found = [e for e in run.events("arranged") if "crowded" in e]
    if not found:
        return {}
    means = {k: round(float(np.mean([e[k] for e in found])), 2) for k in ("crowded", "splits", "settled", "moved")}
    return {"clusterings": len(found), **means, "cut": sum(bool(e["cut"]) for e in found)}


def by_cluster(run: Run) -> list[float]:
    """Return the mean score of each cluster's devices at the end, in percent.

    A cluster is the devices that report to one edge, or (where all report to the cloud) that are of one group.
    """
    scores = run.array(f"{score(run)}_device")
    cloud = run.meta("fleet")["cloud"]
    place: dict[int, Any] = dict(run.query("SELECT node, edge FROM devices"))
    moved: dict[int, tuple[Any, str]] = {}
    for node, parent, group in run.query("SELECT node, parent, grp FROM moves ORDER BY rowid"):
        if parent is not None:
            moved[node] = (parent, group)
    for node, (parent, group) in moved.items():
        if node in place:
            place[node] = group if parent == cloud else parent
    inside: dict[Any, list[float]] = {}
    for node, where in place.items():
        inside.setdefault(where, []).append(float(scores[node]))
    return [100 * float(np.mean(v)) for v in inside.values()]


def gap(run: Run) -> float:
    """Return the points between the best and the worst cluster."""
    found = by_cluster(run)
    return max(found) - min(found)


def likeness(run: Run) -> float:
    """Return the mean cosine between the clusters' final models (NaN with fewer than two)."""
    if run.directory is None:
        return NAN
    own = sorted((run.directory / "models").glob("*.safetensors"))
    edges = [p for p in own if p.stem.startswith("edge-")]
    vectors = []
    for path in edges or [p for p in own if p.stem.startswith("global-")]:
        tensors = load_file(path)
        vectors.append(torch.cat([tensors[k].double().reshape(-1) for k in sorted(tensors)]))
    pairs = [float(torch.cosine_similarity(a, b, dim=0)) for a, b in combinations(vectors, 2)]
    return float(np.mean(pairs)) if pairs else NAN


def convergence_time(run: Run, score: str = "acc_device", within: float = 0.01, over: int = 5) -> float:
    """Return the virtual seconds until the mean of ``over`` evaluations is within ``within`` of the run's best mean.

    NaN if there are fewer evaluations. The best is that of the same running mean: a single lucky evaluation does not
    set the mark.
    """
    frame = run.frame()
    if score not in frame:
        return float("nan")
    known = frame[frame["round"] > 0].dropna(subset=[score])
    if len(known) < over:
        return float("nan")
    means = known[score].rolling(over).mean().to_numpy()
    reached = np.flatnonzero(means >= np.nanmax(means) - within)
    return float(known["time"].iloc[int(reached[0])])


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


def shock(before: float, after: dict[int, float], at: int, devices: int = 0, window: int = WINDOW_EVALUATIONS) -> Shock:
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


def shocks(run: Run, score: str = "acc_device", window: int = WINDOW_EVALUATIONS) -> list[Shock]:
    """Return every abrupt drift of a run, oldest first; of a gradual one, what its first step began.

    Drifts in consecutive rounds are one: its beginning counts. Each is followed up to the next.
    """
    frame = run.frame()
    if score not in frame:
        raise RunError(f"The run has no score {score!r}; known: {', '.join(map(str, frame.columns))}.")
    curve = frame.dropna(subset=[score]).drop_duplicates("round", keep="last").set_index("round")[score]
    starts: dict[int, int] = {}
    before = None
    for event in run.events("drift"):
        at = int(event["round"])
        if before is None or at > before + 1:
            starts[at] = len(event["devices"])
        before = at
    found = []
    rounds = [*starts, int(curve.index.max()) + 1]
    for at, until in pairwise(rounds):
        earlier = curve[curve.index < at]
        after = curve[(curve.index >= at) & (curve.index < until)]
        if len(earlier) and len(after):
            values = {int(r): float(v) for r, v in after.items()}  # type: ignore[call-overload]
            found.append(shock(float(earlier.iloc[-1]), values, at, starts[at], window))
    return found

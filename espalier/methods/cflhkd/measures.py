"""What CFLHKD's tables read off a finished run."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from espalier.methods.cflhkd.convergence import convergence_time
from espalier.methods.cflhkd.drift import shocks
from espalier.record.run import Run
from espalier.study.base import last, tail

NAN = float("nan")


def score(run: Run) -> str:
    """Return the name of a run's main score without its scope."""
    return "miou" if run.experiment["task"]["dataset"] == "cityscapes" else "acc"


def accuracy(run: Run) -> float:
    """Return the devices' mean score at the end, in percent."""
    return 100 * tail(run, f"{score(run)}_device")


def common(run: Run) -> float:
    """Return the cloud's model's score on the whole test set at the end, in percent (NaN if there is no such model)."""
    return 100 * last(run, f"{score(run)}_global")


def sent(run: Run) -> float:
    """Return the bytes between edges and cloud, in GB."""
    frame = run.frame()
    return float(frame["bytes_edge-cloud"].iloc[-1]) / 1e9 if "bytes_edge-cloud" in frame else 0.0


def minutes(run: Run) -> float:
    """Return the virtual minutes until convergence."""
    return convergence_time(run, f"{score(run)}_device") / 60


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

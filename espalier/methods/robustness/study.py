"""What hostile devices do to the global model, by attack, robust merge, and the tier at which it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from espalier.study.base import Cell, Metric, Scale, Study, last, notes, register

Place = Literal["edges", "cloud", "both", "flat"]
PLACES: tuple[Place, ...] = ("edges", "cloud", "both", "flat")
PLAIN = "plain mean"
#: the share of reports that may be hostile, as a defender is told
HOSTILE_SHARE = 0.3
#: what an aggregator does instead of the mean weighted by samples
DEFENCES: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {},
    "guarded": {"guard": {"kind": "median"}},
    "median": {"merge": {"kind": "median"}},
    "trimmed mean": {"merge": {"kind": "trimmed_mean", "share": HOSTILE_SHARE}},
    "Krum": {"merge": {"kind": "krum", "share": HOSTILE_SHARE}},
    "multi-Krum": {"merge": {"kind": "multi_krum", "share": HOSTILE_SHARE}},
    "clipped": {"merge": {"kind": "clipped"}},
    "geometric median": {"merge": {"kind": "geometric_median"}},
}
#: (attack, share of the devices), in the order of the columns
ATTACKS: tuple[tuple[str, float], ...] = (
    ("none", 0.0),
    ("sign flip", 0.1),
    ("sign flip", 0.2),
    ("sign flip", 0.3),
    ("noise", 0.3),
    ("label flip", 0.3),
    ("a little", 0.3),
)
ATTACKERS: Mapping[str, Mapping[str, Any]] = {
    "sign flip": {"kind": "sign_flip", "scale": 3.0},
    "noise": {"kind": "noise", "scale": 10.0},
    "label flip": {"kind": "label_flip"},
    "a little": {"kind": "little"},
}
NOTES = notes(__package__)


def row(defence: str, place: Place) -> str:
    """Name a row; the plain mean is the same wherever it stands among edges."""
    where = {"edges": "at the edges", "cloud": "at the cloud", "both": "at both", "flat": "flat"}[place]
    return PLAIN if defence == PLAIN and place == "edges" else f"{defence}, {where}"


def column(attack: str, share: float) -> str:
    """Name a column."""
    return "no attack" if not share else f"{attack} {share:.0%}"


def method(defence: str, place: Place) -> dict[str, Any]:
    """Return HierFAVG (or FedAvg) with a defence at its place."""
    rule = dict(DEFENCES[defence])
    tiers: dict[Place, dict[str, Any]] = {
        "edges": {"edge": rule},
        "cloud": {"root": rule},
        "both": {"edge": rule, "root": rule},
        "flat": {"root": rule},
    }
    return {"name": "fedavg" if place == "flat" else "hierfavg", **tiers[place]}


def setting(scale: Scale, attack: str, share: float) -> dict[str, Any]:
    """Return the experiment of one column."""
    full = scale == "full"
    rounds = 2 if scale == "smoke" else 20
    return {
        "name": f"robustness {column(attack, share)}",
        "seeds": [0] if scale == "smoke" else [0, 1, 2],
        "task": {
            "dataset": "fashion-mnist" if full else "digits", "model": "mlp",
            "model_options": {"hidden": [64 if full else 32]},
        },
        "partition": {"kind": "dirichlet", "alpha": 1.0, **({"fraction": 0.2} if full else {})},
        "fleet": {"devices": 50, "edges": 5},
        "training": {"batch_size": 16 if full else 10, "updates": 1 if full else 2, "lr": 0.1},
        "world": {"preset": "ideal", **({"attackers": {**ATTACKERS[attack], "fraction": share}} if share else {})},
        "stop": {"rounds": rounds},
        "evaluate": {"every": rounds},
        "record": {"spans": False},
    }  # fmt: skip


def cells(scale: Scale) -> list[Cell]:
    """Return every defence at every place under every attack."""
    smoke = scale == "smoke"
    found = []
    for attack, share in ATTACKS[:2] if smoke else ATTACKS:
        table = setting(scale, attack, share)
        for place in PLACES[:2] if smoke else PLACES:
            for defence in (PLAIN, "median") if smoke else DEFENCES:
                if defence == PLAIN and place in ("cloud", "both"):
                    continue
                found.append(Cell.of(row(defence, place), column(attack, share), table, method(defence, place)))
    return found


register(
    Study(
        name="robustness/merges",
        title="hostile devices against robust merges, at the edges, at the cloud, at both, and without edges",
        cells=cells,
        measures={"accuracy": Metric("global model (%)", lambda run: 100 * last(run, "acc_global"))},
        notes=NOTES,
        sources=False,
    )
)

"""Any method in any world: experiments that make sense one part at a time, put together at random, and run."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from espalier.api import simulate
from espalier.core.method import available
from tests.reliability.fuzzing import Target
from tests.reliability.runs import DIGITS

_SPEED = {"kind": "uniform", "low": 0.02, "high": 0.3}
_ODDS = {"loss": 0.1, "duplicate": 0.1, "reorder": 0.1, "corrupt": 0.05}
ATTACKS = ("sign_flip", "noise", "little", "label_flip", "broken", "false_histogram", "false_times", "false_links")
#: what each part of a world may be; the first is what it is if nothing is said
PARTS: dict[str, list[dict[str, Any]]] = {
    "compute": [
        _SPEED,
        {"kind": "rate", "low": 1.0, "high": 8.0},
        {"kind": "noise", "of": _SPEED},
        {"kind": "fluctuating", "of": _SPEED},
        {"kind": "busy", "of": _SPEED, "mean": 3.0, "every": 10.0},
        {"kind": "redrawn", "of": _SPEED},
    ],
    "links": [
        {"kind": "uniform"},
        {"kind": "uniform", "bandwidth": 1e6, "latency": 0.05},
        {"kind": "per_tier", "dev_edge": {"bandwidth": [1e5, 1e6], "latency": 0.02}, "edge_cloud": {"bandwidth": 1e6}},
        {"kind": "shared", "of": {"kind": "uniform", "bandwidth": 1e6}, "rate": 1e6},
        {"kind": "pairs"},
        {"kind": "graph"},
    ],
    "mobility": [
        {"kind": "none"},
        {"kind": "markov", "stay": 0.3, "when": "boundary"},
        {"kind": "markov", "stay": 0.8, "when": "mid_round"},
    ],
    "churn": [
        {"kind": "none"},
        {"kind": "two_state", "working": 0.7, "mean_stay": 5.0, "silent": 0.5},
        {"kind": "failures", "rate": 0.05, "hosts": ["devices", "edges"], "restart": 2.0, "keep_state": False},
        {"kind": "failures", "rate": 0.05, "hosts": ["edges", "cloud"], "restart": 2.0},
        {"kind": "failures", "rate": 0.02},
    ],
    "drift": [
        {"kind": "none"},
        {"kind": "label_switch", "at_round": 2},
        {"kind": "permute_labels", "at_round": 1, "ways": 2},
        {"kind": "gradual", "feature": "rotation", "end": 3.0},
        {"kind": "rotate_prior", "period": 2.0},
    ],
    "faults": [
        {"kind": "none"},
        {"kind": "random", "dev_edge": _ODDS, "edge_cloud": _ODDS, "dev_dev": _ODDS},
        {"kind": "random", "dev_edge": _ODDS, "vanish_every": 5.0, "vanish_mean": 1.0},
    ],
    "attackers": [{"kind": "none"}, *({"kind": kind, "fraction": 0.3} for kind in ATTACKS)],
    "capability": [{"kind": "all"}, {"kind": "fraction", "fraction": 0.5}],
}
MERGES = ("median", "trimmed_mean", "krum", "multi_krum", "clipped", "geometric_median", "secure")
PARTITIONS: list[dict[str, Any]] = [
    {"kind": "iid"},
    {"kind": "dirichlet", "alpha": 0.3},
    {"kind": "classes", "k": 2, "coverage": False},
    {"kind": "two_level", "edge_fraction": 0.5, "device_fraction": 0.4, "coverage": False},
    {"kind": "pool", "samples": 20},
    {"kind": "phefl", "layout": "D3"},
]


@st.composite
def settings(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Draw a method with its policies, an experiment and a seed."""
    method: dict[str, Any] = {"name": draw(st.sampled_from(sorted(available())))}
    for tier in draw(st.sampled_from([(), (), ("edge",), ("root",), ("edge", "root")])):
        guard = draw(st.sampled_from([{}, {"guard": {"kind": "median"}}]))
        method[tier] = {"merge": {"kind": draw(st.sampled_from(MERGES))}, **guard}
    local = draw(st.sampled_from([None, None, {"kind": "q8"}, {"kind": "private", "clip": 1.0, "noise": 0.5}]))
    split = draw(st.sampled_from(PARTITIONS))
    edges = 10 if split["kind"] == "phefl" else draw(st.integers(1, 3))
    experiment = {
        "task": {"model": "logistic"},
        "partition": split,
        "fleet": {
            "devices": edges * draw(st.integers(1, 4)), "edges": edges, "fraction": draw(st.sampled_from([1.0, 0.5])),
            "tiers": draw(st.sampled_from([[], [], [min(2, edges)]])),
        },
        "training": {"batch_size": draw(st.sampled_from([5, 32])), "lr": 0.05, "updates": draw(st.integers(1, 2))},
        "world": {"notice": 1.0, **{part: draw(st.sampled_from(kinds)) for part, kinds in PARTS.items()}},
        "stop": draw(st.sampled_from([{"rounds": 2}, {"rounds": 3, "seconds": 20.0}, {"seconds": 8.0}])),
        "evaluate": draw(st.sampled_from([{"every": 1}, {"seconds": 2.0}])),
    }  # fmt: skip
    return {**method, **({"local": local} if local else {})}, experiment, draw(st.integers(0, 99))


def live(case: tuple[dict[str, Any], dict[str, Any], int]) -> None:
    """Run an experiment to its end."""
    method, experiment, seed = case
    run = simulate(method, experiment, seed=seed, dataset=DIGITS)
    assert run.status["state"] == "finished"


TARGETS = (Target("world", settings(), live, share=60),)

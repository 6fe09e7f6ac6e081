"""HiFlash and FedUC: asynchronous clouds, devices arranged over edges, limits on staleness."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from espalier.core.memory import Memory
from espalier.core.method import Setting, make
from espalier.core.policies import Survey
from espalier.core.statistics import LABEL_HISTOGRAMS
from espalier.core.view import View
from espalier.policies.association import Balanced, TimeSharing, reach_under
from espalier.testing import BASE
from tests.core.fakes import SmallFleet
from tests.methods.csahfl.test_csahfl import Spied
from tests.methods.test_equivalences import final

ROAMING = {**BASE["world"], "mobility": {"kind": "markov", "stay": 0.5}}


def test_one_edge_that_is_taken_whole_is_hierfavg_to_the_bit() -> None:
    fleet = {"devices": 6, "edges": 1}
    for name in ("hiflash", "feduc"):
        ours = final({"name": name, "kappa2": 2, "alpha0": 1.0}, fleet=fleet)
        assert torch.equal(ours, final({"name": "hierfavg", "kappa2": 2}, fleet=fleet))


def test_feduc_that_waits_for_all_clusters_is_hierfavg_where_nobody_moves() -> None:
    ours = final({"name": "feduc", "kappa2": 2, "inter": "sync"})
    assert torch.equal(ours, final({"name": "hierfavg", "kappa2": 2}))


def test_edges_do_not_wait_for_each_other() -> None:
    """One edge of slow devices: the others report several times before it does."""
    partition = {"kind": "iid", "samples_per_device": 20}
    events = Spied({"name": "hiflash", "control": "none"}, partition=partition, stop={"rounds": 6})
    rounds = {k: c.round for k, c in events.runner.simulation.nodes[15].state.cohorts.items()}
    assert len(rounds) == 3 and max(rounds.values()) > min(rounds.values())
    assert sum(rounds.values()) // 3 == 6


def test_stale_reports_are_thrown_away_where_the_limit_says_so() -> None:
    run = Spied({"name": "hiflash", "kappa2": 2}, stop={"rounds": 12})
    limits = [e["limit"] for e in run.events("limit")]
    assert limits and all(1 <= n <= 6 for n in limits)
    assert all(abs(a - b) <= 1 for a, b in pairwise(limits))


@pytest.mark.parametrize(
    ("stay", "asked", "expected"),
    [(1.0, "auto", "own"), (0.5, "auto", "neighbours"), (0.5, "own", "own"), (1.0, "all", "all")],
)
def test_reach(stay: float, asked: Any, expected: str) -> None:
    assert reach_under(asked, Setting(10, 2, 10, stay=stay)) == expected
    for name, kind in (("hiflash", Balanced), ("feduc", TimeSharing)):
        structure = make(name, reach=asked).plan(Setting(10, 2, 10, stay=stay)).root.structure
        assert isinstance(structure, kind) and structure.reach == expected


def test_nobody_is_asked_or_moved_where_everybody_stays() -> None:
    for name in ("hiflash", "feduc"):
        run = Spied(name)
        (control,) = run.runner.recorder.connection.execute(
            "SELECT coalesce(max(bytes), 0) FROM traffic WHERE kind = 'ctrl'"
        ).fetchone()
        assert control == 0
        assert not run.events("arranged")


@pytest.mark.parametrize("name", ["hiflash", "feduc"])
def test_association_evens_out_the_edges(name: str) -> None:
    """Every edge starts with 3 of 10 labels; with free association the edges' mixes come close to the whole."""
    changes = {
        "fleet": {"devices": 30, "edges": 5}, "partition": {"kind": "two_level", "edge_fraction": 0.3},
        "stop": {"rounds": 1},
    }  # fmt: skip
    skews = []
    for reach in ("own", "all"):
        sim = Spied({"name": name, "reach": reach}, **changes).runner.simulation
        parents, counts = sim.fleet.tree.device_parent, sim.fleet.partition.histogram.astype(float)
        whole = counts.sum(0) / counts.sum()
        mixes = [counts[parents == e].sum(0) for e in range(30, 35)]
        skews.append(float(np.mean([np.abs(m / m.sum() - whole).sum() for m in mixes])))
    assert skews[1] < 0.5 * skews[0]
    # and no edge is left with less than half, or more than twice, its share of six
    sizes = np.bincount(parents - 30, minlength=5)
    assert sizes.min() >= 3 and sizes.max() <= 12


def test_under_mobility_devices_go_no_further_than_to_a_neighbour() -> None:
    fleet = {"devices": 20, "edges": 5}
    run = Spied({"name": "hiflash", "kappa2": 2}, world=ROAMING, fleet=fleet, stop={"rounds": 4})
    assert run.events("arranged")
    sim = run.runner.simulation
    gap = (sim.fleet.tree.device_parent - 20 - sim.fleet.location) % 5
    assert set(gap.tolist()) <= {0, 1, 4}


def test_the_learnt_control_runs_and_is_repeatable() -> None:
    method = {"name": "hiflash", "control": "dqn", "episodes": 3, "target": 0.8}
    first, second = (Spied(method, stop={"rounds": 6}) for _ in range(2))
    limits = [e["limit"] for e in first.events("limit")]
    assert limits and limits == [e["limit"] for e in second.events("limit")]
    assert all(1 <= n <= 6 for n in limits)


def test_a_survey_is_made_only_of_devices_that_are_free_and_unknown() -> None:
    fleet = SmallFleet(dict.fromkeys(range(4), 10))
    fleet.at_work = {2}
    view = View(0.0, 20, 0, 0, "", {}, None, Memory(), fleet)
    view.product(LABEL_HISTOGRAMS)[0] = np.ones(2)
    assert Balanced(reach="all").survey(view) == Survey("label_histogram", devices=[1, 3])
    assert Balanced(reach="own").survey(view) is None


def test_an_asynchronous_cloud_learns_digits() -> None:
    for name in ("hiflash", "feduc"):
        run = Spied(name, partition={"kind": "iid"}, stop={"rounds": 12})
        assert run.runner.simulation.meter.last["acc_global"] > 0.75

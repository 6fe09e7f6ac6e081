"""EASF, Syn, HFL and KMA-RAF in runs: what they have in common, what sets them apart, and the paper's ablations.

The formulas are tested by themselves: Eq. 1 and 8 and 9 and Algorithms 1 and 2 in tests/methods/easf/dsf, Eq. 10 to 14
and Algorithms 3 and 4 in tests/methods/easf/test_paces.py, KMA in tests/methods/easf/test_kma.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from espalier.core.address import host_of, role
from espalier.core.errors import ConfigError
from espalier.core.method import Setting, make
from espalier.methods.easf.aaf import AAF
from espalier.methods.easf.paces import PREDICTED_ROUND, TimedPace
from espalier.methods.easf.settings import ABLATION
from espalier.simulator.runner import Runner
from espalier.world.world import World
from tests.methods.easf.dsf.fleet import clusters, graph, root, run, runner, start, wrong

#: two stars, hubs 0 and 4, that meet at 3 - 5
STARS = [(0, 1), (0, 2), (0, 3), (3, 5), (4, 5), (4, 6), (4, 7)]
#: everybody computes alike
ALIKE = {"compute": {"kind": "constant", "seconds": 0.1}}


def alike(method: str | dict[str, Any], folder: Path, rounds: int = 4, **changes: Any) -> Runner:
    """Run a method to its end in float64 on two stars of equal devices."""
    training = {"batch_size": 10, "lr": 0.1, "precision": "float64", **changes.pop("training", {})}
    done = runner(
        method, links=graph(folder, *STARS), world={**ALIKE, **changes.pop("world", {})}, training=training,
        stop={"rounds": rounds}, partition={"kind": "iid", "samples_per_device": 30}, **changes,
    )  # fmt: skip
    done.run()
    return done


def final(*args: Any, **changes: Any) -> Tensor:
    found = alike(*args, **changes).final_models()["global"]
    assert isinstance(found, Tensor)
    return found


def speeds(folder: Path, *rows: tuple[int, float, float]) -> dict[str, Any]:
    """Return compute speeds: (device, since, seconds per batch)."""
    file = folder / "speeds.csv"
    file.write_text("device,time,seconds_per_batch\n" + "".join(f"{d},{t},{s}\n" for d, t, s in rows))
    return {"compute": {"kind": "trace", "file": str(file)}}


class TestTheSameMethod:
    """Where settings meet, so do the models: to the bit, or (sums in another order) to the last bits of float64."""

    def test_raf_among_equal_devices_is_syn(self, tmp_path: Path) -> None:
        raf = {"name": "easf", "structure": "syn", "frequency": "raf", "abandon": "none"}
        # 30 samples in batches of 10 take .3 s at each device; links of a star are alike: every frequency stays 1
        assert torch.equal(final(raf, tmp_path), final("syn", tmp_path))

    def test_aaf_with_one_update_at_most_is_syn(self, tmp_path: Path) -> None:
        aaf = {"name": "easf", "structure": "syn", "frequency": "aaf", "abandon": "none", "f_max": 1}
        assert torch.equal(final(aaf, tmp_path), final("syn", tmp_path))

    def test_hfl_is_syn_but_for_two_updates(self, tmp_path: Path) -> None:
        one = final({"name": "hfl_easf", "leaf_updates": 1}, tmp_path)
        assert torch.equal(one, final("syn", tmp_path))
        assert not torch.equal(final("hfl_easf", tmp_path), one)

    def test_the_presets_are_points_of_the_three_axes(self, tmp_path: Path) -> None:
        for name, axes in {
            "syn": {"structure": "syn", "frequency": "fixed", "abandon": "none"},
            "hfl_easf": {"structure": "syn", "frequency": "fixed", "abandon": "none", "leaf_updates": 2},
            "kma_raf": {"structure": "kma", "frequency": "raf", "abandon": "none"},
        }.items():
            assert torch.equal(final(name, tmp_path), final({"name": "easf", **axes}, tmp_path)), name

    @pytest.mark.parametrize(("method", "updates"), [("syn", 1), ("hfl_easf", 2)])
    def test_eq_3_and_4_weigh_by_samples_at_every_level(self, tmp_path: Path, method: str, updates: int) -> None:
        # A mean of means, each weighted by the samples below it, is the mean over devices weighted by theirs: FedAvg.
        # Devices of 10 to 60 samples, in two clusters under a root.
        changes = {"partition": {"kind": "iid", "samples_per_device": [10, 60]}}
        table = {"batch_size": 10, "lr": 0.1, "precision": "float64"}
        ours = runner(method, links=graph(tmp_path, *STARS), training=table, stop={"rounds": 3}, **changes)
        ours.run()
        flat = runner("fedavg", training={**table, "updates": updates}, stop={"rounds": 3}, **changes)
        flat.run()
        assert len(clusters(ours.simulation)) == 2
        found, expected = (r.final_models()["global"] for r in (ours, flat))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)

    def test_eq_2_is_a_step_of_gradient_descent(self) -> None:
        # one device, one batch of all its samples, one round: w - .1 · grad, worked with autograd
        training = {"batch_size": 64, "lr": 0.1, "precision": "float64"}
        task = {"dataset": "digits", "model": "logistic"}
        one = runner(
            "syn", devices=1, task=task, training=training, stop={"rounds": 1},
            partition={"kind": "iid", "samples_per_device": 30},
        )  # fmt: skip
        one.run()
        sim = one.simulation
        rows = sim.views.rows(0, sim.conditions.look(0))
        pool = sim.views.pool(sim.conditions.look(0))
        start_at = sim.task.initial(sim.seed, 0).double().requires_grad_()
        weights = sim.task.spec.views(start_at)
        x, y = pool.x[rows].double().flatten(1), pool.y[rows]
        names = list(weights)
        loss = nn.functional.cross_entropy(x @ weights[names[0]].T + weights[names[1]], y)
        (grad,) = torch.autograd.grad(loss, start_at)
        found = one.final_models()["global"]
        torch.testing.assert_close(found.double(), (start_at - 0.1 * grad).detach(), rtol=1e-6, atol=1e-8)


class TestPace:
    def test_what_parents_recommend_is_recorded_and_nothing_where_they_recommend_nothing(self, tmp_path: Path) -> None:
        for frequency, acts in (("aaf", True), ("raf", False)):
            method = {"name": "easf", "structure": "syn", "frequency": frequency, "abandon": "none"}
            one = runner(method, links=graph(tmp_path, *STARS), stop={"rounds": 3})
            one.run()
            rows = one.simulation.recorder.connection.execute("SELECT data FROM events WHERE kind = 'frequency'")
            assert bool(rows.fetchall()) is acts

    def test_new_pairs_begin_anew_and_others_keep_what_they_know(self, tmp_path: Path) -> None:
        # 0 leads 1, 2, 3; device 1 is four times as fast. Device 9 is new to the cluster of 0.
        rows = [(d, 0.0, 0.1) for d in range(9)] + [(1, 0.0, 0.025)]
        world = {
            **speeds(tmp_path, *sorted(set(rows) - {(1, 0.0, 0.1)})),
            "churn": {"kind": "scheduled", "events": [{"time": 12.0, "host": 8, "event": "join"}]},
        }
        method = {"name": "easf", "structure": "syn", "abandon": "none"}
        sim = start(method, devices=9, links=graph(tmp_path, *STARS, (0, 8)), world=world, until=11.9)
        head = sim.runtime.node(role(0, 1))
        before = {c: dict(t) for c, t in head.state.memory.state(AAF()).children.items()}
        assert sorted(before) == [0, 1, 2, 3]
        run(sim, 12.45)  # it has joined; the round that is open goes on without it
        assert sim.fleet.tree.parent(8) == role(0, 1)
        assert {c: t for c, t in head.state.memory.state(AAF()).children.items() if c in before}.keys() == before.keys()
        run(sim, 20.0)
        known = head.state.memory.state(AAF()).children
        assert sorted(known) == [0, 1, 2, 3, 8]
        # the fast one does more updates than its neighbours
        view_updates = {c: round(0.3 / t["update"][-1], 1) for c, t in known.items()}
        assert view_updates[1] == pytest.approx(4.0, rel=0.05) and view_updates[2] == pytest.approx(1.0, rel=0.05)

    def test_a_newcomer_does_one_update_without_a_budget(self, tmp_path: Path) -> None:
        world = {**ALIKE, "churn": {"kind": "scheduled", "events": [{"time": 12.0, "host": 8, "event": "join"}]}}
        sim = start("easf", devices=9, links=graph(tmp_path, *STARS, (0, 8)), world=world, until=12.0,
                    accuracies=dict.fromkeys(range(9), 0.5))  # fmt: skip
        orders = []
        while not orders and sim.step():
            order = sim.runtime.node(8).state.order
            if order is not None:
                orders.append(order)
        assert (orders[0].updates, orders[0].budget) == (1, None)
        old = sim.runtime.node(1).state.order
        assert old is not None and old.budget is not None

    def test_who_is_late_is_abandoned_and_takes_part_again(self, tmp_path: Path) -> None:
        # 6's batches take 10 s each from t = 6 to 40: its 3 batches are far beyond 1.5 times a round of about .5 s.
        rows = [(d, 0.0, 0.1) for d in range(8)] + [(6, 6.0, 10.0), (6, 40.0, 0.1)]
        quick = {"links": graph(tmp_path, *STARS), "world": speeds(tmp_path, *rows)}
        accuracies = dict.fromkeys(range(8), 0.5)
        sim = start("easf", until=6.5, accuracies=accuracies, **quick)
        at = sim.round
        run(sim, 36.0)
        waits = start({"name": "easf", "abandon": "none"}, until=36.0, accuracies=accuracies, **quick)
        assert sim.round > at + 10
        assert waits.round < at + 10  # nobody is abandoned: its parent waits for it, and the root for its parent
        run(sim, 60.0)
        sim.recorder.commit()
        dropped = sim.recorder.connection.execute("SELECT data FROM events WHERE kind = 'dropped'").fetchall()
        assert any('"child": 6' in data and '"late"' in data for (data,) in dropped)
        assert 6 in sim.runtime.node(role(4, 1)).state.memory.state(AAF()).children
        assert sim.runtime.node(6).state.order is None or sim.runtime.node(6).state.order.sent > 40.0

    def test_who_has_become_slow_for_good_is_waited_for_again(self, tmp_path: Path) -> None:
        # From t = 6 on 6 takes four times as long as before, 1.2 s instead of .3: beyond 1.5 times a round of .35 s.
        # The predicted time grows by a tenth per round until it is in time: 1.5 · .35 · 1.1^k > 1.3 from k = 10 on.
        rows = [(d, 0.0, 0.1) for d in range(8)] + [(6, 6.0, 0.4)]
        sim = start("easf", links=graph(tmp_path, *STARS), world=speeds(tmp_path, *rows), until=40.0,
                    accuracies=dict.fromkeys(range(8), 0.5))  # fmt: skip
        head = sim.runtime.node(role(4, 1))
        assert head.state.memory.product(PREDICTED_ROUND) * 1.5 > 1.2
        assert head.state.memory.state(AAF()).children[6]["update"][-1] == pytest.approx(1.2, rel=0.4)
        sim.recorder.commit()
        late = sim.recorder.connection.execute("SELECT max(time) FROM events WHERE kind = 'dropped'").fetchone()[0]
        assert late < 30.0

    def test_the_first_round_waits_for_all(self, tmp_path: Path) -> None:
        rows = [(d, 0.0, 5.0 if d == 7 else 0.1) for d in range(8)]
        sim = start("easf", links=graph(tmp_path, *STARS), world=speeds(tmp_path, *rows), until=10.0,
                    accuracies=dict.fromkeys(range(8), 0.5))  # fmt: skip
        assert sim.round == 0  # 7's epoch of two or three batches takes 10 s or more

    @pytest.mark.parametrize("method", ["easf", "syn", "kma_raf"])
    def test_nobody_works_between_its_report_and_the_next_order(self, method: str) -> None:
        done = runner(method, devices=12, stop={"seconds": 30.0}, record={"spans": True}, links={
            "kind": "graph", "bandwidth": [1e4, 1e5]})  # fmt: skip
        done.run()
        sim = done.simulation
        heads = {host_of(a) for a in sim.fleet.tree.aggregators()}
        leaves = [d for d in range(12) if d not in heads]
        spans = done.recorder.connection.execute("SELECT node, kind, start, stop, other FROM spans").fetchall()
        checked = 0
        for leaf in leaves:
            reports = [start for node, kind, start, _, _ in spans if node == leaf and kind == "send"]
            orders = [stop for _, kind, _, stop, other in spans if other == leaf and kind == "send"]
            works = [start for node, kind, start, _, _ in spans if node == leaf and kind == "train"]
            for report in reports:
                after = min((o for o in orders if o > report), default=np.inf)
                assert not [w for w in works if report < w < after - 1e-9]
                checked += 1
        assert checked > 10


class TestPretraining:
    def test_it_is_measured_on_test_samples_and_leaves_no_trace(self) -> None:
        sim = runner("easf", devices=6, stop={"rounds": 1}).simulation
        found = [sim.fleet.trials.pretraining_accuracy(d, 1) for d in range(6)]
        judged = min(500, len(sim.task.dataset.cell_test))
        assert all(0 <= a <= 1 and (a * judged) == pytest.approx(round(a * judged)) for a in found)
        assert len(set(found)) > 1
        sim.start()
        assert torch.equal(sim.ledger.vector(sim.ledger.initial()), sim.task.initial(sim.seed, 0))
        assert sim.ledger.ordered == 0


class TestControl:
    def test_the_tree_is_rebuilt_at_the_end_of_a_round(self, tmp_path: Path) -> None:
        events = [{"time": 12.3, "host": 8, "event": "join"}]
        world = {**ALIKE, "churn": {"kind": "scheduled", "events": events}}
        sim = start("kma_raf", devices=9, links=graph(tmp_path, *STARS, (8, 3, 0.2)), world=world, until=12.3,
                    accuracies={d: 0.1 * d for d in range(9)})  # fmt: skip
        done = sim.round
        assert sim.fleet.tree.parent(8) is None
        while sim.fleet.tree.parent(8) is None and sim.step():
            pass
        assert sim.round == done + 1  # not before the round that was open had closed
        run(sim, sim.now + 5.0)
        assert not wrong(sim) and sim.round > done + 2

    def test_without_its_root_it_is_rebuilt_at_once(self, tmp_path: Path) -> None:
        sim = start("kma_raf", links=graph(tmp_path, *STARS, (1, 3), (2, 3), (5, 6), (5, 7)), world=ALIKE, until=8.0,
                    accuracies=dict.fromkeys(range(8), 0.5))  # fmt: skip
        first, done = root(sim), sim.round
        sim.process._host_left(first, False, False)
        run(sim, 9.0)
        assert root(sim) != first and not wrong(sim)
        run(sim, 15.0)
        assert sim.round > done + 2

    def test_a_root_that_comes_back_knows_nothing_of_its_earlier_reign(self, tmp_path: Path) -> None:
        # Only 0 may lead: it is the root again whenever it is back, once without anyone having missed it.
        links = graph(tmp_path, *STARS, (1, 3), (2, 3))
        events = [(8.0, "die"), (8.5, "join"), (16.0, "leave"), (20.0, "join")]
        churn = {"kind": "scheduled", "events": [{"time": t, "host": 0, "event": what} for t, what in events]}
        world = {**ALIKE, "churn": churn, "capability": {"kind": "listed", "devices": [0]}}
        sim = start("kma_raf", links=links, world=world, until=8.0, accuracies=dict.fromkeys(range(8), 0.5))
        for end in (16.0, 28.0):
            done = sim.round
            run(sim, end - 1e-6)
            assert root(sim) == 0 and not wrong(sim) and sim.round > done + 2


@pytest.mark.parametrize("row", ABLATION)
def test_each_of_the_eight_sets_learns_while_devices_come_and_go(row: str) -> None:
    table = dict(ABLATION[row])
    world = {"churn": {"kind": "two_state", "working": 0.7, "mean_stay": 20}}
    done = runner(table, devices=14, seed=3, world=world, stop={"seconds": 40.0}, task={
        "dataset": "digits", "model": "mlp", "model_options": {"hidden": [16]}})  # fmt: skip
    done.run()
    assert done.simulation.round > 5 and done.simulation.meter.last["acc_global"] > 0.4


@pytest.mark.parametrize(
    ("patience", "message_seconds", "expected"),
    [(None, 0.0, 0.2), (None, 0.5, 2.0), (1.5, 0.5, 1.5), (0.1, 0.0, 0.1)],
)
def test_agents_are_patient_where_messages_take_time_by_themselves(
    patience: float | None, message_seconds: float, expected: float
) -> None:
    method = make("easf", **({} if patience is None else {"patience": patience}))
    setting = Setting(12, 3, 10, message_seconds=message_seconds)
    assert method.limits(setting).patience_seconds == expected
    # On a fleet whose rounds take half a second, three reports in ten came later than 1.5 times what was predicted, and
    # were dropped: nobody is abandoned there before messages may be late.
    pace = method.plan(setting).edge.pace
    assert isinstance(pace, TimedPace)
    assert pace.least == (expected if message_seconds else 0.0)


def test_axes_that_do_not_fit_are_refused() -> None:
    for bad in (
        {"frequency": "raf"},  # adaptive abandonment needs a prediction
        {"frequency": "fixed", "abandon": "adaptive"},
        {"structure": "star"},
        {"hops": 0},
        {"width": 1},
        {"rho_e": 1.0},
        {"rho_g": 0.9},
        {"rho_t": 0.5},
        {"f_max": 0},
        {"delay_limit": 0.0},
        {"clusters": 0},
    ):
        with pytest.raises(ConfigError):
            make("easf", **bad)


def test_a_cluster_may_forget_its_frequencies_when_a_member_comes(tmp_path: Path) -> None:
    # 8 joins at 12 s. By then pairs of the cluster that takes it in know each other's times; a forgetful head's do not.
    churn = {"kind": "scheduled", "events": [{"time": 12.0, "host": 8, "event": "join"}]}
    known = {}
    for keeps in (True, False):
        method = {"name": "easf", "structure": "syn", "abandon": "none", "keeps_frequencies": keeps}
        links = graph(tmp_path, *STARS, (8, 3))
        sim = start(method, devices=9, links=links, world={**ALIKE, "churn": churn, "notice": 2.0}, until=11.9)
        head = sim.runtime.node(sim.fleet.tree.parent(3))
        times = head.state.memory.state(head.rules.pace).children
        before = set(times)
        while sim.fleet.tree.parent(8) is None and sim.step():
            pass
        known[keeps] = set(head.state.memory.state(head.rules.pace).children)
        assert before == {0, 1, 2, 3}
    assert known == {True: {0, 1, 2, 3}, False: set()}


def test_a_run_that_ends_by_time_alone_ends_where_none_passes() -> None:
    # In the default world nothing takes any time: once the agents' timers have built a tree the clock would stand.
    free = World()
    done = runner("easf", 4, world={"compute": free.compute}, links=free.links, stop={"seconds": 60.0})
    done.run()
    assert "no virtual time" in done.simulation.stalled
    assert done.simulation.now < 60

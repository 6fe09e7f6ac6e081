import math

import numpy as np
import pytest
import torch

from espalier.core.errors import ConfigError, TrainingError
from espalier.core.messages import ALL
from espalier.experiment import Experiment
from espalier.record.measures import ON_DEMAND
from espalier.simulator.runner import Runner
from espalier.training.metrics import _BY_NAME, auc, ece, f1, figures, mae, mean_area, measured, pair_areas, resolve
from espalier.training.tally import Evaluation
from tests.training.problems import CASES


def logits(probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log()


def test_a_report_knows_what_can_be_measured():
    assert set(ON_DEMAND) == set(_BY_NAME)


def test_macro_f1_by_hand():
    # truth 0 0 1 1 2, answers 0 1 1 1 0. Class 0: tp 1, fp 1, fn 1: 2/4. Class 1: tp 2, fp 1, fn 0: 4/5. Class 2: 0.
    # Class 3 is neither there nor answered: it does not count. (0.5 + 0.8 + 0) / 3.
    answers = torch.nn.functional.one_hot(torch.tensor([0, 1, 1, 1, 0]), 4).double()
    assert f1(answers, torch.tensor([0, 0, 1, 1, 2])) == pytest.approx(1.3 / 3)


def test_auc_by_hand():
    # Class 1 of two: positives .9 and .4, negatives .4 and .1. Pairs: .9>.4, .9>.1, .4=.4 (half), .4>.1: 3.5 of 4; and
    # class 0, whose outputs are one minus those, the same.
    found = auc(logits([[0.1, 0.9], [0.6, 0.4], [0.6, 0.4], [0.9, 0.1]]), torch.tensor([1, 1, 0, 0]))
    assert found == pytest.approx(3.5 / 4)


def test_auc_of_three_classes_is_the_mean_over_those_that_are_there():
    # Class 0: positive .5 against .25 and .125: 1. Class 1: positives .25 and .75 against .25: half and one, of two.
    # Class 2 is never the truth: it does not count.
    found = auc(logits([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.125, 0.75, 0.125]]), torch.tensor([0, 1, 1]))
    assert found == pytest.approx(1.75 / 2)
    assert math.isnan(auc(torch.zeros(2, 3), torch.tensor([1, 1])))


def test_calibration_error_by_hand():
    # Two answers of confidence .8 (bin 12/15), one right: |1 - 1.6| = .6; one of .6 (bin 9/15), right: .4; of 3: 1/3.
    found = ece(logits([[0.8, 0.2], [0.2, 0.8], [0.6, 0.4]]), torch.tensor([0, 0, 0]))
    assert found == pytest.approx(1 / 3)


def test_absolute_error_by_hand():
    # |1-0|, |2-4|, |3-3|, |0-1|: 4 of 4; targets may lack the second axis
    assert mae(torch.tensor([[1.0], [2.0], [3.0], [0.0]]), torch.tensor([0.0, 4.0, 3.0, 1.0])) == 1.0


@pytest.mark.parametrize(
    ("names", "kind", "word"),
    [
        (["f2"], "classification", "accepted: f1, auc, ece, mae, package.module:function. Did you mean 'f1'"),
        (["f1"], "regression", "needs a classification; this task is a regression"),
        (["mae"], "classification", "needs a regression"),
        (["f1", "tests.training.test_metrics:f1"], "classification", "'f1' is measured already"),
        (["tests.training.test_metrics:f3"], "classification", "cannot be imported"),
    ],
)
def test_what_cannot_be_measured_is_refused(names, kind, word):
    with pytest.raises(ConfigError, match=word):
        resolve(names, kind, ("acc", "loss"))


def test_a_metric_that_gives_no_number_is_named():
    module, pool = CASES[1].module(), CASES[1].pool(5)
    x, y = pool.gather(torch.arange(5))
    outputs = module(x)
    with pytest.raises(TrainingError, match="The metric 'shares' gave no number for outputs of shape \\(5, 5\\)"):
        measured({"shares": lambda outputs, y: outputs.mean(0)}, outputs, y)


def right_share(outputs, y):
    """A metric of a user's own: the accuracy."""
    return (outputs.argmax(1) == y).double().mean()


def test_metrics_stand_beside_the_accuracy_of_the_global_model():
    path = "tests.training.test_metrics:right_share"
    table = {
        "fleet": {"devices": 6, "edges": 2},
        "stop": {"rounds": 2},
        "task": {"metrics": ["f1", "auc", "ece", path]},
    }
    runner = Runner(Experiment.build(table).only("hierfavg", 0), None)
    runner.run()
    last = runner.simulation.meter.last
    assert last["right_share_global"] == pytest.approx(last["acc_global"])
    data, task = runner.task.dataset, runner.task
    (model,) = runner.final_models().values()
    outputs = task.evaluator.logits([model], data.pool("test"), np.arange(len(data.y_test)))[0]
    for name, metric in {"f1": f1, "auc": auc, "ece": ece}.items():
        assert last[f"{name}_global"] == pytest.approx(metric(outputs, data.y_test))
    assert 0.5 < last["auc_global"] < 1.0


def right(outputs, y):
    """A metric of samples, of a user's own: whether each is right."""
    return (outputs.argmax(1) == y).float()


def least(outputs, y):
    """No metric of samples: a number for all."""
    return outputs.min()


@pytest.mark.parametrize("method", ["hierfavg", "ditto"])
def test_metrics_of_samples_are_measured_under_every_distribution(method):
    table = {
        "fleet": {"devices": 6, "edges": 2},
        "partition": {"kind": "dirichlet", "alpha": 0.3},
        "stop": {"rounds": 2},
        "task": {"sample_metrics": ["tests.training.test_metrics:right"]},
    }
    runner = Runner(Experiment.build(table).only(method, 0), None)
    runner.run()
    last = runner.simulation.meter.last
    for what in ("global", "edge", "edge_std", "device", "device_std"):
        assert last[f"right_{what}"] == pytest.approx(last[f"acc_{what}"]), what


def test_a_regression_has_its_own_metrics_and_the_users_beside_them():
    table = {
        "fleet": {"devices": 4, "edges": 2},
        "partition": {"fraction": 0.0005},
        "stop": {"rounds": 1},
        "task": {"dataset": "magnet", "metrics": [], "sample_metrics": ["mae"]},
    }
    runner = Runner(Experiment.build(table).only("hierfavg", 0), None)
    runner.run()
    last, data = runner.simulation.meter.last, runner.task.dataset
    (model,) = runner.final_models().values()
    outputs = runner.task.evaluator.logits([model], data.pool("test"), np.arange(len(data.y_test)))[0]
    assert last["mae_global"] == pytest.approx(mae(outputs, data.y_test), rel=1e-5)
    assert last["mae_device"] > 0 and "position_mm_device" in last


def test_metrics_of_samples_are_unknown_where_labels_have_changed_since():
    table = {
        "fleet": {"devices": 4, "edges": 2},
        "stop": {"rounds": 2},
        "world": {"preset": "ideal", "drift": {"kind": "permute_labels", "at_round": 1}},
        "task": {"sample_metrics": ["tests.training.test_metrics:right"]},
    }
    runner = Runner(Experiment.build(table).only("hierfavg", 0), None)
    runner.run()
    found = runner.recorder.connection.execute("SELECT round, name FROM metrics WHERE name LIKE 'right%'").fetchall()
    assert {name for round, name in found if round == 0} >= {"right_global", "right_device"}
    assert not [name for round, name in found if round == 2 and name == "right_device"]


def test_what_is_no_metric_of_samples_is_refused():
    with pytest.raises(ConfigError, match=r"sample_metrics has 'f1'; accepted: mae"):
        resolve(["f1"], "classification", (), by_sample=True)
    table = {"fleet": {"devices": 4, "edges": 2}, "task": {"sample_metrics": ["tests.training.test_metrics:least"]}}
    with pytest.raises(TrainingError, match=r"'least' gave shape \(\) for .* one number per sample"):
        Runner(Experiment.build(table).only("hierfavg", 0), None).run()


def test_f1_of_a_distribution_by_hand():
    """Cells hold 4 and 2 samples, answered 3:1 and 1:1; nobody has or answers the third class.

    Both cells alike: class 0 is right in .5 * .75 = .375, is there in .5 and answered in .5 * .75 + .5 * .5 = .625, so
    2 * .375 / 1.125 = 2/3; class 1: 2 * .25 / (.5 + .375) = 4/7. As counted: 2 * 3 / (4 + 4) and 2 * 1 / (2 + 2).
    Where cell 0 is called 1 (labels have changed): class 0 is never there, class 1 always: 2 * .25 / (1 + .25) = .4.
    """
    confusion = np.array([[3, 1, 0], [1, 1, 0], [0, 0, 0]])
    none = np.zeros(0)
    found = Evaluation(np.array([4, 2, 0]), np.zeros(3), np.array([3, 1, 0]), confusion, none, none, none, none)
    both = figures(found, np.array([[1, 1, 0], [4, 2, 0]], dtype=np.float32), "classification", counted=["f1"])
    assert both["f1"] == pytest.approx([(2 / 3 + 4 / 7) / 2, (0.75 + 0.5) / 2])
    only = np.array([[1, 0, 0]], dtype=np.float32)
    changed = figures(found, only, "classification", truth=np.array([1, 0, 2]), counted=["f1"])
    assert changed["f1"] == pytest.approx([(0.0 + 0.4) / 2])


@pytest.mark.parametrize("method", ["hierfavg", "ditto"])
def test_f1_and_calibration_are_measured_of_every_device(method):
    """A device that has all samples of its class alone is judged by the same numbers as these samples are."""
    table = {
        "fleet": {"devices": 10, "edges": 2},
        "partition": {"kind": "classes", "k": 1},
        "stop": {"rounds": 2},
        "task": {"metrics": ["f1", "auc", "ece"]},
    }
    runner = Runner(Experiment.build(table).only(method, 0), None)
    runner.run()
    last = runner.simulation.meter.last
    assert {"f1_device", "f1_device_worst", "f1_edge", "ece_device", "ece_edge"} <= set(last)
    assert last["f1_device_worst"] <= last["f1_device"] and last["ece_device_worst"] >= last["ece_device"]
    if method == "hierfavg":
        data, task = runner.task.dataset, runner.task
        part = Experiment.build(table).split(data, 0)
        (model,) = runner.final_models().values()
        outputs = task.evaluator.logits([model], data.pool("test"), np.arange(len(data.y_test)))[0]
        of = [np.flatnonzero(data.y_test.numpy() == label) for label in part.test_mix.argmax(1)]
        for name, metric in {"f1": f1, "ece": ece}.items():
            own = [metric(outputs[rows], data.y_test[rows]) for rows in of]
            assert last[f"{name}_device"] == pytest.approx(np.mean(own), rel=1e-5), name


def test_auc_of_a_distribution_by_hand():
    # Likelihoods of class 0: its own samples have 0.8 and 0.4; class 1 has 0.6 and 0.4; class 2 has 0.1.
    # Of 0 against 1: 0.8 wins twice, 0.4 loses once and ties once: 2.5 of 4. Against 2: all, 2 of 2.
    likely = logits([[0.8, 0.1, 0.1], [0.4, 0.3, 0.3], [0.6, 0.35, 0.05], [0.4, 0.5, 0.1], [0.1, 0.1, 0.8]])
    areas = pair_areas(likely, torch.tensor([0, 0, 1, 1, 2]))
    assert areas[0].tolist() == pytest.approx([0.5, 0.625, 1.0])
    # Of 1 (0.35 and 0.5) against 0 (0.1 and 0.3): 4 of 4, against 2 (0.1): 2 of 2. Of 2 (0.8): 1 and 1.
    assert areas[1].tolist() == pytest.approx([1.0, 0.5, 1.0]) and areas[2, :2].tolist() == [1.0, 1.0]
    # One class against the rest under shares: of 0 and 1 alone (0.625 + 1) / 2; of 0, 1, 2 as 1 : 1 : 2
    # ((0.625 + 2) / 3 + 1 + 1) / 3; of one class nothing can be told.
    found = mean_area(np.array([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.0, 1.0, 0.0]]), areas)
    assert found[:2].tolist() == pytest.approx([0.8125, (2.625 / 3 + 2) / 3]) and np.isnan(found[2])


@pytest.mark.parametrize("method", ["hierfavg", "ditto"])
def test_auc_is_measured_of_every_device_and_edge(method):
    """Of two classes, whatever their shares, it is that of all their samples under the model that the device uses."""
    table = {"fleet": {"devices": 6, "edges": 2}, "partition": {"kind": "classes", "k": 2}, "stop": {"rounds": 2}}
    runner = Runner(Experiment.build({**table, "task": {"metrics": ["auc"]}}).only(method, 0), None)
    runner.run()
    sim, data = runner.simulation, runner.task.dataset

    def exact(node, rows):
        vector = sim.ledger.vector(sim.served[node][ALL])
        return auc(runner.task.evaluator.logits([vector], data.pool("test"), rows)[0], data.y_test[rows])

    wanted = []
    for device, mix in enumerate(sim.fleet.partition.test_mix):
        rows = np.flatnonzero(np.isin(data.y_test.numpy(), np.flatnonzero(mix)))
        wanted.append(exact(device if method == "ditto" else sim.fleet.cloud, rows))
    assert sim.meter.last["auc_device"] == pytest.approx(np.mean(wanted), abs=1e-6)
    everything = np.arange(len(data.y_test))
    assert sim.meter.last["auc_global"] == pytest.approx(exact(sim.fleet.cloud, everything), abs=1e-9)
    assert {"auc_edge", "auc_device_worst"} <= set(sim.meter.last)


def test_auc_of_models_that_are_judged_on_rows_of_their_own():
    table = {"fleet": {"devices": 4, "edges": 2}, "stop": {"rounds": 1}, "evaluate": {"rows": 30}}
    runner = Runner(Experiment.build({**table, "task": {"metrics": ["auc"]}}).only("standalone", 0), None)
    runner.run()
    assert 0.5 < runner.simulation.meter.last["auc_device"] <= 1.0


def test_an_edge_with_test_samples_of_its_own_is_measured_on_these():
    part = {"kind": "phefl", "layout": "D2", "test": "imbalanced"}
    table = {"fleet": {"devices": 20, "edges": 10}, "partition": part, "stop": {"rounds": 1}}
    runner = Runner(Experiment.build({**table, "task": {"metrics": ["f1", "auc", "ece"]}}).only("only_edge", 0), None)
    runner.run()
    sim, data = runner.simulation, runner.task.dataset
    tests = sim.fleet.partition.edge_tests.evaluation
    for name, metric in {"f1": f1, "auc": auc, "ece": ece}.items():
        wanted = []
        for edge, rows in enumerate(tests):
            vector = sim.ledger.vector(sim.served[sim.fleet.edge_host(edge)][ALL])
            wanted.append(metric(runner.task.evaluator.logits([vector], data.pool("test"), rows)[0], data.y_test[rows]))
        assert sim.meter.last[f"{name}_edge"] == pytest.approx(np.nanmean(wanted), abs=1e-6), name

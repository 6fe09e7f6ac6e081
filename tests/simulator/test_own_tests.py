"""Devices whose owners have test rows are judged on these, whatever others have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import espalier
from espalier.data.partition import partition
from espalier.data.partitions import PartitionSpec
from espalier.fleet.node.data import share
from espalier.training.metrics import auc, ece, f1

N_OWNERS = 4
SETTING: dict[str, Any] = {
    "task": {"model": "mlp", "model_options": {"hidden": [8]}},
    "partition": {"kind": "owner"},
    "fleet": {"devices": N_OWNERS, "edges": 2},
    "training": {"lr": 0.3, "updates": 3},
    "stop": {"rounds": 4},
}


def table(kind: str = "classification") -> pd.DataFrame:
    """Half of the owners have the feature that decides the other way round."""
    rng = np.random.default_rng(0)
    x, owner = rng.normal(size=(400, 3)), rng.integers(0, N_OWNERS, 400)
    value = np.where(owner < N_OWNERS // 2, 1, -1) * x[:, 0]
    y: Any = np.where(value > 0, "ill", "well") if kind == "classification" else value + 0.001
    return pd.DataFrame(x, columns=list("abc")).assign(owner=[f"o{o}" for o in owner], y=y)


def dataset(kind: str = "classification") -> espalier.Dataset:
    return espalier.Dataset.from_pandas(table(kind), label="y", owner="owner")


def own_rows(data: espalier.Dataset, run: espalier.Run) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """The test rows of each device, by the names that it has."""
    assert data.owner_test is not None
    names = (run.meta("names") or {})["devices"]
    return [np.flatnonzero(data.owner_test == data.meta["owners"].index(name)) for name in names]


@pytest.mark.parametrize("method", ["standalone", "hierfavg", "ditto"])
def test_a_device_is_judged_on_its_owners_rows(method: str) -> None:
    data = dataset()
    run = espalier.simulate(method, SETTING, dataset=data)
    expected = []
    for device, rows in enumerate(own_rows(data, run)):
        with torch.no_grad():
            answers = run.model(device=device)(data.x_test[rows]).argmax(1)
        expected.append(float((answers == data.y_test[rows]).double().mean()))
    assert run.array("acc_device").tolist() == pytest.approx(expected, abs=1e-6)


def test_who_learns_alone_is_seen_to_be_better_where_features_mean_different_things() -> None:
    """One model for all cannot be right where the same feature means the opposite elsewhere."""
    alone, together = (
        espalier.simulate(m, {**SETTING, "stop": {"rounds": 15}}, dataset=dataset()).frame()["acc_device"].iloc[-1]
        for m in ("standalone", "hierfavg")
    )
    assert alone > 0.85 > 0.7 > together


def test_an_edge_is_judged_on_its_devices_rows() -> None:
    data = dataset()
    run = espalier.simulate("only_edge", SETTING, dataset=data)
    rows = own_rows(data, run)
    for edge in range(2):
        here = np.concatenate(rows[2 * edge : 2 * edge + 2])
        with torch.no_grad():
            answers = run.model(edge=edge)(data.x_test[here]).argmax(1)
        right = float((answers == data.y_test[here]).double().mean())
        assert run.array("acc_edge")[edge] == pytest.approx(right, abs=1e-6)


@pytest.mark.parametrize("method", ["hierfavg", {"name": "hierfavg", "serve": {"prior": "known"}}])
def test_f1_auc_and_calibration_are_of_own_rows_with_and_without_priors(method: Any) -> None:
    """A model that answers with a prior has every score that others have, of the answers that it gives."""
    data = dataset()
    setting = {**SETTING, "task": {**SETTING["task"], "metrics": ["f1", "auc", "ece"]}}
    run = espalier.simulate(method, setting, dataset=data)
    for device, rows in enumerate(own_rows(data, run)):
        with torch.no_grad():
            outputs = run.model(device=device)(data.x_test[rows])
        for name, metric in {"f1": f1, "auc": auc, "ece": ece}.items():
            assert run.array(f"{name}_device")[device] == pytest.approx(metric(outputs, data.y_test[rows]), abs=1e-5)


def test_amounts_are_judged_on_own_rows_by_every_metric() -> None:
    data = dataset("regression")
    setting = {**SETTING, "task": {**SETTING["task"], "sample_metrics": ["mae"]}}
    run = espalier.simulate("hierfavg", setting, dataset=data)
    for device, rows in enumerate(own_rows(data, run)):
        with torch.no_grad():
            gaps = run.model(device=device)(data.x_test[rows]).flatten() - data.y_test[rows].flatten()
        assert run.array("mse_device")[device] == pytest.approx(float((gaps**2).mean()), rel=1e-4)
        assert run.array("mae_device")[device] == pytest.approx(float(gaps.abs().mean()), rel=1e-4)


def test_who_has_no_test_rows_is_tested_in_its_mix_of_labels() -> None:
    """An owner that the test part does not know; one that only the test part knows is nobody's."""
    rng = np.random.default_rng(1)
    x, y = torch.tensor(rng.normal(size=(60, 2)), dtype=torch.float32), torch.arange(60) % 2
    owners, tested = np.repeat([0, 1, 2], 20), np.array([0] * 5 + [7] * 5)
    data = espalier.Dataset.from_arrays(x, y, x[:10], y[:10], owner_train=owners, owner_test=tested)
    parted = partition(data, PartitionSpec.build({"kind": "owner"}), n_devices=3, n_edges=1, seed=0)
    assert parted.device_tests is not None
    assert sorted(parted.device_tests.sizes.tolist()) == [0, 0, 5]
    assert parted.describe()["devices_with_own_tests"] == 1
    run = espalier.simulate("standalone", {**SETTING, "fleet": {"devices": 3, "edges": 1}}, dataset=data)
    assert not np.isnan(run.array("acc_device")).any()


def test_a_real_device_tests_on_the_rows_that_its_simulation_does() -> None:
    data = dataset()
    experiment = espalier.Experiment.build({**SETTING, "methods": ["hierfavg"]})
    parted = partition(data, PartitionSpec.build({"kind": "owner"}), n_devices=N_OWNERS, n_edges=2, seed=0)
    assert parted.device_tests is not None
    for device in range(N_OWNERS):
        test = share(experiment, data, parted, device).test
        assert test is not None and test.mix is None
        assert test.rows.tolist() == parted.device_tests[device].tolist()
    edge = share(experiment, data, parted, N_OWNERS).test
    assert edge is not None
    assert edge.rows.tolist() == [*parted.device_tests[0].tolist(), *parted.device_tests[1].tolist()]

"""Data of others' making: PyTorch, Hugging Face, pandas, CSV, LEAF, client mappings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset as HuggingFace
from datasets import DatasetDict
from PIL import Image
from torch.utils.data import TensorDataset

from espalier import Dataset, simulate
from espalier.core.errors import ConfigError, DataError, PartitionError, RunError, SetupWarning
from espalier.data.registry import load

N = 40


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    ill = rng.integers(0, 2, N)
    return pd.DataFrame(
        {
            "age": 50 + 10 * ill + rng.normal(size=N),
            "sex": np.where(rng.random(N) < 0.5, "f", "m"),
            "clinic": rng.choice(["a", "b", "c"], N),
            "ill": np.where(ill, "yes", "no"),
        }
    )


def test_a_frame_with_owners_and_text() -> None:
    data = Dataset.from_pandas(frame(), label="ill", owner="clinic")
    assert data.input_shape == (3,) and data.kind == "classification"  # age, sex_f, sex_m
    assert data.meta["classes"] == ("no", "yes") and data.meta["owners"] == ("a", "b", "c")
    assert len(data.x_test) == N // 5
    assert data.x_train.mean(0).abs().max() < 1e-5 and torch.allclose(data.x_train.std(0, correction=0), torch.ones(3))
    again = Dataset.from_pandas(frame(), label="ill", owner="clinic")
    assert torch.equal(data.x_test, again.x_test)


def test_test_rows_may_be_named() -> None:
    rows = frame().assign(held=[i < 7 for i in range(N)])
    data = Dataset.from_pandas(rows, label="ill", columns=["age"], test="held", scale=False)
    assert data.x_test[:, 0].tolist() == pytest.approx(rows["age"][:7].tolist()) and len(data.x_train) == N - 7


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        ({}, {"label": "il"}, "There is no column 'il'; there are age, sex, clinic, ill. Did you mean 'ill'"),
        ({"age": [None] * N}, {"label": "ill"}, "Column 'age' is empty; leave it out"),
        (
            {"age": [1.0, None, None] + [2.0] * (N - 3)},
            {"label": "ill"},
            r"Column 'age' has 2 empty cells, the first in row 2: .*missing = \"mean\"",
        ),
        ({"sex": ["f"] * (N - 1) + [None]}, {"label": "ill"}, "Column 'sex' has 1 empty cell, the first in row 40"),
        (
            {"age": [1.0, None] + [2.0] * (N - 2), "ill": [None, "yes"] + ["no"] * (N - 2)},
            {"label": "ill", "owner": "clinic"},
            r"Column 'age' has 1 empty cell, the first in row 2; so have 'ill' \(1\): leave such rows out "
            r"\(missing = \"drop\": 2 of 40\), or .* \(missing = \"mean\": 1 rows are left out, without ill\)",
        ),
        ({"ill": [None] * N}, {"label": "ill", "missing": "mean"}, "Every row has an empty cell"),
        ({"held": ["test", "train"] * (N // 2)}, {"label": "ill", "test": "held"}, "accepted, not 'test'"),
        ({"day": [f"d{i % 60}" for i in range(N)]}, {"label": "ill", "columns": ["age", "dya"]}, "Did you mean 'day'"),
        (
            {"clinic": ["a", "b"] * (N // 2), "at": ["x"] * (N - 1) + ["y"]},
            {"label": "ill", "owner": "clinic", "edge": "at"},
            r"Owner 'b' has rows at several edges \(x, y\)",
        ),
        ({}, {"label": "ill", "missing": "men"}, "missing = 'men'; known: refuse, drop, mean. Did you mean 'mean'"),
        ({}, {"label": "ill", "edge": "clinic"}, "name the column of owners too"),
        ({"name": [f"n{i}" for i in range(N)] + []}, {"label": "ill", "columns": ["name"]}, None),
        ({}, {"label": "ill", "test": "held"}, "no column 'held'"),
        ({}, {"label": "ill", "columns": []}, "features are needed"),
    ],
)
def test_frames_that_cannot_be_used(change: dict[str, Any], options: dict[str, Any], says: str | None) -> None:
    rows = frame().assign(**{k: pd.Series(v, dtype=float if k == "age" else object) for k, v in change.items()})
    if says is None:  # 40 names are few enough for columns of their own
        assert Dataset.from_pandas(rows, **options).input_shape == (N,)
        return
    with pytest.raises((DataError, ConfigError), match=says):
        Dataset.from_pandas(rows, **options)


def test_dates_are_told_from_text_and_can_be_ignored() -> None:
    rows = frame().assign(day=pd.date_range("2026-01-01", periods=N), note=[f"n{i}" for i in range(N)])
    with pytest.raises(DataError, match=r"Column 'day' holds dates; leave it out \(ignore = \['day'\]\)"):
        Dataset.from_pandas(rows, label="ill", owner="clinic")
    assert Dataset.from_pandas(rows, label="ill", owner="clinic", ignore=["day", "note"]).input_shape == (3,)
    many = pd.concat([frame()] * 2).assign(note=[f"n{i}" for i in range(2 * N)])
    with pytest.raises(DataError, match=r"holds text with 80 different values; leave it out \(ignore = \['note'\]\)"):
        Dataset.from_pandas(many, label="ill")


def test_empty_cells_are_dropped_or_filled() -> None:
    rows = frame()
    rows.loc[3, "age"], rows.loc[5, "sex"] = np.nan, None
    with pytest.warns(SetupWarning, match="2 of 40 rows have empty cells and are left out"):
        kept = Dataset.from_pandas(rows, label="ill", missing="drop")
    assert len(kept.x_train) + len(kept.x_test) == N - 2
    filled = Dataset.from_pandas(rows.assign(held=rows.index < 8), label="ill", test="held", missing="mean")
    assert filled.x_test[3, 0].abs() < 1e-6  # the mean of the training rows is 0 once they are scaled
    unknown = [1 if v in ("f", "m") else 0 for v in rows["sex"][:8]]
    held = rows.drop(columns="clinic").assign(held=rows.index < 8)
    plain = Dataset.from_pandas(held, label="ill", test="held", missing="mean", scale=False)
    assert plain.x_test[:, 1:].sum(1).tolist() == unknown  # neither f nor m


def test_rows_without_a_label_are_left_out_where_features_are_filled() -> None:
    rows = frame()
    rows.loc[3, "age"], rows.loc[5, "ill"], rows.loc[6, "clinic"] = np.nan, None, None
    with pytest.warns(SetupWarning, match="2 of 40 rows do not say 'ill' or 'clinic' and are left out"):
        kept = Dataset.from_pandas(rows, label="ill", owner="clinic", missing="mean")
    assert len(kept.x_train) + len(kept.x_test) == N - 2 and kept.n_classes == 2


def test_gaps_in_text_are_not_said_to_have_a_mean() -> None:
    rows = frame()
    rows.loc[5, "sex"] = None
    with pytest.raises(DataError, match=r", or count empty texts as none of their column's \(missing = \"mean\"\)"):
        Dataset.from_pandas(rows, label="ill", owner="clinic")
    rows.loc[3, "age"] = np.nan
    with pytest.raises(DataError, match=r"fill numbers with the mean of their column and count empty texts as none of"):
        Dataset.from_pandas(rows, label="ill", owner="clinic")


def test_a_wrong_option_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"from_pandas has no option 'lable'.* Did you mean 'label'\?"):
        Dataset.from_pandas(frame(), lable="ill")
    with pytest.raises(ConfigError, match=r"from_torch has no option 'nclasses'.* Did you mean 'n_classes'\?"):
        Dataset.from_torch(TensorDataset(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])), nclasses=2)
    with pytest.raises(DataError, match="Name the one to be learnt: label = "):
        Dataset.from_pandas(frame())


def test_one_column_may_be_named_as_it_is() -> None:
    rows = frame().assign(**{"mean radius": range(N)})
    data = Dataset.from_pandas(rows, label="ill", owner="clinic", ignore="mean radius")
    assert data.input_shape == (3,)
    assert Dataset.from_pandas(rows, label="ill", columns="mean radius").input_shape == (1,)


@pytest.mark.parametrize("told", [("yes, since 2025", "no"), (1, 0), (True, False)])
def test_a_column_that_says_the_label_is_told(told: tuple[Any, Any]) -> None:
    rows = frame()
    rows["treated"] = np.where(rows["ill"] == "yes", *told)
    with pytest.warns(SetupWarning, match=r"'treated' determines the label: each of its 2 values .*\['treated'\]"):
        Dataset.from_pandas(rows, label="ill", owner="clinic")
    rows.loc[7, "treated"] = told[0] if rows.loc[7, "treated"] == told[1] else told[1]
    Dataset.from_pandas(rows, label="ill", owner="clinic")  # but for one row: no warning


def test_values_that_have_one_label_each_by_chance_are_no_leak() -> None:
    """Sixteen rows in eight pairs, one of them ill: its rows come together in one draw of fifteen."""
    rows = pd.DataFrame({"day": [i // 2 for i in range(16)], "x": np.linspace(0, 1, 16) ** 0.5})
    rows["ill"] = ["yes" if i < 2 else "no" for i in range(16)]
    Dataset.from_pandas(rows, label="ill")


def test_a_column_that_numbers_the_rows_is_told() -> None:
    rows = pd.concat([frame()] * 3, ignore_index=True)
    with pytest.warns(SetupWarning, match=r"'id' has another whole number in every row: .* \(ignore = \['id'\]\)"):
        Dataset.from_pandas(rows.assign(id=rows.index + 7), label="ill")


def test_owners_stay_at_their_edges_and_keep_their_names() -> None:
    rows = frame().assign(city=lambda t: t["clinic"].map({"a": "Ulm", "b": "Bonn", "c": "Ulm"}))
    data = Dataset.from_pandas(rows, label="ill", owner="clinic", edge="city")
    assert data.input_shape == (3,)  # the city is no feature
    setting = {"partition": "owner", "fleet": {"devices": 3, "edges": 2}, "stop": {"rounds": 1}}
    run = simulate("hierfavg", setting, dataset=data)
    names = run.meta("names")
    assert names["edges"] == ["Bonn", "Ulm"] and names["devices"][0] == "b" and set(names["devices"][1:]) == {"a", "c"}
    assert [e for (e,) in run.query("SELECT edge FROM devices ORDER BY node")] == [0, 1, 1]
    assert run.meta("task")["classes"] == ["no", "yes"]
    with pytest.raises(PartitionError, match=r"fleet.edges = 3, but the owners are at 2 edges \(Bonn, Ulm\); set"):
        simulate("hierfavg", {**setting, "fleet": {"devices": 3, "edges": 3}}, dataset=data)
    with pytest.raises(PartitionError, match="owners_per_device must be 1"):
        split = {"kind": "owner", "owners_per_device": 2}
        simulate("hierfavg", {**setting, "partition": split, "fleet": {"devices": 1, "edges": 1}}, dataset=data)


def test_a_model_is_asked_about_rows_as_they_stand_in_the_table() -> None:
    rows = frame()
    data = Dataset.from_pandas(rows.assign(held=rows.index < 8), label="ill", owner="clinic", test="held")
    setting = {"partition": "owner", "fleet": {"devices": 3, "edges": 1}, "training": {"lr": 0.1, "updates": 5}}
    run = simulate("hierfavg", {**setting, "stop": {"rounds": 4}}, dataset=data)
    told = run.predict(rows[["sex", "age", "clinic"]])  # in another order, and with a column too many
    assert told[:8].tolist() == [data.meta["classes"][k] for k in run.predict(data.x_test)]
    assert (told == rows["ill"]).mean() > 0.9
    number = run.meta("names")["devices"].index("b")
    assert run.predict(rows, device="b").tolist() == run.predict(rows, device=number).tolist()
    with pytest.raises(RunError, match=r"There is no device 'bb' in this run; there are b, c, a\. Did you mean 'b'"):
        run.predict(rows, device="bb")
    with pytest.raises(DataError, match="There is no column 'age'"):
        run.predict(rows[["sex"]])
    with pytest.raises(RunError, match="not trained on a table"):
        simulate("fedavg", {"fleet": {"devices": 2, "edges": 1}, "stop": {"rounds": 1}}).predict(rows)


def test_a_csv_from_an_experiment_file(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "mine.csv", index=False)
    task = {"dataset": {"kind": "csv", "path": str(tmp_path / "mine.csv"), "label": "ill", "owner": "clinic"}}
    base = {"task": task, "partition": "owner", "fleet": {"devices": 3, "edges": 1}, "stop": {"rounds": 5}}
    run = simulate("fedavg", {**base, "training": {"lr": 0.1}})
    assert run.frame()["acc_global"].iloc[-1] > 0.9
    with pytest.raises(ConfigError, match=r"kind = 'cvs': unknown; known: csv, fedscale.* Did you mean 'csv'"):
        simulate("fedavg", {"task": {"dataset": {"kind": "cvs", "path": str(tmp_path / "mine.csv")}}})
    with pytest.raises(ConfigError, match="a table has a kind and a path"):
        simulate("fedavg", {"task": {"dataset": {"kind": "csv"}}})
    with pytest.raises(DataError, match=r"There is no file .*gone.csv"):
        load(str(tmp_path / "gone.csv"))


def test_pytorch_datasets() -> None:
    x, y = torch.rand(20, 1, 4, 4), torch.arange(20) % 2
    whole = Dataset.from_torch(TensorDataset(x, y))
    assert len(whole.x_train) == 16 and whole.input_shape == (1, 4, 4) and whole.n_classes == 2
    parted = Dataset.from_torch(TensorDataset(x, y), TensorDataset(x[:4], y[:4]), owner_train=y, owner_test=y[:4])
    assert torch.equal(parted.x_test, x[:4]) and parted.owner_train is not None
    pictures = [(Image.fromarray(np.full((5, 5), i, np.uint8)), i % 2) for i in range(20)]  # as torchvision's give them
    assert Dataset.from_torch(pictures).input_shape == (1, 5, 5)
    with pytest.raises(DataError, match=r"Sample 0 is a int; a pair"):
        Dataset.from_torch([1, 2])
    with pytest.raises(DataError, match="different shapes"):
        Dataset.from_torch([(np.zeros(2), 0), (np.zeros(3), 1)])


def test_hugging_face_datasets() -> None:
    rows = {
        "a": [float(i) for i in range(20)],
        "b": [1.0] * 20,
        "label": [i % 2 for i in range(20)],
        "who": ["p", "q"] * 10,
    }
    held = HuggingFace.from_dict(rows)
    data = Dataset.from_hf(held, x=["a", "b"], owner="who")
    assert data.input_shape == (2,) and data.meta["owners"] == ("p", "q") and len(data.x_test) == 4
    pixels = HuggingFace.from_dict({"image": np.zeros((6, 4, 4), np.uint8).tolist(), "label": [0, 1] * 3})
    assert Dataset.from_hf(pixels, pixels, x="image").x_test.shape[0] == 6
    assert Dataset.from_hf(DatasetDict(train=pixels, test=pixels.select([0, 1])), x="image").x_test.shape[0] == 2
    with pytest.raises(DataError, match="There is no split 'train'; there are validation"):
        Dataset.from_hf(DatasetDict(validation=pixels), x="image")
    with pytest.raises(DataError, match="load the dataset whole, not as a stream"):
        Dataset.from_hf(pixels.to_iterable_dataset(), x="image")
    with pytest.raises(DataError, match="There is no column 'lable'"):
        Dataset.from_hf(held, x="a", label="lable")


def test_leaf_of_ones_own(tmp_path: Path) -> None:
    for part, count in (("train", 3), ("test", 1)):
        (tmp_path / "mine" / part).mkdir(parents=True)
        users = {u: {"x": [[0.5] * 4] * count, "y": [i % 2 for i in range(count)]} for u in ("ann", "bob")}
        content = {"users": list(users), "num_samples": [count] * 2, "user_data": users}
        (tmp_path / "mine" / part / "all.json").write_text(json.dumps(content))
    data = load(str(tmp_path / "mine"), shape=[1, 2, 2])
    assert data.input_shape == (1, 2, 2) and data.meta["owners"] == ("ann", "bob") and len(data.x_train) == 6


def test_a_client_mapping_of_images(tmp_path: Path) -> None:
    for i in range(10):
        Image.fromarray(np.full((6, 6, 3), 20 * i, np.uint8)).save(tmp_path / f"{i}.png")
    lines = [f"c{i % 3},{i}.png,{'cat' if i % 2 else 'dog'},{i % 2}" for i in range(10)]
    mapping = tmp_path / "train.csv"
    mapping.write_text("\n".join(["client_id,sample_path,label_name,label_id", *lines]))
    data = load(str(mapping), kind="fedscale", size=4)
    assert data.input_shape == (3, 4, 4) and data.meta["owners"] == ("c0", "c1", "c2") and len(data.x_test) == 2
    mapping.write_text("who,what\n1,2\n")
    with pytest.raises(DataError, match="a client mapping has client_id"):
        load(str(mapping), kind="fedscale")

"""Attackers against robust merges, as a study."""

from __future__ import annotations

from espalier.study.base import SCALES, study


def test_every_defence_stands_where_its_row_says() -> None:
    for scale in SCALES:
        cells = study("robustness/merges").cells(scale)
        keys = [(c.row, c.column) for c in cells]
        assert len(keys) == len(set(keys)) > 1
    by_row = {c.row: c.experiment.methods[0].to_plain() for c in study("robustness/merges").cells("small")}
    assert len(by_row) == 8 * 4 - 2, "the plain mean is the same at edges, cloud and both"
    both, flat = by_row["median, at both"], by_row["median, flat"]
    assert both["edge"]["merge"]["kind"] == both["root"]["merge"]["kind"] == "median" and both["name"] == "hierfavg"
    assert flat["name"] == "fedavg" and "edge" not in flat
    assert "merge" not in by_row["guarded, at the cloud"]["root"]


def test_attackers_are_drawn_by_the_column_s_share() -> None:
    cells = {c.column: c.experiment.to_plain() for c in study("robustness/merges").cells("small")}
    assert "fraction" not in cells["no attack"]["world"].get("attackers", {})
    shares = [cells[f"sign flip {p}%"]["world"]["attackers"]["fraction"] for p in (10, 20, 30)]
    assert shares == [0.1, 0.2, 0.3]

"""The benchmark: its cells, and that every row of it runs."""

from __future__ import annotations

from espalier.api import simulate
from espalier.methods.benchmark.study import SIZES, SMOKE, TASKS, methods
from espalier.study.base import study

NAME = "benchmark/methods"


def test_cells_are_distinct_and_have_equal_work() -> None:
    cells = study(NAME).cells("small")
    assert len({(c.row, c.column) for c in cells}) == len(cells)
    assert {c.column.rpartition(", ")[0] for c in cells} == set(TASKS)
    rows = methods(SMOKE)
    assert {c.row for c in cells} == set(rows)
    for cell in cells:
        fleet, training = cell.experiment.fleet, cell.experiment.training
        assert (fleet.devices, fleet.fraction, training.updates) == (SIZES["small"].devices, 0.5, SIZES["small"].epochs)
        assert (cell.until is not None) == rows[cell.row].timed


def test_a_drawn_few_of_its_rows_run() -> None:
    wanted = {("SCAFFOLD", "star"), ("FedAdam", "tree"), ("Ditto", "tree"), ("Standalone", "star")}
    found = study(NAME)
    for cell in found.cells("smoke"):
        if (cell.row, cell.column.rpartition(", ")[2]) not in wanted:
            continue
        wanted.discard((cell.row, cell.column.rpartition(", ")[2]))
        run = simulate(cell.experiment.methods[0], cell.experiment.to_plain() | {"methods": []}, seed=0)
        figures = {name: m.read(run) for name, m in found.measures.items()}
        assert figures["device"] > 0 and not min(figures.values()) < 0, cell
    assert not wanted


def test_what_the_contrast_does_to_features_is_told() -> None:
    """Without the contrast features end near where they started; it turns them away from the last model's."""
    found = study("benchmark/features")
    plain, _, strong = (
        {name: m.read(simulate(cell.experiment.methods[0], cell.experiment.to_plain() | {"methods": []}, seed=0))
         for name, m in found.measures.items()}
        for cell in found.cells("smoke")
    )  # fmt: skip
    assert plain["near"] > 0.9 and plain["back"] > 0.9
    assert strong["near"] < plain["near"] and strong["back"] < 0.5
    assert plain["share"] > 0 and -1 <= plain["along"] < 0

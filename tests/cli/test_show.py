"""The terminal says what the report says."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from espalier.cli import show
from espalier.record.run import Run, find_runs
from espalier.report.groups import compare
from espalier.report.reading import readings_of
from espalier.report.verdict import verdicts
from tests.report.made import write_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    root: Path = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(root / f"a{seed}", label="Alpha", seed=seed, skill=0.4)
        write_run(
            root / f"b{seed}", label="Beta", seed=seed, skill=0.8, stalled="The training has diverged in round 9."
        )
    return find_runs(root)


def printed(runs: list[Run], width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(show.table(runs, width))
    return out.getvalue()


def test_sentence_ranks_and_costs(made: list[Run]) -> None:
    text = printed(made, 160)
    (found,) = verdicts(compare(readings_of(made)))
    assert found.headline in text and found.detail in " ".join(text.split())
    lines = text.splitlines()
    assert next(i for i, x in enumerate(lines) if " 1  Beta" in x) < next(
        i for i, x in enumerate(lines) if " 2  Alpha" in x
    )
    for heading in ("accuracy per device", "behind", "at its end", "rounds", "sent", "time"):
        assert heading in text
    assert "Beta, seeds 0, 1 ended early. The training has diverged in round 9." in text


def test_eighty_columns_are_enough(made: list[Run]) -> None:
    text = printed(made, 80)
    assert "…" not in text and "at its end" not in text
    row = next(line for line in text.splitlines() if "Alpha" in line and "±" in line)
    assert row.rstrip().endswith(("s", "min"))


def test_plain_data(made: list[Run]) -> None:
    found = show.plain(made)
    assert found["verdict"][0].startswith("Beta leads with accuracy per device")
    assert [(r["label"], r["seeds"]) for r in found["rows"]] == [("Alpha", [0, 1]), ("Beta", [0, 1])]
    assert found["rows"][0]["values"]["time_to_target"] == [None, None]

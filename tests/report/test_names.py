"""What people call a node, a label and the clock, wherever a report says it."""

from __future__ import annotations

from pathlib import Path

from espalier.record.run import Run
from espalier.report.curves import curves
from espalier.report.groups import compare
from espalier.report.heatmaps import labels_per_device, labels_per_edge
from espalier.report.names import Names
from espalier.report.page import dumps
from espalier.report.reading import read_all
from espalier.report.sections import Room, curve_section, detail
from espalier.report.spread import over_time
from espalier.report.timeline import timeline
from espalier.report.tree import tree
from tests.report.made import write_run

OWN = {
    "names": {"devices": [f"shop <{i}>" for i in range(12)], "edges": ["north", "south", "west"]},
    "task": {"kind": "classification", "classes": [f"class-{k}" for k in range(10)]},
}


def test_nodes_and_labels_have_the_names_of_the_data(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "a", devices=12, edges=3, classes=10, told=OWN))
    names = Names.of(run)
    assert names.name(3) == "shop &lt;3&gt;" and names.name(13) == "edge south" and names.label(2) == "class-2"
    assert labels_per_edge(run)["data"][0]["x"][:2] == ["class-0", "class-1"]  # type: ignore[index]
    assert labels_per_edge(run)["data"][0]["y"] == ["edge north", "edge south", "edge west"]  # type: ignore[index]
    assert "shop &lt;3&gt; (edge" in " ".join(labels_per_device(run)["data"][0]["y"])  # type: ignore[index]
    assert "edge north" in timeline(run)["data"][0]["y"]
    drawn = dumps(tree(run)).decode()
    assert "shop &lt;0&gt;, home edge" in drawn and "shop <" not in drawn
    assert not any(row.startswith("device") for row in detail(run, "acc", Room())["timeline"]["rows"])


def test_numbers_are_named_where_the_data_have_no_names(tmp_path: Path) -> None:
    names = Names.of(Run(write_run(tmp_path / "a", devices=12, edges=3)))
    assert (names.name(3), names.name(13), names.label(2)) == ("device 3", "edge 1", "label 2")
    numbered = Names(2, 1, 3, device_names=("17", "x9"))
    assert (numbered.device(0), numbered.device(1)) == ("owner 17", "x9")


def test_a_real_fleets_time_is_not_virtual(tmp_path: Path) -> None:
    for told, word in (({}, "virtual time"), ({"deployed": True}, "time")):
        run = Run(write_run(tmp_path / word, told=told))
        groups = compare(read_all([tmp_path / word]))
        titles = [f["layout"]["xaxis"]["title"]["text"] for f in (curves(groups), timeline(run), over_time(run, "acc"))]
        assert [title.split(" (")[0] for title in titles] == [word] * 3
        assert detail(run, "acc", Room())["timeline"]["clock"] == word
        assert {"key": "time", "title": word} in curve_section(groups)["axes"]

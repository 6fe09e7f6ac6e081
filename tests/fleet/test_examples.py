"""The example units start nodes with options that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from espalier.cli.node import node

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("role", ["cloud", "edge", "device"])
def test_a_units_command_is_understood(role: str) -> None:
    text = (EXAMPLES / "systemd" / f"espalier-{role}.service").read_text().replace("\\\n", " ")
    found = re.search(r"^ExecStart=(.*)$", text, flags=re.MULTILINE)
    assert found is not None
    program, group, name, *options = shlex.split(found[1])
    assert (Path(program).name, group, name) == ("espalier", "node", role)
    command = node.commands[name]
    context = command.make_context(name, options)
    assert isinstance(context, click.Context)
    assert context.params["directory"] == Path(f"/var/lib/espalier/{role}")


@pytest.mark.parametrize("role", ["cloud", "edge", "device"])
def test_a_unit_survives_what_passes(role: str) -> None:
    text = (EXAMPLES / "systemd" / f"espalier-{role}.service").read_text()
    assert "LimitNOFILE=65536" in text
    found = re.search(r"^RestartPreventExitStatus=(.*)$", text, flags=re.MULTILINE)
    assert found is not None
    # 5 to 7, 70: a bad update, a bad message, a full disk, a mistake of ours
    assert found[1].split() == ["2", "3", "4"]


def test_the_containers_example_is_understood() -> None:
    text = (EXAMPLES / "Containerfile").read_text()
    assert "it has never been built" in text
    found = re.search(r"node device (.*)$", text, flags=re.MULTILINE)
    assert found is not None
    assert node.commands["device"].make_context("device", shlex.split(found[1])).params["data"] == "/data.npz"

"""Mistakes are told in one line, soon, with an exit code of their own."""

from __future__ import annotations

import importlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from espalier.cli.main import main
from espalier.core.errors import ConfigError
from espalier.scale import cluster
from espalier.scale.computer import Ray


def invoke(tmp_path: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["run", "demo", "--out", str(tmp_path / "out"), *options])


def test_ray_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.import_module

    def absent(name: str, *rest: Any) -> Any:
        if name == "ray":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return there(name, *rest)

    monkeypatch.setattr(importlib, "import_module", absent)
    done = invoke(tmp_path, "--backend", "ray", "-m", "fedavg", "-s", "0")
    assert done.exit_code == 2
    assert 'pip install "espalier-hfl[ray]"' in done.output
    assert not (tmp_path / "out").exists()


def test_nobody_answers_at_the_address(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        done = invoke(tmp_path, "--backend", "ray", "--address", address, "-m", "fedavg", "-s", "0")
    assert time.monotonic() - began < 20
    assert done.exit_code == 8
    assert f"--address {address}: nobody answers there" in done.output and "ray start" in done.output
    assert not (tmp_path / "out").exists()


@pytest.fixture
def stranger() -> Iterator[str]:
    """Something that listens and is no Ray."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_somebody_else_answers_at_the_address(stranger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PATIENCE_SECONDS", 2.0)
    began = time.monotonic()
    with pytest.raises(cluster.ClusterError, match="no Ray cluster answers there"):
        cluster.connect(stranger, None)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("address", ["", "here", "ray://head:10001", "head:", ":6379", "head:port", "head:70000"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ConfigError, match="must be HOST:PORT"):
        Ray(address)


def test_what_does_not_go_together(tmp_path: Path) -> None:
    assert cluster.parse("[::1]:6379") == ("::1", 6379)
    with pytest.raises(ConfigError, match="positive"):
        Ray(workers=0)
    alone = invoke(tmp_path, "--address", "head:6379")
    assert alone.exit_code == 2 and "--backend ray" in alone.output
    crowded = invoke(tmp_path, "--backend", "ray", "--jobs", "2")
    assert crowded.exit_code == 2 and "needs --workers" in crowded.output

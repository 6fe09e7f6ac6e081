"""Where a run trains: in this process, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from espalier.core.errors import ConfigError
from espalier.simulator.task import Backend

_OPTIONS = (
    click.option(
        "--workers",
        type=int,
        metavar="N",
        help="Training workers inside each run [default: 1; with Ray, all its CPUs].",
    ),
    click.option(
        "--backend",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Train in this process, or on a Ray cluster; the results are the same.",
    ),
    click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda", help="What trains."),
    click.option(
        "--address", metavar="HOST:PORT", help="The Ray cluster [default: one that is started on this machine]."
    ),
)


def placed(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that :func:`choose` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def choose(backend: str, address: str | None, workers: int | None, jobs: int) -> Backend | None:
    """Return the backend that the options ask for; None is this process.

    Raises:
        ConfigError: The options do not go together, or Ray is not installed.
    """
    if backend == "local":
        if address is not None:
            raise ConfigError(f"--address {address} is a Ray cluster's: add --backend ray.")
        return None
    if jobs > 1 and workers is None:
        raise ConfigError(
            f"--jobs {jobs} with --backend ray needs --workers: the runs side by side share the cluster's CPUs."
        )
    from espalier.scale.computer import Ray

    return Ray(address, workers)

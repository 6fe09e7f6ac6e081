"""``espalier export``: a run's model as a file that other programs read."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from espalier.core.errors import ConfigError, RunError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from espalier.record.run import Run

FORMATS = ("state_dict", "torchscript", "onnx")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--out", "-o", type=click.Path(path_type=Path), required=True, help="The file to write.")
@click.option("--format", "kind", type=click.Choice(FORMATS), default="state_dict", show_default=True)
@click.option("--model", "name", help="A model by name [default: global].")
@click.option("--edge", help="The model that this edge uses: its number, or its name in the data.")
@click.option("--device", help="The model that this device uses: its number, or its owner's name in the data.")
def export(directory: Path, out: Path, kind: str, name: str | None, edge: str | None, device: str | None) -> None:
    """Write a model of the run at DIRECTORY for use elsewhere.

    A state dict is a safetensors file; TorchScript and ONNX take batches of any size. A device's label prior, where the
    method serves with one, is part of these two, not of a state dict.
    """
    run = _the_run(directory)
    module = run.model(name, edge=_who(edge), device=_who(device))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _write(module, _example(run), kind, out)
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror or error}.") from error
    click.echo(str(out))


def _who(told: str | None) -> int | str | None:
    return int(told) if told is not None and told.isdecimal() else told


def _the_run(directory: Path) -> Run:
    """Open the run at a directory, or the only one below it."""
    from espalier.record.run import Run

    if (directory / "run.sqlite").is_file() or not directory.is_dir():
        return Run(directory)
    found = sorted(path.parent for path in directory.rglob("run.sqlite"))
    if len(found) == 1:
        return Run(found[0])
    if not found:
        raise RunError(f"There is no run at or below {directory}. Runs are made with `espalier run`.")
    some = ", ".join(map(str, found[:4])) + (" …" if len(found) > 4 else "")
    raise RunError(f"{directory} holds {len(found)} runs; give one: {some}.")


def _example(run: Run) -> torch.Tensor:
    """Return two inputs of the shape that the model was trained on."""
    import torch

    task = run.meta("task")
    if task is None:
        raise RunError(f"{run.directory} does not say which inputs its model takes.")
    shape = (2, *task["input_shape"])
    return torch.zeros(shape, dtype=torch.float32 if task["vocabulary"] is None else torch.int64)


def _write(module: nn.Module, example: torch.Tensor, kind: str, out: Path) -> None:
    if kind == "state_dict":
        from safetensors.torch import save_model

        from espalier.record.models import WithPrior

        save_model(module.model if isinstance(module, WithPrior) else module, str(out))
        return
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporters, about their own future
        if kind == "torchscript":
            traced: Any = torch.jit.trace(module, example)  # type: ignore[no-untyped-call]
            traced.save(str(out))
            return
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision, which nobody needs here
        try:
            torch.onnx.export(
                module, (example,), str(out), input_names=["input"], output_names=["output"], dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False, external_data=False,
            )  # fmt: skip
        except ImportError as error:
            raise ConfigError(
                f"ONNX needs {error.name}, which is not installed: pip install 'espalier-hfl[onnx]'."
            ) from error

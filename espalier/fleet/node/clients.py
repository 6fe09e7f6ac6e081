"""A user's own code as a device: plain PyTorch (three methods), or a Flower client as it is.

Plain code implements :class:`OwnClient` and is named ``--client package.module:factory``; ``factory(device)`` gets the
device's number and returns the client. A Flower ``NumPyClient`` (or its ``Client``) is named ``--flower-client
package.module:client_fn``. Statistics that a method may ask for need the samples themselves: a client that has an
attribute ``arrays()`` returning ``(x, y)`` can answer them, another is left out of such rounds.

A node computes with one torch thread; a client's ``fit`` and ``evaluate`` have as many as PyTorch takes by itself.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espalier.core.code import imported
from espalier.core.errors import ConfigError, DataError, TrainingError
from espalier.core.messages import Calibration
from espalier.core.params import ParamSpec
from espalier.core.seeds import torch_seed
from espalier.fleet.coordinator.manifest import Manifest
from espalier.fleet.node.data import Holdings, from_arrays
from espalier.fleet.node.trainer import ArrayTrainer, NodeTrainer, TrainingRequest, TrainingResult

#: torch threads of a process that nobody has told otherwise: its cores, or OMP_NUM_THREADS
_THREADS = torch.get_num_threads()


@contextmanager
def own_threads() -> Iterator[None]:
    """Give a user's code the torch threads that it would have without a node around it."""
    before = torch.get_num_threads()
    torch.set_num_threads(_THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Work:
    """What a client is asked to do.

    Attributes:
        updates: Local epochs (or mini-batch steps, if ``unit`` is ``"step"``).
        unit: ``"epoch"`` or ``"step"``.
        round: The root's round.
        lr: The learning rate of that round.
        batch_size: Samples of a mini-batch.
        mu: Strength of the pull towards ``anchor`` (0: none): the loss gains ``mu/2 * ||w - anchor||^2``.
        anchor: The state that the training is pulled to, or None.
        seed: For whatever the client draws.
        args: What else the method says.
        calibration: What the loss knows of the device's labels, if anything.
    """

    updates: int
    unit: str
    round: int
    lr: float
    batch_size: int
    mu: float = 0.0
    anchor: dict[str, Tensor] | None = None
    seed: int = 0
    args: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None


class OwnClient(Protocol):
    """What plain PyTorch code must have to be a device."""

    def samples(self) -> int:
        """Return the number of training samples: the weight of this device's models."""
        ...

    def fit(self, state: dict[str, Tensor], work: Work) -> Mapping[str, Tensor]:
        """Train from a state dict; return the new one."""
        ...

    def evaluate(self, state: dict[str, Tensor]) -> Mapping[str, float]:
        """Return figures of a state dict on the client's own test data (``loss``, ``acc`` …); may be empty."""
        ...


class ClientTrainer(NodeTrainer):
    """A user's client as a trainer."""

    def __init__(self, manifest: Manifest, client: OwnClient) -> None:
        self._manifest, self._client = manifest, client
        self._spec: ParamSpec = manifest.card.spec
        self._dtype = manifest.experiment.training.dtype
        self.samples = int(client.samples())
        if self.samples < 1:
            raise DataError(f"The client has {self.samples} samples; a device needs at least one.")

    def train(self, request: TrainingRequest) -> TrainingResult:
        """Let the client train."""
        training = self._manifest.experiment.training
        asked = request.work
        for name in ("correction", "trains", "objective"):
            if getattr(asked, name):
                raise DataError(
                    f"The method's trainings have a field {name!r}, which a client of the user's own is not told: use "
                    "the project's own trainer on this device."
                )
        work = Work(
            asked.updates, training.unit, asked.clock, training.at(asked.clock).lr, training.batch_size, asked.mu,
            None if asked.anchor is None else self._state(asked.anchor),
            torch_seed(self._manifest.seed, "train", request.device, request.number), dict(asked.args),
            asked.calibration,
        )  # fmt: skip
        start = self._state(asked.start)
        with own_threads():
            state = self._client.fit(start, work)
        vector = self._spec.flatten(dict(state), self._dtype)
        self.samples = max(1, int(self._client.samples()))  # some know only now
        return TrainingResult(vector, math.nan, None, training.batches(self.samples, asked.updates))

    def measure(self, what: str, vectors: Sequence[Tensor], args: dict[str, Any], rng: np.random.Generator) -> Any:
        """Answer from the client's arrays, if it has any."""
        arrays = getattr(self._client, "arrays", None)
        if not callable(arrays):
            raise DataError(f"The method asks for {what!r}; this client has no arrays() to compute it from.")
        x, y = arrays()
        card = self._manifest.card
        held: Holdings = from_arrays({"x": np.asarray(x), "y": np.asarray(y)}, "arrays()", card.kind, card.n_classes)
        return ArrayTrainer(self._manifest, held, (card.model,)).measure(what, vectors, args, rng)

    def score(self, vectors: Sequence[Tensor], where: str) -> list[dict[str, float]]:
        """Let the client evaluate."""
        states = [self._state(v) for v in vectors] if where == "test" else []
        with own_threads():
            found = [dict(self._client.evaluate(state)) for state in states]
        return [{str(k): float(v) for k, v in one.items()} for one in found if one]

    def _state(self, vector: Tensor) -> dict[str, Tensor]:
        dtypes = {e.name: getattr(torch, e.dtype) for e in self._spec.entries}
        return {name: view.clone().to(dtypes[name]) for name, view in self._spec.views(vector).items()}


def plain(manifest: Manifest, device: int, path: str) -> ClientTrainer:
    """Make the trainer of ``--client package.module:factory``."""
    client = imported(path, "--client")(device)
    missing = [n for n in ("samples", "fit", "evaluate") if not callable(getattr(client, n, None))]
    if missing:
        raise ConfigError(
            f"--client {path}: what it returned has no {', '.join(missing)}; see espalier.fleet.node.clients."
        )
    return ClientTrainer(manifest, client)


# -- Flower ------------------------------------------------------------------------------------------------------


class FlowerAdapter:
    """A Flower client behind :class:`OwnClient`: parameters are the arrays of the model's state dict, in its order."""

    def __init__(self, client: Any, names: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Wrap a ``NumPyClient``.

        Args:
            client: The client object.
            names: The tensors' names in the order of the model's ``state_dict()``.
            shapes: Their shapes.
        """
        self._client, self._names, self._shapes = client, list(names), dict(shapes)
        self._samples = 0

    def samples(self) -> int:
        """Return the number of examples that the last fit told; before it, what the client's attributes show."""
        if not self._samples:
            self._samples = self._told_samples()
        return self._samples

    def _told_samples(self) -> int:
        for name in ("num_examples", "num_train_examples"):
            found = getattr(self._client, name, None)
            if isinstance(found, int) and found > 0:
                return found
        for name in ("trainset", "train_data", "trainloader", "train_loader", "x_train", "X_train"):
            found = getattr(self._client, name, None)
            if found is not None:
                return len(getattr(found, "dataset", found))
        return 1

    def fit(self, state: dict[str, Tensor], work: Work) -> dict[str, Tensor]:
        """Let the Flower client fit."""
        config: dict[str, Any] = {
            "local_epochs": work.updates, "epochs": work.updates, "server_round": work.round + 1, "lr": work.lr,
            "batch_size": work.batch_size, "proximal_mu": work.mu,
        }  # fmt: skip
        arrays, count, _ = self._client.fit(self._arrays(state), config)
        self._samples = int(count) or self._samples
        return self._named(arrays)

    def evaluate(self, state: dict[str, Tensor]) -> dict[str, float]:
        """Let the Flower client evaluate."""
        loss, _, metrics = self._client.evaluate(self._arrays(state), {})
        figures = {"loss": float(loss)}
        for name, value in metrics.items():
            if isinstance(value, int | float):
                figures["acc" if name in ("accuracy", "acc") else str(name)] = float(value)
        return figures

    def _arrays(self, state: dict[str, Tensor]) -> list[NDArray[Any]]:
        return [state[name].numpy() for name in self._names]

    def _named(self, arrays: Sequence[NDArray[Any]]) -> dict[str, Tensor]:
        if len(arrays) != len(self._names):
            raise TrainingError(
                f"The Flower client returned {len(arrays)} arrays; the fleet's model has {len(self._names)} tensors."
            )
        found = {}
        for name, array in zip(self._names, arrays, strict=True):
            if tuple(np.shape(array)) != self._shapes[name]:
                raise TrainingError(
                    f"The Flower client's array for {name!r} has shape {np.shape(array)}; "
                    f"{self._shapes[name]} is expected."
                )
            found[name] = torch.from_numpy(np.array(array))
        return found


def flower(manifest: Manifest, device: int, path: str) -> ClientTrainer:
    """Make the trainer of ``--flower-client package.module:client_fn``."""
    client = _numpy_client(_called(imported(path, "--flower-client"), device), path)
    card = manifest.card
    # a Flower client's parameters are in the order of its model's state dict: ours may keep buffers last
    order = card.order or tuple(name for name, _, _ in card.entries)
    adapter = FlowerAdapter(client, order, {name: shape for name, shape, _ in card.entries})
    return ClientTrainer(manifest, adapter)


def _called(client_fn: Callable[..., Any], device: int) -> Any:
    """Call a ``client_fn`` of Flower's: with its context, or (the older way) with the client's number as a string."""
    try:
        wanted = list(inspect.signature(client_fn).parameters.values())
    except (TypeError, ValueError):
        wanted = []
    if not wanted:
        return client_fn()
    if wanted[0].name == "cid" or wanted[0].annotation in (str, "str"):
        return client_fn(str(device))
    from flwr.common import Context, RecordDict

    config: dict[str, Any] = {"partition-id": device}
    return client_fn(Context(run_id=0, node_id=device, node_config=config, state=RecordDict(), run_config={}))


def _numpy_client(client: Any, path: str) -> Any:
    """Return the NumPyClient behind what a ``client_fn`` returned."""
    found = getattr(client, "numpy_client", client)
    missing = [n for n in ("get_parameters", "fit", "evaluate") if not callable(getattr(found, n, None))]
    if missing:
        raise ConfigError(f"--flower-client {path}: what it returned has no {', '.join(missing)}: not a NumPyClient.")
    return found

"""What a device tells the server about its learning direction, and what that costs.

===========  ==========================================  ==============================================
feature      sent                                        reveals
===========  ==========================================  ==============================================
``phi``      the model's change over a short training    the whole update, as plain federated averaging
``crop``     its smallest convolution layers only        the update of a few low-level filters
``skew``     the label histogram                         how many samples of which label the device has
``pred``     mean output of the common model             a mean of logits; no update, no counts
===========  ==========================================  ==============================================

All but ``skew`` are compared by the angle of Eq. (3); ``skew`` takes the angle's place (D15).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.core.errors import ConfigError, TrainingError, nearest
from espalier.core.params import Entry, ParamSpec

Kind = Literal["phi", "crop", "skew", "pred"]
KINDS: tuple[Kind, ...] = ("phi", "crop", "skew", "pred")

FORWARD_SHARE = 1 / 3
"""Cost of a forward pass in training steps."""


def model_difference(models: NDArray[Any], start: NDArray[Any]) -> NDArray[Any]:
    """Algorithm 1, line 4: φ_i = x_i − x, models ``[N, P]`` less the start ``[P]`` (or ``[N, P]``)."""
    if models.ndim != 2 or start.shape not in (models.shape, models.shape[1:]):
        raise TrainingError(f"models has shape {models.shape} and start {start.shape}; expected [N, P] and [P].")
    difference: NDArray[Any] = models - start
    return difference


def crop_slices(spec: ParamSpec, layers: int = 1) -> tuple[slice, ...]:
    """Places of the smallest convolution layers, weight and bias, in a model's flat vector (D13).

    A model without convolutions is cropped to its smallest layers with a weight matrix.

    Args:
        spec: The model.
        layers: How many layers; ties go to the earlier one. The paper takes 1 of its CNN and 4 of
            SqueezeNet and ResNet-18.

    Returns:
        Slices in the order of the vector.
    """
    entries = {e.name: e for e in spec.parameters}
    weights = [e for e in entries.values() if len(e.shape) >= 2]
    chosen = [e for e in weights if len(e.shape) >= 3] or weights
    if not 1 <= layers <= len(chosen):
        raise ConfigError(f"layers is {layers}; the model has {len(chosen)} layers to crop to, so 1 to that many.")
    # A layer is a weight and, where there is one, the bias beside it: "conv1.weight" and "conv1.bias".
    grouped = [[e, *_bias_of(e, entries)] for e in chosen]
    grouped.sort(key=lambda layer: sum(e.stop - e.start for e in layer))
    places = sorted((e.start, e.stop) for layer in grouped[:layers] for e in layer)
    return tuple(slice(start, stop) for start, stop in places)


def crop(features: NDArray[Any], slices: tuple[slice, ...]) -> NDArray[Any]:
    """Feature φ^crop ``[N, p]``: the given places of φ ``[N, P]``."""
    return np.concatenate([features[:, place] for place in slices], axis=1)


def mean_prediction(logits: ArrayLike, batch: int) -> NDArray[np.float64]:
    """Feature F_i: mean output of the common model over a device's whole batches (D14).

    Args:
        logits: ``[n, C]`` outputs for the device's samples, in the order drawn.
        batch: Batch size. The last, partial batch is left out of sum and count alike; a device with
            less than one batch uses what it has.

    Returns:
        ``[C]``.
    """
    outputs = np.asarray(logits, dtype=np.float64)
    if outputs.ndim != 2 or len(outputs) == 0 or batch < 1:
        raise TrainingError(f"logits has shape {outputs.shape}, batch is {batch}; expected [n ≥ 1, C] and ≥ 1.")
    used = len(outputs) // batch * batch or len(outputs)
    mean: NDArray[np.float64] = outputs[:used].mean(axis=0)
    return mean


def feature_bytes(kind: Kind, spec: ParamSpec, *, n_outputs: int, n_labels: int, crop_layers: int = 1) -> int:
    """Bytes of one device's feature on the way to the server (D20)."""
    _check(kind)
    if kind == "phi":
        return spec.model_bytes
    if kind == "crop":
        return 4 * sum(int(place.stop - place.start) for place in crop_slices(spec, crop_layers))
    return 4 * (n_labels if kind == "skew" else n_outputs)


def feature_steps(kind: Kind, samples: int, batch: int) -> float:
    """Work of one device for its feature, in training steps.

    φ and its crop train for one epoch (D11), F runs the model forward over whole batches, the histogram
    is known.
    """
    _check(kind)
    if kind == "skew":
        return 0.0
    return math.ceil(samples / batch) if kind != "pred" else max(1, samples // batch) * FORWARD_SHARE


@dataclass(frozen=True)
class RoundBytes:
    """Bytes of one global round of Algorithm 1, by what they carry.

    Attributes:
        features: Devices to the server.
        links: Devices to the server: each reports its link to every other device, 4 bytes each.
        inside: Between members and heads, both ways.
        heads: Cluster models, heads to the server.
        broadcast: The global model, server to every device.
    """

    features: int
    links: int
    inside: int
    heads: int
    broadcast: int


def round_bytes(model: int, feature: int, sizes: ArrayLike, rounds: ArrayLike) -> RoundBytes:
    """Bytes of one global round (D20).

    Args:
        model: Bytes of a model.
        feature: Bytes of a device's feature, 0 if it was sent in an earlier round.
        sizes: ``[U]`` members per cluster.
        rounds: ``[U]`` intra-cluster rounds r_c. A cluster without a round has nothing new to send.
    """
    members, r = np.asarray(sizes, dtype=np.int64), np.asarray(rounds, dtype=np.int64)
    n = int(members.sum())
    return RoundBytes(
        features=n * feature,
        links=4 * n * n,
        inside=2 * model * int(((members - 1) * r).sum()),
        heads=model * int((r > 0).sum()),
        broadcast=n * model,
    )


def _bias_of(weight: Entry, entries: dict[str, Entry]) -> list[Entry]:
    prefix = weight.name.rpartition(".")[0]
    found = entries.get(f"{prefix}.bias" if prefix else "bias")
    return [found] if found is not None else []


def _check(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"feature is {kind!r}; accepted: {', '.join(KINDS)}.{nearest(kind, KINDS)}")

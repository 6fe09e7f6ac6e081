"""What a device tells the server about its learning direction.

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

import numpy as np
from numpy.typing import ArrayLike, NDArray

from espalier.core.errors import ConfigError
from espalier.core.params import Entry, ParamSpec

FORWARD_SHARE = 1 / 3
"""Cost of a forward pass in training steps."""

#: what the projection on a residual block's shortcut is called: by ResNets here, by torchvision's
SHORTCUTS = ("shortcut", "downsample")


def crop_slices(spec: ParamSpec, layers: int = 1) -> tuple[slice, ...]:
    """Places of the smallest convolution layers, weight and bias, in a model's flat vector (D13).

    A model without convolutions is cropped to its smallest layers with a weight matrix. Projections on shortcuts are no
    layers of their own: without them the four smallest of ResNet-18 are its stem and three 3×3 convolutions, which
    with a stem of 7×7 are the paper's 1.086 % of the weights.

    Args:
        spec: The model.
        layers: How many layers; ties go to the earlier one. The paper takes 1 of its CNN and 4 of
            SqueezeNet and ResNet-18.

    Returns:
        Slices in the order of the vector.
    """
    entries = {e.name: e for e in spec.parameters}
    weights = [e for e in entries.values() if len(e.shape) >= 2 and not set(SHORTCUTS) & set(e.name.split("."))]
    chosen = [e for e in weights if len(e.shape) >= 3] or weights
    if not 1 <= layers <= len(chosen):
        raise ConfigError(f"layers is {layers}; the model has {len(chosen)} layers to crop to, so 1 to that many.")
    # A layer is a weight and, where there is one, the bias beside it: "conv1.weight" and "conv1.bias".
    grouped = [[e, *_bias_of(e, entries)] for e in chosen]
    grouped.sort(key=lambda layer: sum(e.stop - e.start for e in layer))
    places = sorted((e.start, e.stop) for layer in grouped[:layers] for e in layer)
    return tuple(slice(start, stop) for start, stop in places)


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
    used = len(outputs) // batch * batch or len(outputs)
    mean: NDArray[np.float64] = outputs[:used].mean(axis=0)
    return mean


def _bias_of(weight: Entry, entries: dict[str, Entry]) -> list[Entry]:
    prefix = weight.name.rpartition(".")[0]
    found = entries.get(f"{prefix}.bias" if prefix else "bias")
    return [found] if found is not None else []

"""How fast the native kernels are: layer by layer beside PyTorch's, and what they gain whole training steps.

    python benchmarks/native.py                     # all of it, about two minutes
    python benchmarks/native.py --only layers       # useful arithmetic per second of every convolution and batch size
    python benchmarks/native.py --only linear       # the same of linear layers
    python benchmarks/native.py --only models       # whole chunks of training with and without the kernels
    python benchmarks/native.py --only half         # whole chunks in bfloat16 and in float32
    python benchmarks/native.py --profile           # where the time of LeNet's and the MLP's chunks goes
    python benchmarks/native.py --json FILE         # the figures for a program

One thread. Both sides of a comparison take turns, and each counts its best time, so that other work on the machine
takes no side. Useful arithmetic is two operations per weight and output place, for each of: the result, the weights'
gradient, the input's gradient. The latter is the difference between a backward pass with it and one without.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from espalier.core.seeds import key
from espalier.training.host import keep_pages
from espalier.training.models import build
from espalier.training.native import Kernels, kernels
from espalier.training.trainer import Trainer
from espalier.training.work import Optimizer, TrainerJob


@dataclass(frozen=True)
class Layer:
    """A convolution of square images and kernels; images have their channels last where it is not pooled."""

    inputs: int
    side: int
    outputs: int
    kernel: int
    padding: int
    pooled: bool
    stride: int = 1

    @property
    def places(self) -> int:
        return ((self.side + 2 * self.padding - self.kernel) // self.stride + 1) ** 2

    def laid(self, images: Tensor) -> Tensor:
        """Return images ``[n, C, H, W]`` as they lie in memory where such layers are met."""
        return images if self.pooled else images.contiguous(memory_format=torch.channels_last)


LAYERS = {
    "LeNet 1: 1→6, 28×28, 5×5, pooled": Layer(1, 28, 6, 5, 2, True),
    "LeNet 2: 6→16, 14×14, 5×5, pooled": Layer(6, 14, 16, 5, 0, True),
    "D2D CNN 1: 3→6, 32×32, 5×5, pooled": Layer(3, 32, 6, 5, 0, True),
    "FedAvg CNN 1: 1→32, 28×28, 5×5, pooled": Layer(1, 28, 32, 5, 2, True),
    "FedAvg CNN 2: 32→64, 14×14, 5×5, pooled": Layer(32, 14, 64, 5, 2, True),
    "ResNet-8: 16→16, 32×32, 3×3": Layer(16, 32, 16, 3, 1, False),
    "ResNet-8: 16→32, 32×32, 3×3, stride 2": Layer(16, 32, 32, 3, 1, False, 2),
    "ResNet-8: 32→32, 16×16, 3×3": Layer(32, 16, 32, 3, 1, False),
    "ResNet-8: 64→64, 8×8, 3×3": Layer(64, 8, 64, 3, 1, False),
    "LeNet 1 on digits: 1→6, 8×8, 5×5, pooled": Layer(1, 8, 6, 5, 2, True),
}
#: inputs, outputs, clients of a chunk
LINEAR = {
    "MLP 1: 784→200": (784, 200, 10),
    "MLP 2: 200→200": (200, 200, 10),
    "MLP 3: 200→10": (200, 10, 10),
    "EASF MLP 1: 784→512": (784, 512, 3),
    "LeNet 3: 400→120": (400, 120, 20),
    "LeNet 4: 120→84": (120, 84, 20),
    "LeNet 5: 84→10": (84, 10, 20),
    "FedAvg CNN 3: 3136→512": (3136, 512, 2),
    "D2D MLP: 2048→2048": (2048, 2048, 2),
}
BATCHES = (10, 16, 32)
#: model, batch, sample, clients, steps of each
MODELS: tuple[tuple[str, int, tuple[int, ...], int, int], ...] = (
    ("mlp", 10, (1, 28, 28), 20, 15),
    ("mlp", 32, (1, 28, 28), 20, 8),
    ("mlp_easf", 10, (1, 28, 28), 12, 8),
    ("mlp_d2d", 32, (48,), 4, 3),
    ("lenet", 10, (1, 28, 28), 20, 15),
    ("lenet", 32, (1, 28, 28), 20, 8),
    ("d2d_cnn", 16, (3, 32, 32), 20, 8),
    ("fedavg_cnn", 10, (1, 28, 28), 8, 4),
    ("resnet_small", 32, (3, 32, 32), 4, 2),
)
Passes = tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]


def native_passes(found: Kernels, layer: Layer, x: Tensor, w: Tensor, bias: Tensor) -> Passes:
    """Return forward, backward without and backward with the input's gradient."""
    around, step = [layer.padding] * 2, layer.stride
    x = x if layer.pooled else layer.laid(x.flatten(0, 1))
    y, where = found.conv(x, w, bias, around, stride=step, pooled=layer.pooled)
    g = torch.randn_like(y)
    return (
        lambda: found.conv(x, w, bias, around, stride=step, pooled=layer.pooled),
        lambda: found.conv_backward(x, w, g, where, around, stride=step, wants_x=False),
        lambda: found.conv_backward(x, w, g, where, around, stride=step, wants_x=True),
    )


def library_passes(layer: Layer, x: Tensor, w: Tensor, bias: Tensor) -> Passes:
    """Return the same from PyTorch's own operations, client by client."""
    ops, around, steps = torch.ops.aten, [layer.padding] * 2, [layer.stride] * 2
    images = [layer.laid(one) for one in x]

    def forward() -> list[tuple[Tensor, Tensor]]:
        found = []
        for one, weights, start in zip(images, w, bias, strict=True):
            y = torch.conv2d(one, weights, start, steps, around)
            found.append((y := F.relu(y), F.max_pool2d(y, 2, return_indices=True)[1]) if layer.pooled else (y, y))
        return found

    kept = forward()
    gradients = [layer.laid(torch.randn(where.shape)) for _, where in kept]

    def backward(wants_x: bool) -> None:
        for one, weights, (y, where), g in zip(images, w, kept, gradients, strict=True):
            if layer.pooled:
                g = ops.max_pool2d_with_indices_backward(g, y, [2, 2], [2, 2], [0, 0], [1, 1], False, where)
                g = ops.threshold_backward(g, y, 0)
            mask = [wants_x, True, True]
            ops.convolution_backward(g, one, weights, [layer.outputs], steps, around, [1, 1], False, [0, 0], 1, mask)

    return forward, lambda: backward(False), lambda: backward(True)


def linear_passes(found: Kernels, x: Tensor, w: Tensor, bias: Tensor, g: Tensor) -> tuple[Passes, Passes]:
    """Return the passes of a linear layer in plain SGD, the kernels' and the library's: backward is the step."""
    own, theirs = (w.clone(), bias.clone()), (w.clone(), bias.clone())

    def native(wants_x: bool) -> None:
        found.linear_backward(x, own[0], g, *own, add=(True, True), wants_x=wants_x)

    def library(wants_x: bool) -> None:
        if wants_x:
            torch.bmm(g, theirs[0])
        theirs[0].baddbmm_(g.mT, x)
        theirs[1].add_(g.sum(1))

    return (
        (lambda: found.linear(x, w, bias), lambda: native(False), lambda: native(True)),
        (lambda: torch.baddbmm(bias.unsqueeze(1), x, w.mT), lambda: library(False), lambda: library(True)),
    )


def best(calls: list[Callable[[], Any]], turns: int = 5, at_least: float = 0.006) -> list[float]:
    """Return each call's least seconds; the calls take turns, each long enough to be measured."""
    counts = []
    for call in calls:
        call()
        start = time.process_time()
        call()
        counts.append(1 + int(at_least / (time.process_time() - start)))
    found = [float("inf")] * len(calls)
    for _ in range(turns):
        for i, (call, count) in enumerate(zip(calls, counts, strict=True)):
            start = time.process_time()
            for _ in range(count):
                call()
            found[i] = min(found[i], (time.process_time() - start) / count)
    return found


def head() -> None:
    a = torch.rand(1024, 1024)
    (product,) = best([lambda: a @ a])
    print(f"Matrix products reach {2 * 1024**3 / product / 1e9:.0f} GF/s on one thread.\n")
    print("| layer | batch | result | weights' gradient | input's gradient | all three | times as fast as PyTorch |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")


def compared(name: str, batch: int, work: float, native: Passes, library: Passes) -> dict[str, Any]:
    """Measure one layer, of ``work`` GF in each of the three products; print and return its rates."""
    times = best([*native, *library])
    row: dict[str, Any] = {"layer": name, "batch": batch}
    for side, (forward, weights, both) in (("native", times[:3]), ("library", times[3:])):
        parts = (forward, weights, max(both - weights, 1e-9))
        row[side] = {
            "forward": work / parts[0], "weights": work / parts[1], "inputs": work / parts[2],
            "all": 3 * work / sum(parts),
        }  # fmt: skip
    mine, theirs = row["native"], row["library"]
    cells = " | ".join(f"{mine[part]:.0f} ({theirs[part]:.0f})" for part in mine)
    print(f"| {name} | {batch} | {cells} | {mine['all'] / theirs['all']:.1f} |", flush=True)
    return row


def layers(found: Kernels) -> list[dict[str, Any]]:
    head()
    rows = []
    for name, layer in LAYERS.items():
        for batch in BATCHES:
            clients = max(3, 100 // batch)
            draw = torch.Generator().manual_seed(0)
            x = torch.randn(clients, batch, layer.inputs, layer.side, layer.side, generator=draw)
            w = torch.randn(clients, layer.outputs, layer.inputs, layer.kernel, layer.kernel, generator=draw)
            bias = torch.randn(clients, layer.outputs, generator=draw)
            work = 2 * clients * batch * layer.places * w[0].numel() / 1e9
            passes = native_passes(found, layer, x, w, bias), library_passes(layer, x, w, bias)
            rows.append(compared(name, batch, work, *passes))
    print("\nGF/s, PyTorch's in brackets. Products with padding count but are partly left out: some pass the peak.\n")
    return rows


def linear(found: Kernels) -> list[dict[str, Any]]:
    head()
    rows = []
    for name, (inputs, outputs, clients) in LINEAR.items():
        for batch in BATCHES:
            draw = torch.Generator().manual_seed(0)
            shapes = (clients, batch, inputs), (clients, outputs, inputs), (clients, outputs), (clients, batch, outputs)
            # Small, so that weights that take the same step again and again stay numbers.
            tensors = [1e-3 * torch.randn(shape, generator=draw) for shape in shapes]
            work = 2 * clients * batch * inputs * outputs / 1e9
            rows.append(compared(name, batch, work, *linear_passes(found, *tensors)))
    print("\nGF/s, PyTorch's in brackets. The weights' gradient includes their step, and the bias's.\n")
    return rows


@dataclass(frozen=True)
class Memory:
    """A pool of rows in memory."""

    x: Tensor
    y: Tensor

    def gather(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.x[rows], self.y[rows]


def chunk(
    name: str, batch: int, shape: tuple[int, ...], clients: int, steps: int, half: bool = False
) -> Callable[[], Any]:
    """Return a training of one chunk, always the same."""
    draw = torch.Generator().manual_seed(0)
    rows = np.arange(clients * batch * steps).reshape(clients, -1)
    x, y = torch.rand(rows.size, *shape, generator=draw), torch.randint(0, 10, (rows.size,), generator=draw)
    trainer = Trainer(build(name, input_shape=shape, n_classes=10), "cross_entropy", workers=1, half=half)
    start, pool = trainer.initial(0), Memory(x, y)
    optimizer = Optimizer(lr=0.01)
    jobs = [
        TrainerJob(start=start, pool=pool, rows=own, batch_size=batch, optimizer=optimizer, seed=key(0, "bench", c))
        for c, own in enumerate(rows)
    ]
    return lambda: list(trainer.run(jobs))


def serve() -> None:
    """Train the chunk of every number read, and answer with the seconds of this process."""
    made: dict[int, Callable[[], Any]] = {}
    for line in sys.stdin:
        number = int(line)
        if number not in made:
            made = {number: chunk(*MODELS[number])}
            made[number]()
        start = time.process_time()
        made[number]()
        print(time.process_time() - start, flush=True)


def models() -> list[dict[str, Any]]:
    sides = {}
    for switch in "01":
        sides[switch] = subprocess.Popen(
            [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "ESPALIER_NATIVE": switch, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    print("| model | batch | samples | ms per step and client, PyTorch alone | with the kernels | times as fast |")
    print("| --- | ---: | --- | ---: | ---: | ---: |")
    rows = []
    for number, (name, batch, shape, clients, steps) in enumerate(MODELS):
        times = dict.fromkeys(sides, float("inf"))
        for _ in range(4):
            for switch, side in sides.items():
                assert side.stdin and side.stdout
                print(number, file=side.stdin, flush=True)
                times[switch] = min(times[switch], float(side.stdout.readline()))
        plain, native = (1e3 * times[s] / clients / steps for s in "01")
        rows.append({"model": name, "batch": batch, "plain_ms": plain, "native_ms": native, "ratio": plain / native})
        size = "×".join(map(str, shape))
        print(f"| {name} | {batch} | {size} | {plain:.2f} | {native:.2f} | {plain / native:.2f} |", flush=True)
    for side in sides.values():
        side.communicate()
    print()
    return rows


def halves() -> list[dict[str, Any]]:
    """Compare bfloat16 with float32, for the models with wide convolutions."""
    print("| model | batch | ms per step and client, float32 | bfloat16 | times as fast |")
    print("| --- | ---: | ---: | ---: | ---: |")
    rows = []
    for model in MODELS:
        if model[0] not in ("fedavg_cnn", "resnet_small"):
            continue
        count = 1e3 / model[3] / model[4]
        single, half = (count * seconds for seconds in best([chunk(*model), chunk(*model, half=True)]))
        row = {"model": model[0], "batch": model[1], "single_ms": single, "half_ms": half, "ratio": single / half}
        rows.append(row)
        print(f"| {model[0]} | {model[1]} | {single:.2f} | {half:.2f} | {single / half:.2f} |", flush=True)
    print()
    return rows


def profile(found: Kernels) -> dict[str, dict[str, float]]:
    """Print and return the shares of one chunk's time, for LeNet and the MLP."""
    shares: dict[str, dict[str, float]] = {}
    for model in MODELS:
        if model[:2] not in (("lenet", 32), ("mlp", 10)):
            continue
        train, spent = chunk(*model), dict.fromkeys(("native training", "gathering batches"), 0.0)
        train()
        native, gather = found.train, Memory.gather
        start = time.perf_counter()
        with (
            patch.object(found, "train", timed(native, spent, "native training")),
            patch.object(Memory, "gather", timed(gather, spent, "gathering batches")),
        ):
            train()
        whole = time.perf_counter() - start
        spent["rest"] = whole - sum(spent.values())
        shares[model[0]] = {part: seconds / whole for part, seconds in spent.items()}
        print(f"| {model[0]}, batch {model[1]} | share |")
        print("| --- | ---: |")
        for part, share in shares[model[0]].items():
            print(f"| {part} | {share:.1%} |")
        print()
    return shares


def timed(function: Callable[..., Any], spent: dict[str, float], part: str) -> Callable[..., Any]:
    """Return the function, adding its seconds to a part's."""

    def call(*args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            spent[part] += time.perf_counter() - start

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["layers", "linear", "models", "half"])
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_pages()
    if args.serve:
        serve()
        return
    found = kernels()
    if found is None:
        raise SystemExit("There are no native kernels here: `make install` builds them where there is a compiler.")
    figures: dict[str, Any] = {}
    if args.profile:
        figures["profile"] = profile(found)
    else:
        if args.only in (None, "layers"):
            figures["layers"] = layers(found)
        if args.only in (None, "linear"):
            figures["linear"] = linear(found)
        if args.only in (None, "models"):
            figures["models"] = models()
        if args.only in (None, "half"):
            figures["half"] = halves()
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

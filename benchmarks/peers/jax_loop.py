"""Plain JAX: jit over vmap over clients over scan over steps. Prints seconds per round, and of the compiling one."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import work

#: clients stepped at once
CHUNK = int(os.environ.get("BENCH_CHUNK", "5"))
Weights = list[tuple[Any, Any]]


def weights_of(name: str) -> Weights:
    """Return the torch model's weights, layer by layer, in JAX's layouts."""
    if name not in ("mlp", "lenet", "fedavg_cnn"):
        print("unsupported")
        sys.exit(0)
    return [
        (jnp.asarray(layer.weight.detach().numpy()), jnp.asarray(layer.bias.detach().numpy()))
        for layer in work.model(name)
        if hasattr(layer, "weight")
    ]


def forward(name: str, weights: Weights, x: Any) -> Any:
    """Return the logits of a batch."""
    layers = list(weights)
    if name != "mlp":
        for i, (w, b) in enumerate(layers[:2]):
            same = name == "fedavg_cnn" or i == 0
            x = jax.lax.conv(x, w, (1, 1), "SAME" if same else "VALID") + b[:, None, None]
            x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        layers = layers[2:]
    x = x.reshape(x.shape[0], -1)
    for w, b in layers[:-1]:
        x = jax.nn.relu(x @ w.T + b)
    w, b = layers[-1]
    return x @ w.T + b


def main() -> None:
    name, batch, clients, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    shared = weights_of(name)
    tx, ty = work.data(clients, batch, name)
    x, y = tx.numpy(), ty.numpy()

    def loss(weights: Weights, bx: Any, by: Any) -> Any:
        scores = jax.nn.log_softmax(forward(name, weights, bx))
        return -jnp.take_along_axis(scores, by[:, None], 1).mean()

    def train(weights: Weights, cx: Any, cy: Any, order: Any) -> Weights:
        def step(w: Weights, rows: Any) -> tuple[Weights, None]:
            gradients = jax.grad(loss)(w, cx[rows], cy[rows])
            return jax.tree.map(lambda a, g: a - work.LR * g, w, gradients), None

        return jax.lax.scan(step, weights, order)[0]

    @jax.jit
    def chunk(weights: Weights, cx: Any, cy: Any, order: Any) -> Weights:
        trained = jax.vmap(train, in_axes=(None, 0, 0, 0))(weights, cx, cy, order)
        return jax.tree.map(lambda a: a.sum(0) / clients, trained)

    draw = np.random.default_rng(0)
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        total = jax.tree.map(jnp.zeros_like, shared)
        for first in range(0, clients, CHUNK):
            cx, cy = x[first : first + CHUNK], y[first : first + CHUNK]
            order = np.stack([draw.permutation(cx.shape[1]).reshape(-1, batch) for _ in cx])
            total = jax.tree.map(jnp.add, total, chunk(shared, cx, cy, order))
        shared = jax.block_until_ready(total)
        seconds.append(time.perf_counter() - start)
    print(f"first {seconds[0]:.3f}")
    print(json.dumps(seconds[1:]))


if __name__ == "__main__":
    main()

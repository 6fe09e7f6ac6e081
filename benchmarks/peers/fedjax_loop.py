"""FedJAX's own federated averaging. Prints seconds per round, and of the one that compiles."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import work
from fedjax.algorithms import fed_avg
from jax_loop import forward, weights_of


def main() -> None:
    name, batch, clients, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    shared = weights_of(name)
    x, y = work.data(clients, batch, name)
    data = [fedjax.ClientDataset({"x": x[i].numpy(), "y": y[i].numpy()}) for i in range(clients)]

    def loss(weights: Any, examples: Any, rng: Any) -> Any:
        scores = jax.nn.log_softmax(forward(name, weights, examples["x"]))
        return -jnp.take_along_axis(scores, examples["y"][:, None], 1).mean()

    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(work.LR),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=batch, num_epochs=1),
    )
    state = algorithm.init(shared)
    seconds = []
    for number in range(rounds + 1):
        start = time.perf_counter()
        keys = jax.random.split(jax.random.PRNGKey(number), clients)
        state, _ = algorithm.apply(state, [(bytes([i]), data[i], keys[i]) for i in range(clients)])
        jax.block_until_ready(state.params)
        seconds.append(time.perf_counter() - start)
    print(f"first {seconds[0]:.3f}")
    print(json.dumps(seconds[1:]))


main()

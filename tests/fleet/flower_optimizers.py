"""What the real Flower's server optimisers step to; run by Flower's interpreter: ``… models.npz out.npz``."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAdagrad, FedAdam, FedAvgM, FedOpt, FedYogi, QFedAvg


def corrected(rate: float, beta_1: float, beta_2: float, server_round: int) -> float:
    """Return the rate that Flower's FedAdam makes of a rate by its correction of bias."""
    return float(rate * np.sqrt(1 - beta_2 ** (server_round + 1)) / (1 - beta_1 ** (server_round + 1)))


def steps(strategy: Any, rounds: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return a strategy's model after each round of reports ``[R, K, P]``."""
    found = []
    for number, models in enumerate(rounds, start=1):
        results = [
            (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([model]), int(n), {}))
            for model, n in zip(models, counts, strict=True)
        ]
        if isinstance(strategy, FedAdam):  # published without that correction
            strategy.eta = 0.01 / corrected(1.0, strategy.beta_1, strategy.beta_2, number)
        if isinstance(strategy, QFedAvg):
            strategy.pre_weights = found[-1:] or [np.zeros(models.shape[1])]
        parameters, _ = strategy.aggregate_fit(number, results, [])
        found.append(parameters_to_ndarrays(parameters)[0])
    return np.stack(found)


def main(source: str, target: str) -> None:
    """Step from zeros along rounds of reports."""
    given = np.load(source)
    rounds, counts, tau = given["rounds"], given["counts"], float(given["tau"])
    size = rounds.shape[-1]
    begin = {"initial_parameters": ndarrays_to_parameters([np.zeros(size)])}
    adaptive: list[FedOpt] = [
        FedAdagrad(**begin, eta=0.03, tau=tau),
        FedAdam(**begin, eta=0.01, tau=tau),
        FedYogi(**begin, eta=0.01, tau=tau),
    ]
    for strategy in adaptive:  # published with this beginning
        strategy.v_t = [np.full(size, tau**2)]
    fair = QFedAvg(q_param=0.5, qffl_learning_rate=0.1, evaluate_fn=lambda *_: (float(given["loss"]), {}))
    found = [FedAvgM(**begin, server_momentum=0.9, server_learning_rate=0.5), *adaptive, fair]
    np.savez(target, **{type(s).__name__.lower(): steps(s, rounds, counts) for s in found})


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Apple's pfl, simulated backend, torch's default threads. Prints seconds per round."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch
import work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn

NAME, BATCH, CLIENTS, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = work.model(NAME)

    def forward(self, x: Any) -> Any:
        return self.inner(x)

    def loss(self, x: Any, y: Any, eval: bool = False) -> Any:
        self.train(not eval)
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: Any, y: Any, eval: bool = False) -> dict[str, Any]:
        return {}


class Clock(TrainingProcessCallback):
    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.times.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    x, y = work.data(CLIENTS, BATCH, NAME)
    sampler = get_user_sampler("minimize_reuse", list(range(CLIENTS)))
    users = FederatedDataset(
        lambda u: Dataset(raw_data=[x[u], y[u]], train_kwargs={"eval": False}, eval_kwargs={"eval": True}), sampler
    )
    net = Net()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=ROUNDS + 1, evaluation_frequency=10**6, train_cohort_size=CLIENTS, val_cohort_size=0
        ),
        backend=SimulatedBackend(users, users, []),
        model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.LR, local_batch_size=BATCH),
        model_eval_params=NNEvalHyperParams(local_batch_size=BATCH),
        callbacks=[clock],
    )
    seconds = [b - a for a, b in zip(clock.times, clock.times[1:], strict=False)]
    print(json.dumps(seconds[1:]))


main()

"""Flower's simulation engine (Ray backend, one CPU per client, all cores). Prints seconds per round."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, ClassVar

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
os.environ["PYTHONPATH"] = HERE + os.pathsep + os.environ.get("PYTHONPATH", "")

import torch  # noqa: E402
import work  # noqa: E402
from flwr.client import ClientApp, NumPyClient  # noqa: E402
from flwr.common import Context, ndarrays_to_parameters  # noqa: E402
from flwr.server import ServerApp, ServerAppComponents, ServerConfig  # noqa: E402
from flwr.server.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

NAME, BATCH, CLIENTS, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])


class Client(NumPyClient):
    def __init__(self, number: int) -> None:
        x, y = work.data(CLIENTS, BATCH, NAME)
        self.data = TensorDataset(x[number].clone(), y[number].clone())
        self.model = work.model(NAME)

    def fit(self, parameters: Any, config: Any) -> Any:
        torch.set_num_threads(1)
        with torch.no_grad():
            for p, value in zip(self.model.parameters(), parameters, strict=True):
                p.copy_(torch.from_numpy(value))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=work.LR)
        for bx, by in DataLoader(self.data, batch_size=BATCH, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(bx), by).backward()
            optimizer.step()
        return [p.detach().numpy() for p in self.model.parameters()], len(self.data), {}


def client_fn(context: Context) -> Any:
    return Client(int(context.node_config["partition-id"])).to_client()


class Timed(FedAvg):
    begun: ClassVar[list[float]] = []
    ended: ClassVar[list[float]] = []

    def configure_fit(self, *args: Any, **kwargs: Any) -> Any:
        Timed.begun.append(time.perf_counter())
        return super().configure_fit(*args, **kwargs)

    def aggregate_fit(self, *args: Any, **kwargs: Any) -> Any:
        found = super().aggregate_fit(*args, **kwargs)
        Timed.ended.append(time.perf_counter())
        return found


def server_fn(context: Context) -> ServerAppComponents:
    first = ndarrays_to_parameters([p.detach().numpy() for p in work.model(NAME).parameters()])
    strategy = Timed(
        fraction_fit=1.0, fraction_evaluate=0.0, min_fit_clients=CLIENTS, min_available_clients=CLIENTS,
        initial_parameters=first,
    )  # fmt: skip
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS + 1))


if __name__ == "__main__":
    out = os.dup(1)
    os.dup2(2, 1)
    run_simulation(
        ServerApp(server_fn=server_fn),
        ClientApp(client_fn=client_fn),
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    seconds = [e - b for b, e in zip(Timed.begun, Timed.ended, strict=False)]
    os.write(out, (json.dumps(seconds[1:]) + "\n").encode())

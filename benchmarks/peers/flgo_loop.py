"""FLGo's FedAvg: its server, clients, clock and simulator, all clients in every round. Prints seconds per round.

`flgo.init` wants a task on disk; the parts that it puts together are put together here, with its default options.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from typing import Any
from unittest.mock import MagicMock

for part in ("", ".datasets", ".transforms", ".models", ".models.resnet", ".utils"):
    sys.modules[f"torchvision{part}"] = MagicMock()  # FLGo imports it for models and datasets that are not used here

import flgo  # noqa: E402
import flgo.algorithm.fedbase as fedbase  # noqa: E402
import flgo.simulator.base as simulation  # noqa: E402
import torch  # noqa: E402
import work  # noqa: E402
from flgo.benchmark.toolkits.cv.classification import GeneralCalculator  # noqa: E402
from flgo.simulator.default_simulator import Simulator  # noqa: E402
from flgo.utils.fflow import GlobalVariable, default_option_dict  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

NAME, BATCH, CLIENTS, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
OPTION: dict[str, Any] = {
    **default_option_dict, "task": "bench", "scene": "horizontal", "sample": "full", "proportion": 1.0,
    "num_rounds": ROUNDS + 1, "num_epochs": 1, "num_steps": work.STEPS, "batch_size": BATCH, "learning_rate": work.LR,
    "no_tqdm": True,
}  # fmt: skip


class Server(fedbase.BasicServer):  # type: ignore[misc, name-defined]
    """As `flgo.init` makes it: sampling, latency and dropout under the simulator."""

    TaskCalculator = GeneralCalculator
    sample = simulation.with_availability(fedbase.BasicServer.sample)
    communicate_with = simulation.with_latency(fedbase.BasicServer.communicate_with)
    communicate = simulation.with_dropout(fedbase.BasicServer.communicate)


class Client(fedbase.BasicClient):  # type: ignore[misc, name-defined]
    """As `flgo.init` makes it."""

    TaskCalculator = GeneralCalculator
    train = simulation.with_completeness(fedbase.BasicClient.train)


def main() -> None:
    torch.set_num_threads(OPTION["torch_num_threads"])
    shared = GlobalVariable(logger=MagicMock(), dev_list=[torch.device("cpu")], TaskCalculator=GeneralCalculator)
    Server.gv = Client.gv = shared
    server, clients = Server(OPTION), [Client(OPTION) for _ in range(CLIENTS)]
    x, y = work.data(CLIENTS, BATCH, NAME)
    for number, client in enumerate(clients):
        client.set_id(number)
        client.set_data(TensorDataset(x[number], y[number]), "train")
        client.register_server(server)
    server.register_clients(clients)
    flgo.convert_model(lambda: work.model(NAME)).init_global_module(server)
    shared.communicator = flgo.VirtualCommunicator([server, *clients])
    shared.clock = simulation.ElemClock()
    shared.simulator = Simulator([server, *clients], OPTION)
    shared.simulator.gv = shared.clock.gv = shared
    shared.simulator.initialize()
    shared.clock.register_simulator(simulator=shared.simulator)
    seconds = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            shared.clock.step()
            server.iterate()
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds[1:]))


main()

"""FedLab's standalone simulation: SGDSerialClientTrainer and the synchronous server. Prints seconds per round."""

from __future__ import annotations

import json
import sys
import time
from typing import Any
from unittest.mock import MagicMock

for name in ("torchvision", "torchvision.datasets", "torchvision.transforms"):
    sys.modules[name] = MagicMock()  # FedLab imports it for datasets that are not used here

import work  # noqa: E402
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

NAME, BATCH, CLIENTS, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])


class Data:
    """What FedLab asks a dataset for."""

    def __init__(self) -> None:
        self.x, self.y = work.data(CLIENTS, BATCH, NAME)

    def get_dataloader(self, cid: int, batch_size: int) -> Any:
        return DataLoader(TensorDataset(self.x[cid], self.y[cid]), batch_size=batch_size, shuffle=True)


def main() -> None:
    model = work.model(NAME)
    handler = SyncServerHandler(model, ROUNDS + 1, 1.0, cuda=False)
    handler.num_clients = CLIENTS
    trainer = SGDSerialClientTrainer(model, CLIENTS, cuda=False)
    trainer.setup_dataset(Data())
    trainer.setup_optim(1, BATCH, work.LR)
    seconds = []
    while not handler.if_stop:
        start = time.perf_counter()
        trainer.local_process(handler.downlink_package, handler.sample_clients())
        for package in trainer.uplink_package:
            handler.load(package)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds[1:]))


main()

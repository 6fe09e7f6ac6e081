"""A Flower client, written for the real flwr package and unchanged, is a device of a fleet."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor, nn

from espalier.experiment import Experiment
from espalier.fleet.local import LocalFleet
from espalier.record.run import Run
from espalier.simulator.task import Task
from tests.fleet import flower_env
from tests.fleet.counting import weights_of

ROUNDS, EPOCHS = 3, 5
COMMAND = "from espalier.cli.main import main; main()"


def trained(weight: Tensor, bias: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """What the client's fit makes of a model: gradient descent on its samples."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images[part] / 16, dtype=torch.float32), torch.tensor(labels[part])
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    for _ in range(EPOCHS):
        slopes = torch.autograd.grad(nn.functional.cross_entropy(x @ weight.T + bias, y), (weight, bias))
        with torch.no_grad():
            weight -= 0.5 * slopes[0]
            bias -= 0.5 * slopes[1]
    return weight.detach(), bias.detach()


def started(folder: Path, parent: str, number: int) -> subprocess.Popen[bytes]:
    """Start a device whose client is Flower's, with Flower's interpreter."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
    options = [
        "--parent", parent, "--number", str(number), "--certs", folder / "ca" / f"device-{number}",
        "--dir", folder / f"device-{number}", "--flower-client", "tests.fleet.flower_client:client_fn",
    ]  # fmt: skip
    with (folder / f"device-{number}.err").open("wb") as errors:
        return subprocess.Popen(
            [flower_env.python(), "-c", COMMAND, "node", "device", *options],
            env={**os.environ, **quiet}, stderr=errors,
        )  # fmt: skip


def failures(folder: Path, devices: list[subprocess.Popen[bytes]]) -> None:
    """Fail at once if a device did: the others would wait for it."""
    for number, device in enumerate(devices):
        assert not device.poll(), (folder / f"device-{number}.err").read_text()[-2000:]


def test_a_flower_client_is_a_device(tmp_path: Path) -> None:
    made = Experiment.build(
        {
            "methods": ["hierfavg"], "seeds": [0], "task": {"model": "logistic"}, "fleet": {"devices": 2, "edges": 1},
            "training": {"updates": EPOCHS}, "stop": {"rounds": ROUNDS},
        }
    )  # fmt: skip
    flower_env.python()  # made before anybody waits
    with LocalFleet(made, tmp_path) as fleet:
        fleet.start("cloud", "edge-0")
        devices = [started(tmp_path, fleet.address("edge-0"), number) for number in range(2)]
        try:
            fleet.wait(90, lambda _: failures(tmp_path, devices))
            assert [device.wait(15) for device in devices] == [0, 0]
        finally:
            for device in devices:
                device.kill()
                device.wait()
    # the same by hand. What fit says of its examples is the weight: 300 and 900 are 1/4 and 3/4
    found = load_file(tmp_path / "cloud" / "models" / "global.safetensors")
    weight, bias = weights_of(made).reshape(10, 64), torch.zeros(10)
    task = Task.of(made, made.dataset())
    bias = task.spec.views(task.initial(0, 0))["1.bias"]
    for _ in range(ROUNDS):
        one, other = trained(weight, bias, slice(0, 300)), trained(weight, bias, slice(300, 1200))
        weight, bias = (a / 4 + 3 * b / 4 for a, b in zip(one, other, strict=True))
    torch.testing.assert_close(found["1.weight"], weight, atol=1e-6, rtol=0)
    torch.testing.assert_close(found["1.bias"], bias, atol=1e-6, rtol=0)
    # what its evaluate says of the models it was handed is in the record
    scores = Run(tmp_path / "cloud").query(
        "SELECT data FROM arrays WHERE name = 'acc_device' ORDER BY rowid DESC LIMIT 1"
    )
    assert np.frombuffer(scores[0][0], dtype="<f4").min() > 0.5

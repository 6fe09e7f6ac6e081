"""Train a model of your own over a tree of devices, look at what devices use, and save it.

python own_model.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import espalier


class Net(nn.Module):
    """A small convolutional network for 8×8 digits."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.head = nn.Linear(width * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of images ``[n, 1, 8, 8]``."""
        return self.head(self.body(x))


class Print(espalier.Callback):
    """Says how the run goes."""

    def on_evaluation(self, progress):
        """Print a line."""
        print(f"round {progress.round}: accuracy per device {progress.figures['acc_device']:.3f}")


setting = {
    "task": {"dataset": "digits", "model": Net, "model_options": {"width": 8}},  # the class; its options
    "partition": {"kind": "dirichlet", "alpha": 0.3},
    "fleet": {"devices": 12, "edges": 3},
    "training": {"lr": 0.1, "updates": 2},
    "stop": {"rounds": 4},
}
run = espalier.simulate("hierfavg", setting, callbacks=[Print()])

images = load_digits().images[:10, None] / 16.0
print("the cloud's model reads", run.predict(images))
print("device 7's model reads ", run.predict(images, device=7))
torch.save(run.model().state_dict(), "net.pt")  # or, of a run in a directory: espalier export RUN --format onnx -o FILE

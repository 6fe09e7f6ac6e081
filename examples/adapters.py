"""Fine-tune a model over a tree of devices with adapters (LoRA): the base is frozen, only adapters travel.

python adapters.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import espalier


class LowRank(nn.Linear):
    """A frozen linear layer with a trained product of two thin matrices added to it (Hu et al. 2022)."""

    def __init__(self, inside: int, outside: int, rank: int = 4) -> None:
        super().__init__(inside, outside)
        self.down = nn.Parameter(torch.randn(rank, inside) / inside**0.5)
        self.up = nn.Parameter(torch.zeros(outside, rank))  # zeros: at first nothing is added

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's outputs with what the adapter adds."""
        return super().forward(x) + x @ self.down.T @ self.up.T


class Net(nn.Module):
    """An attention layer over the eight rows of a digit, and a head."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.embed = nn.Linear(8, size)
        self.position = nn.Parameter(torch.randn(8, size) * 0.1)
        self.query, self.key, self.value, self.out = (LowRank(size, size) for _ in range(4))
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of images ``[n, 1, 8, 8]``."""
        rows = self.embed(x.squeeze(1)) + self.position
        weights = (self.query(rows) @ self.key(rows).transpose(1, 2) / rows.shape[2] ** 0.5).softmax(2)
        return self.head(self.norm(rows + self.out(weights @ self.value(rows))).mean(1))


digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
y = torch.tensor(digits.target)

# A base that somebody has trained: on 600 upright digits.
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for _ in range(150):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x[:600]), y[:600]).backward()
    optimizer.step()

# The devices' digits are upside down. All but adapters and head is frozen, and does not travel.
TRAINED = ("*.down", "*.up", "head.*")
for name, parameter in net.named_parameters():
    parameter.requires_grad = name.endswith((".down", ".up")) or name.startswith("head.")
turned = x.flip(2)
data = espalier.Dataset.from_arrays(turned[600:1500], y[600:1500], turned[1500:], y[1500:], n_classes=10)
setting = {
    "task": {"model": net},  # a module keeps its weights
    "fleet": {"devices": 12, "edges": 3},
    "training": {"lr": 0.2, "updates": 2},
    "stop": {"rounds": 8},
}
whole = espalier.simulate("hierfavg", setting, dataset=data)
method = {"name": "hierfavg", "local": {"kind": "parts", "shared": list(TRAINED)}}
adapters = espalier.simulate(method, setting, dataset=data)
for title, run in (("whole models travel", whole), ("adapters travel", adapters)):
    ((megabytes,),) = run.query("SELECT SUM(bytes) / 1e6 FROM traffic WHERE round = 8")
    first, last = run.frame()["acc_global"].iloc[[0, -1]]
    print(f"{title}: {megabytes:.1f} MB, accuracy {first:.3f} at first, {last:.3f} in the end")

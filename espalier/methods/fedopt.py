"""FedAvgM, FedAdagrad, FedAdam, FedYogi: federated averaging whose cloud has an optimiser.

Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification. 2019.
Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. Adaptive Federated Optimization. ICLR 2021.

FedAvg's rounds; the cloud takes the change from its model to the average as a gradient, and steps by
:mod:`espalier.policies.server_optimizers`, which any other method can take as well, at any tier.

Differences: the average is weighted by samples, as FedAvg's (Algorithm 2 as printed weighs devices equally). Second
moments begin at ``tau ** 2``, as published, and nothing is corrected; Flower's begin at 0, and its FedAdam corrects the
bias of both moments as if one more round were over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from espalier.methods.fedavg import FedAvg
from espalier.policies.server_optimizers import Momentum, ServerAdagrad, ServerAdam, ServerOptimizer, ServerYogi

_ADAPTIVE = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"


@dataclass(frozen=True)
class _FedOpt(FedAvg, ABC):
    """The base: FedAvg with an optimiser at the cloud; ``server_lr`` is its rate."""

    server_lr: float = 1.0

    @abstractmethod
    def merge(self) -> ServerOptimizer:
        """Return the optimiser."""

    def check(self) -> None:
        """Refuse what the optimiser would refuse."""
        super().check()
        self.merge()


@dataclass(frozen=True)
class FedAvgM(_FedOpt, kind="fedavgm"):
    """The cloud keeps going in the direction it came from: momentum ``beta``."""

    title: ClassVar[str] = "FedAvgM"
    citation: ClassVar[str] = (
        "Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019"
    )

    beta: float = 0.9

    def merge(self) -> ServerOptimizer:
        """Momentum."""
        return Momentum(self.beta, self.server_lr)


@dataclass(frozen=True)
class FedAdagrad(_FedOpt, kind="fedadagrad"):
    """The cloud steps by Adagrad; ``tau`` is the degree of adaptivity."""

    title: ClassVar[str] = "FedAdagrad"
    citation: ClassVar[str] = _ADAPTIVE

    server_lr: float = 0.03
    tau: float = 1e-3

    def merge(self) -> ServerOptimizer:
        """Adagrad without momentum."""
        return ServerAdagrad(self.server_lr, tau=self.tau)


@dataclass(frozen=True)
class FedAdam(_FedOpt, kind="fedadam"):
    """The cloud steps by Adam, as published without a correction of bias."""

    title: ClassVar[str] = "FedAdam"
    citation: ClassVar[str] = _ADAPTIVE

    server_lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def merge(self) -> ServerOptimizer:
        """Adam."""
        return ServerAdam(self.server_lr, self.beta1, self.tau, beta2=self.beta2)


@dataclass(frozen=True)
class FedYogi(FedAdam, kind="fedyogi"):
    """The cloud steps by Yogi, whose rates rise no faster than additively."""

    title: ClassVar[str] = "FedYogi"

    def merge(self) -> ServerOptimizer:
        """Yogi."""
        return ServerYogi(self.server_lr, self.beta1, self.tau, beta2=self.beta2)

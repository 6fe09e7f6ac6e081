"""FedPer, LG-FedAvg and FedBN: some layers of every model stay at the device, all are trained together.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated Learning with Personalization Layers. 2019.
Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency. Think Locally, Act Globally: Federated Learning with
Local and Global Representations. 2020.
Li, Jiang, Zhang, Kamp, Dou. FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021.

1. A device puts its own layers into the model that it received, and trains all layers together.
2. It reports the shared layers, which are averaged over the tree; its own stay and are not paid for in bytes.
3. It uses the model that it has trained.

The three differ in which layers stay: FedPer's are the last ones (the base is shared), LG-FedAvg's are all but the last
(each device has a representation of its own under a shared head), FedBN's are the batch normalisations with their
running statistics. With all layers a device's own each is training alone, with none it is HierFAVG; so is FedBN for a
model without batch normalisation.

Differences: averages are weighted by samples in all of them (LG-FedAvg and FedBN weigh devices evenly). A device's own
layers are at first those of the initial model; LG-FedAvg's experiments begin from a model of FedAvg instead. What a
device uses between two orders is what it has trained: it does not have the newest average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from espalier.core.method import PersonalModels, Setting
from espalier.core.params import ParamSpec, Spans
from espalier.policies.local_policies import Parts


def batch_norms(spec: ParamSpec) -> tuple[str, ...]:
    """Return the patterns of a model's batch normalisations: the layers that keep a running mean."""
    layers = (e.name.removesuffix("running_mean") for e in spec.entries if e.name.endswith("running_mean"))
    return tuple(f"{layer}*" for layer in layers)


@dataclass(frozen=True)
class SharedHead(Parts, kind="lg_fedavg"):
    """Shares what matches ``shared``, by default the last layer; the representation below stays at the device."""

    def shares(self, spec: ParamSpec) -> Spans:
        """Return the head's places."""
        return super().shares(spec) if self.own else spec.spans(self.shared or spec.last_layer())


@dataclass(frozen=True)
class OwnBatchNorms(Parts, kind="fedbn"):
    """Keeps what matches ``own``, by default every batch normalisation, and shares the rest."""

    def shares(self, spec: ParamSpec) -> Spans:
        """Return all other places."""
        return super().shares(spec) if self.shared or self.own else spec.rest(spec.spans(batch_norms(spec)))


@dataclass(frozen=True)
class FedPer(PersonalModels, kind="fedper"):
    """A shared base under last layers of each device's own.

    Attributes:
        head: Patterns of the names of what stays at the device (default: the last layer's).
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "FedPer"
    citation: ClassVar[str] = "Arivazhagan et al., Federated Learning with Personalization Layers, 2019"

    head: tuple[str, ...] = ()

    def local(self, setting: Setting) -> Parts:
        """Return that the head stays."""
        return Parts(own=self.head)


@dataclass(frozen=True)
class LGFedAvg(PersonalModels, kind="lg_fedavg"):
    """A shared head over representations of each device's own.

    Attributes:
        head: Patterns of the names of what is shared (default: the last layer's).
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "LG-FedAvg"
    citation: ClassVar[str] = (
        "Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020"
    )

    head: tuple[str, ...] = ()

    def local(self, setting: Setting) -> Parts:
        """Return that all but the head stays."""
        return SharedHead(shared=self.head)


@dataclass(frozen=True)
class FedBN(PersonalModels, kind="fedbn"):
    """A shared model whose normalisations are each device's own.

    Attributes:
        norms: Patterns of the names of what stays at the device (default: every batch normalisation).
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "FedBN"
    citation: ClassVar[str] = (
        "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021"
    )

    norms: tuple[str, ...] = ()

    def local(self, setting: Setting) -> Parts:
        """Return that normalisations stay."""
        return OwnBatchNorms(own=self.norms)

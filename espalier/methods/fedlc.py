"""FedLC and FedRS: averaging whose devices train on a loss that knows which labels they have.

Zhang, Li, Li, Xu, Wu, Ding, Wu. Federated Learning with Label Distribution Skew via Logits Calibration. ICML 2022.
Li, Zhan. FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data. KDD 2021.

A device that lacks labels pushes their logits down in every step, only because it never sees them; averages of such
models forget what each had learnt. With n samples of a label at the device, cross-entropy is taken

1. (FedLC) of ``z - tau n^(-1/4)``: the rarer a label, the wider the margin by which it must win; labels that the device
   lacks take no part;
2. (FedRS) of ``alpha z`` for labels that the device lacks and ``z`` for others: they are pushed down less.

Nothing is sent for it. As policies (``local = { kind = "margins" }``, ``"restricted"``) both go with other methods
(:mod:`espalier.policies.local_policies`; the calibrated loss there is a third of the kind). ``tau = 0`` and
``alpha = 1`` are HierFAVG.

Differences: both average by samples over the tree. Labels without a sample count as 1e-8 of one in FedLC, whose
equation has no value there. The authors' code of FedRS scales a logit by how often the device has its label beside its
most frequent one, and scales these factors again in every step, so that they rise to 1; the paper's rule is kept to.
``tau`` and ``alpha`` are what the papers tune.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from espalier.core.bounds import NonNegativeFloat, UnitFloat
from espalier.core.method import Category, Setting
from espalier.core.policies import Local
from espalier.methods.hierfavg import HierFAVG
from espalier.policies.local_policies import Margins, Restricted


@dataclass(frozen=True)
class FedLC(HierFAVG, kind="fedlc"):
    """HierFAVG with label margins; ``tau`` is their strength."""

    title: ClassVar[str] = "FedLC"
    category: ClassVar[Category] = "global"
    needs: ClassVar[str] = "classes"
    citation: ClassVar[str] = (
        "Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022"
    )

    tau: NonNegativeFloat = 1.0

    def local(self, setting: Setting) -> Local:
        """Ask for margins."""
        return Margins(tau=self.tau).around(super().local(setting))


@dataclass(frozen=True)
class FedRS(HierFAVG, kind="fedrs"):
    """HierFAVG with a restricted softmax; ``alpha`` is the factor of the logits of labels that a device lacks."""

    title: ClassVar[str] = "FedRS"
    category: ClassVar[Category] = "global"
    needs: ClassVar[str] = "classes"
    citation: ClassVar[str] = (
        "Li and Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data, KDD 2021"
    )

    alpha: UnitFloat = 0.5

    def local(self, setting: Setting) -> Local:
        """Restrict the softmax."""
        return Restricted(alpha=self.alpha).around(super().local(setting))

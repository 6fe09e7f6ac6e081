"""FedProto: devices share what samples of each label look like to them, and no model.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. FedProto: Federated Prototype Learning across Heterogeneous Clients. AAAI 2022.

1. A device's prototype of a label is the mean of its samples' features: what its model's last layer gets.
2. It trains its own model, whose loss gains ``lam`` times the mean square of the difference between a sample's
   features and its label's global prototype, then computes its prototypes anew and reports them.
3. Servers average each label's prototypes, weighted by the samples of that label, and hand them down.

What travels is, in the place of the last layer, each label's sum of features and number of samples, both over all of
a device's samples: averages of these by samples, at any depth, are the same of all devices below, and the quotient is
exactly 3. So plain averaging serves, secure or not, and only the last layer's bytes are paid. ``lam = 0`` is every
device training alone. Prototypes cost the time of one more pass over the data.

Differences: Eq. (6) also divides by the number of devices that have the label, though its weights already sum to one:
left out, as it would shrink prototypes. The authors' code averages devices' prototypes evenly. The pull is on every
sample's features, as in the authors' code (the paper's Eq. (7) pulls a batch's means). Prototypes are computed when
training is over (the code sums those of the last epoch up as it goes). A label that nobody reported in a round has no
prototype in the next. A device uses its own classifier; the paper also classifies by the nearest prototype. All devices
have the same architecture here. There is no global model: the root serves the initial one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from espalier.core.bounds import NonNegativeFloat
from espalier.core.messages import ALL, Order, Train
from espalier.core.method import PersonalModels, Setting
from espalier.core.objectives import ClassSums, NearPrototypes
from espalier.core.params import ParamSpec, Spans
from espalier.core.policies import Contribution, Local, LocalView, Merge, Rules
from espalier.core.store import Ref
from espalier.core.view import View

PROTOTYPES = "prototypes"


@dataclass(frozen=True)
class WithPrototypes(Local, kind="fedproto"):
    """Trains the device's own model near the global prototypes, and reports its own prototypes.

    Attributes:
        lam: Strength of the pull of features to their label's prototype.
    """

    @dataclass(slots=True)
    class State:
        """The device's model."""

        model: Ref | None = None

    lam: NonNegativeFloat = 1.0

    def train(self, view: LocalView, order: Order) -> Train:
        """Train the device's own model."""
        own, received = view.state(self).model, next(iter(order.models.values()))
        plain = replace(super().train(view, order), start=view.env.store.initial() if own is None else own)
        return replace(plain, objective=NearPrototypes(self.lam), beside=received) if self.lam else plain

    def then(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Train | None:
        """Compute the prototypes: one pass over the data."""
        if PROTOTYPES in models:
            return None
        facts, trained = view.env.training, next(iter(models.values()))
        whole = 1 if facts.unit == "epoch" else -(-view.env.samples(view.me) // facts.batch_size)
        return Train(name=PROTOTYPES, start=trained, updates=whole, clock=order.clock, objective=ClassSums())

    def done(self, view: LocalView, order: Order, models: Mapping[str, Ref]) -> Contribution:
        """Keep the model, report the prototypes."""
        group, trained = next(iter(order.models)), next(iter(models.values()))
        view.state(self).model = trained
        return Contribution({group: models[PROTOTYPES]}, uses=trained)

    def shares(self, spec: ParamSpec) -> Spans:
        """Return the last layer's places."""
        return spec.spans(spec.last_layer())


@dataclass(frozen=True)
class PrototypeMerge(Merge, kind="fedproto"):
    """Average what prototypes are made of; what is served is no merged model, for there is none."""

    def served(self, view: View) -> dict[str, Ref]:
        """Return the initial model."""
        return dict.fromkeys(view.models, view.store.initial())


@dataclass(frozen=True)
class FedProto(PersonalModels, kind="fedproto"):
    """Own models at all devices, drawn together by shared prototypes.

    Attributes:
        lam: Strength of the pull of features to their label's prototype, lambda.
        fraction: Share of an edge's devices in each round (default: the experiment's).
    """

    title: ClassVar[str] = "FedProto"
    needs: ClassVar[str] = "classes"
    citation: ClassVar[str] = (
        "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022"
    )

    lam: NonNegativeFloat = 1.0

    def rules(self) -> Rules:
        """Return that prototypes are averaged; the root begins with none."""
        return Rules(merge=PrototypeMerge(), initial=lambda store: {ALL: store.combine([(0.0, store.initial())])})

    def local(self, setting: Setting) -> Local:
        """Return training near prototypes."""
        self.demand(setting.classifies, "classes, of which prototypes are the means", "this task has none")
        return WithPrototypes(lam=self.lam)

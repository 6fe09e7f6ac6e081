"""EASF, and what it is compared with: Syn, HFL and KMA-RAF. Three axes: structure, frequency, abandonment.

Xu, Sun, Cui, Qi, Bilal, Dou, Cai, Crowcroft. Dynamic Optimization of Edge Aggregation Structures and Update
Frequencies for Efficient Distributed Hierarchical Model Training. IEEE Transactions on Mobile Computing.

There is no server: devices train and aggregate.

1. DSF. Devices elect central nodes by two-hop return probability (Eq. 9), join the nearest, and central nodes
   exchange members until each cluster's mean pre-training accuracy is near everybody's (Eq. 8, Algorithm 1). Each
   cluster then picks the member with the least sum of delays (Eq. 1), and those pick the root in the same way.
2. Who leaves is struck off; whose central node leaves vote again, up to the root; newcomers join by Algorithm 2.
3. AAF. A parent predicts a child's times and recommends how many updates fit (Algorithm 3); the child decides after
   each update whether another fits (Algorithm 4). A new pair begins with one update.
4. A parent waits for ``rho_t`` times the predicted time of a round (Eq. 14) and goes on with what it has.

Where the paper leaves something open or contradicts itself, we read it so:

- An update of a device is one local epoch (pre-training is in epochs, too); of an aggregator, one round of its own.
- Eq. 12 is smoothing of what was measured; Algorithm 3's garbled lines give the real time if it was shorter than
  predicted, else let the prediction grow by ``rho_g``. Frequencies are rounded down, at least 1, at most ``f_max``.
  Where nothing takes any time (the default world) there is none to fill: one update.
- Pre-training accuracy is measured on 500 test samples that everybody shares; neither its time nor that of building
  the first tree is more than the messages take. Equal two-hop probabilities go to the smaller number, else regular
  graphs would have no central node.
  A device that may not aggregate may be a first central node, too: it gathers the cluster, and Eq. 1 picks another.
- Pre-training accuracy on common samples says little of a device's labels (k of C classes right, whichever they are),
  so Eq. 8 may balance noise: each run tells how far |Acc_l - ACC| goes with the clusters' distance in labels.
- A newcomer hears of central nodes from one another and asks every one within the hop limit.
- "Nearby" is twice the hop limit; "significantly smaller" is below ``1 / rho_e`` of the mean nearby; a node that was
  listed because its cluster is too large is given although Eq. 8 is against it, else no such node would ever move.
- The real time of a round (Eq. 11) counts children that were abandoned with their predicted times, to which their
  late reports contribute: else who has become slower than the timeout would be abandoned for ever.
- An abandoned update is dropped, and the child gets the next round's model once it has reported: an order in the
  middle of a round would find it late again. If nobody is in time the first report closes the round.
- An aggregator rests between its report and its parent's next order; the device's own training goes on by its
  cluster's rounds. A new root goes on from the newest global model that any of its voters has seen.
- No value of any rate is published; the defaults are ours.
- The fixed timeout of the ablation is twice the median child's time in an aggregator's first round.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np

from espalier.core.address import Address
from espalier.core.bounds import Bound, NonNegativeInt, PositiveFloat, PositiveInt
from espalier.core.environment import Environment
from espalier.core.method import Category, Method, Node, Plan, Setting
from espalier.core.policies import Merge, Rules, Structure
from espalier.methods.easf.aaf import AAF, Predictor
from espalier.methods.easf.control import ControlledDevice, ControlledHead, ControlNode
from espalier.methods.easf.dsf.agent import Peer
from espalier.methods.easf.dsf.formulas import TreeLevel
from espalier.methods.easf.dsf.head import ClusterHead, ForgetfulHead
from espalier.methods.easf.dsf.state import Balance, ProtocolLimits
from espalier.methods.easf.kma import kma
from espalier.methods.easf.paces import RAF, Abandon, Adaptive, Fixed, TimedPace
from espalier.methods.easf.theory import WatchedMerge

#: the default patience: time for so many messages where they take time by themselves, at least so long
PATIENCE_MESSAGES, LEAST_PATIENCE_SECONDS = 4, 0.2


@dataclass(frozen=True)
class SelfMade(Structure, kind="self_made"):
    """The nodes arrange the tree themselves: the runtime neither places newcomers nor moves anyone."""

    peers: ClassVar[bool] = True

    def follows_moves(self) -> bool:
        """Edges play no part."""
        return False

    def places_newcomers(self) -> bool:
        """Devices find their own place."""
        return False


@dataclass(frozen=True)
class EASF(Method, kind="easf"):
    """DSF builds the tree and keeps it whole, AAF paces it, laggards are abandoned.

    Attributes:
        structure: Who builds the tree: ``dsf``; ``syn``, the same without regard to data; ``kma``, a control node.
        balance: What stands for a device's data in dsf: its pre-training ``accuracy`` (Eq. 8); ``answers``, the classes
            that its pre-trained model answers with; ``labels``, an oracle: its true label shares.
        keeps_frequencies: Whether a cluster's pairs keep what they know of each other when another member comes or
            goes (False: "a significant loss of frequency information", the paper's words on training without dsf).
        frequency: Updates before a report: ``aaf``; ``raf``; ``fixed`` (``leaf_updates`` at devices, 1 above).
        abandon: Whose time is up: ``adaptive`` (needs aaf), ``fixed``, ``none``.
        theory: Whether the root records how far its children's models are from the global one (Eq. 15).
        leaf_updates: Updates of a device before a report where the frequency is fixed.
        predictor: Of times, in aaf.
        rho_g: Growth of a round's predicted time.
        rho_a: How far a child may exceed its time while short of the recommended updates.
        rho_p: The share of its time within which it may do more than recommended.
        rho_t: Timeout over predicted time.
        f_max: The most updates before a report.
        raf_base: What raf fits updates into: the slowest child's time as ``measured``, or of a ``single`` update.
        hops: Hop limit of a device's search for a central node.
        rho_e: Excess of size over the clusters nearby at which nodes must go.
        sweeps: The most sweeps of exchange.
        width: The most children of the root before further levels are put in.
        delay_limit: The longest delay (seconds of one model) at which a newcomer looks for a cluster; None: any.
        pretrain: How long devices pre-train: ``epochs``, as the paper has it; ``until`` the mean of their accuracies is
            1.5 times chance (in a simulation only), so that it is no mere noise that the clusters balance.
        pretrain_epochs: Epochs of the pre-training.
        patience: Seconds that an agent waits for messages that may still come; None: 0.2, on a real fleet 2.
        clusters: Memberships of kma; None: the square root of the number of devices.
        kma_weight: Weight of delay in kma's objective.
        kma_restarts: Starts of kma's clustering.
    """

    title: ClassVar[str] = "EASF"
    category: ClassVar[Category] = "hierarchical"
    citation: ClassVar[str] = (
        "Xu et al., Dynamic Optimization of Edge Aggregation Structures and Update Frequencies for Efficient "
        "Distributed Hierarchical Model Training, IEEE TMC"
    )

    structure: Literal["dsf", "syn", "kma"] = "dsf"
    frequency: Literal["aaf", "raf", "fixed"] = "aaf"
    abandon: Literal["adaptive", "fixed", "none"] = "adaptive"
    balance: Balance = "accuracy"
    keeps_frequencies: bool = True
    theory: bool = False
    leaf_updates: PositiveInt = 1
    predictor: Predictor = field(default_factory=Predictor)
    rho_g: float = 1.1
    rho_a: float = 1.1
    rho_p: float = 0.9
    rho_t: float = 1.5
    f_max: PositiveInt = 20
    raf_base: Literal["measured", "single"] = "measured"
    hops: PositiveInt = 3
    rho_e: Annotated[float, Bound(gt=1)] = 1.2
    sweeps: NonNegativeInt = 10
    width: Annotated[int, Bound(ge=2)] = 32
    delay_limit: PositiveFloat | None = None
    pretrain: Literal["epochs", "until"] = "epochs"
    pretrain_epochs: PositiveInt = 1
    patience: PositiveFloat | None = None
    clusters: PositiveInt | None = None
    kma_weight: float = 0.5
    kma_restarts: PositiveInt = 20

    def check(self) -> None:
        """Refuse axes that do not fit each other, and what the pace would refuse."""
        self.require(
            self.abandon != "adaptive" or self.frequency == "aaf", "abandon",
            f"'fixed' or 'none' with frequency = {self.frequency!r}: only aaf predicts the time that adaptive needs",
        )  # fmt: skip
        self.pace()

    def pace(self) -> TimedPace:
        """Return the pace of every node: frequency and abandonment."""
        none: Abandon = Abandon()
        timeout = {"adaptive": Adaptive(self.rho_t), "fixed": Fixed(), "none": none}[self.abandon]
        if self.frequency == "aaf":
            return AAF(
                abandon=timeout, predictor=self.predictor, rho_g=self.rho_g, rho_a=self.rho_a, rho_p=self.rho_p,
                f_max=self.f_max,
            )  # fmt: skip
        if self.frequency == "raf":
            return RAF(abandon=timeout, f_max=self.f_max, base=self.raf_base)
        return TimedPace(leaf=self.leaf_updates, abandon=timeout)

    def plan(self, setting: Setting) -> Plan:
        """Everybody follows the same pace; devices make the tree, or a control node does."""
        patience = self._patience_seconds(setting)
        pace = replace(self.pace(), least=patience if setting.message_seconds else 0.0)
        rules = Rules(pace=pace, structure=SelfMade(), merge=WatchedMerge() if self.theory else Merge())
        plan = partial(Plan, rules, rules, rules, child=pace, starts="device")
        if self.structure == "kma":
            device = partial(ControlledDevice, epochs=self._pretrain_epochs)
            control = partial(self._control, patience_seconds=patience)
            return plan(node=control, aggregator=ControlledHead, device=device)
        head = ClusterHead if self.keeps_frequencies else ForgetfulHead
        return plan(aggregator=head, device=partial(Peer, limits=self.limits(setting)))

    @property
    def _pretrain_epochs(self) -> int | None:
        return self.pretrain_epochs if self.pretrain == "epochs" else None

    def _patience_seconds(self, setting: Setting) -> float:
        if self.patience is not None:
            return self.patience
        return max(LEAST_PATIENCE_SECONDS, PATIENCE_MESSAGES * setting.message_seconds)

    def limits(self, setting: Setting) -> ProtocolLimits:
        """Return the numbers of the protocol."""
        return ProtocolLimits(
            self.balance if self.structure == "dsf" else None, self.hops, self.rho_e, self.sweeps, self.width,
            self._pretrain_epochs, self._patience_seconds(setting),
            float("inf") if self.delay_limit is None else self.delay_limit,
        )  # fmt: skip

    def _control(self, me: Address, env: Environment, patience_seconds: float) -> Node | None:
        return ControlNode(me, self._build, env, patience_seconds) if me == env.places.cloud else None

    def _build(self, env: Environment, accuracies: dict[int, float], number: int) -> list[TreeLevel]:
        devices = sorted(accuracies)
        delays = np.minimum(env.links.delays(devices), 1e9)
        able = {d: env.may_aggregate(d) for d in devices}
        return kma(
            devices, delays, accuracies, able, env.rng("kma", number), clusters=self.clusters, weight=self.kma_weight,
            restarts=self.kma_restarts, width=self.width,
        )  # fmt: skip


@dataclass(frozen=True)
class Syn(EASF, kind="syn"):
    """Strong synchronisation: DSF's tree without regard to accuracy, one update everywhere, everybody is awaited."""

    title: ClassVar[str] = "Syn"
    category: ClassVar[Category] = "hierarchical"
    citation: ClassVar[str] = "the strongly synchronous baseline of EASF, after Ramaswamy et al., 2005"

    structure: Literal["dsf", "syn", "kma"] = "syn"
    frequency: Literal["aaf", "raf", "fixed"] = "fixed"
    abandon: Literal["adaptive", "fixed", "none"] = "none"


@dataclass(frozen=True)
class HFL(Syn, kind="hfl_easf"):
    """Syn with two updates of a device before it reports: EASF's "HFL" (Liu et al.'s scheme on Syn's tree)."""

    title: ClassVar[str] = "HFL (EASF)"
    category: ClassVar[Category] = "hierarchical"
    citation: ClassVar[str] = "the HFL baseline of EASF, after Liu et al., ICC 2020"

    leaf_updates: PositiveInt = 2


@dataclass(frozen=True)
class KMARAF(EASF, kind="kma_raf"):
    """A control node builds the tree by KMA, RAF sets the frequencies, everybody is awaited."""

    title: ClassVar[str] = "KMA-RAF"
    category: ClassVar[Category] = "hierarchical"
    citation: ClassVar[str] = (
        "Yang et al., Optimizing Aggregation Frequency for Hierarchical Model Training in Heterogeneous Edge "
        "Computing, IEEE TMC 2023"
    )
    reconstruction: ClassVar[str] = "how KMA balances accuracy against delay: the text gives its aims, no formula"

    structure: Literal["dsf", "syn", "kma"] = "kma"
    frequency: Literal["aaf", "raf", "fixed"] = "raf"
    abandon: Literal["adaptive", "fixed", "none"] = "none"

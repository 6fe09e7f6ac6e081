"""What policies remember, and what they hand to each other.

A policy is frozen. What it must remember it declares as a dataclass whose fields all have defaults, and it reaches
its own through the view it is given; nobody else can::

    class WithMomentum(Merge, kind="momentum"):
        @dataclass
        class State:
            velocity: dict[str, Ref] = field(default_factory=dict)

        def merge(self, view, arrivals):
            velocity = view.state(self).velocity

What one policy works out for another of the same node is a *product*: a name and a type that both sides declare. A
combination of policies in which nobody provides what another needs is refused when the run is built::

    LABEL_HISTOGRAMS = Product("label histograms", dict[Address, NDArray[Any]])

    class OneShot(Structure):                       class ByDistribution(Merge):
        provides = (LABEL_HISTOGRAMS,)                  needs = (LABEL_HISTOGRAMS,)
        … view.product(LABEL_HISTOGRAMS)[d] = h         … view.product(LABEL_HISTOGRAMS)

All of it is plain data that is saved with the run.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from espalier.core.address import Address
from espalier.core.codec import register
from espalier.core.errors import ConfigError
from espalier.core.spec import Spec

T = TypeVar("T")
S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True)
class Product(Generic[T]):
    """What one policy of a node provides for another: ``fresh`` makes what stands there before anybody has."""

    name: str
    fresh: Callable[[], T]


Products = tuple[Product[Any], ...]


class Remembers(Protocol[S_co]):
    """A policy that declares a ``State``."""

    @property
    def State(self) -> Callable[[], S_co]:
        """The class of what it remembers."""
        ...


@dataclass(frozen=True)
class Policy(Spec):
    """A decision with no IO: the base of every family of policies."""

    #: what it works out for other policies of its node
    provides: ClassVar[Products] = ()
    #: what it takes into account where another policy of its node provides it
    uses: ClassVar[Products] = ()

    @property
    def needs(self) -> Products:
        """What another policy of its node must provide (also given as a class attribute)."""
        return ()

    def __init_subclass__(cls, *, family: str | None = None, kind: str | None = None) -> None:
        super().__init_subclass__(family=family, kind=kind)
        state = vars(cls).get("State")
        if state is None:
            return
        if not isinstance(state, type) or not dataclasses.is_dataclass(state):
            raise ConfigError(f"{cls.__qualname__}.State must be a dataclass: it is saved with the run.")
        for one in dataclasses.fields(state):
            if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
                raise ConfigError(f"{cls.__qualname__}.State.{one.name} needs a default: what stands there at first.")
        register(state)

    def returned(self, hook: str, value: T, right: bool, wanted: str) -> T:
        """Return what a hook has returned, or refuse it in a sentence if it is not right."""
        if not right:
            raise ConfigError(
                f"{self.family} {self.kind!r}: {hook} returned {reprlib.repr(value)}; it must return {wanted}."
            )
        return value

    def forget(self, memory: Memory, child: Address) -> None:
        """A child no longer reports here: forget what was remembered of it."""

    def parts(self) -> Iterator[Policy]:
        """Yield this policy and those it is made of."""
        yield self
        for name in self._fields():
            part = getattr(self, name)
            if isinstance(part, Policy):
                yield from part.parts()


@register
@dataclass(slots=True)
class Memory:
    """What the policies of one node remember: states by the name of their class, products by theirs."""

    held: dict[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.held)

    def state(self, policy: Remembers[T]) -> T:
        """Return what a policy remembers, to be changed in place."""
        kind: Any = policy.State
        found: T | None = self.held.get(kind.__qualname__)
        if found is None:
            found = self.held[kind.__qualname__] = kind()
        return found

    def drop_state(self, policy: Remembers[Any]) -> None:
        """Let go of what a policy remembers: a device without memories costs nothing between its orders."""
        kind: Any = policy.State
        self.held.pop(kind.__qualname__, None)

    def product(self, product: Product[T]) -> T:
        """Return what was provided, to be changed in place by its provider."""
        if product.name not in self.held:
            self.held[product.name] = product.fresh()
        found: T = self.held[product.name]
        return found

    def provide(self, product: Product[T], value: T) -> None:
        """Put a value in the place of what was provided."""
        self.held[product.name] = value


class Remembering:
    """A view through which policies reach a node's memory."""

    __slots__ = ()

    memory: Memory

    def state(self, policy: Remembers[T]) -> T:
        """Return what a policy (``self``, in its own code) remembers, to be changed in place."""
        return self.memory.state(policy)

    def drop_state(self, policy: Remembers[Any]) -> None:
        """Let go of what a policy remembers."""
        self.memory.drop_state(policy)

    def product(self, product: Product[T]) -> T:
        """Return what another policy has provided (fresh if it has not yet)."""
        return self.memory.product(product)

    def provide(self, product: Product[T], value: T) -> None:
        """Provide a value for other policies."""
        self.memory.provide(product, value)


def check_products(node: str, policies: Mapping[str, Policy]) -> None:
    """Refuse policies of a node (by name) that need what none of them provides."""
    parts = [(name, part) for name, policy in policies.items() for part in policy.parts()]
    provided = {product.name for _, part in parts for product in part.provides}
    for name, part in parts:
        for product in part.needs:
            if product.name not in provided:
                known = ", ".join(sorted(f"{cls.family} {cls.kind!r}" for cls in providers(product)))
                raise ConfigError(
                    f"{node}.{name}: {part.family} {part.kind!r} needs the {product.name}, which no policy of this "
                    f"node provides; provided by: {known or 'no known policy'}."
                )


def providers(product: Product[Any]) -> list[type[Policy]]:
    """Return the policies with a name that provide a product."""
    found, waiting = [], [Policy]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls.kinds.get(cls.kind) is cls and any(p.name == product.name for p in cls.provides):
            found.append(cls)
    return found

"""Secure aggregation and those who do not follow the protocol, and what does not go together with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from espalier.core.errors import ConfigError
from espalier.core.policies import Structure, Survey
from espalier.core.view import View
from espalier.fleet.authority.rules import SUMMAND
from espalier.fleet.links import wire
from espalier.fleet.links.encoding import Encoding
from espalier.fleet.links.framing import Letter, LetterPart
from tests.fleet.net import Net, manifest
from tests.fleet.test_secure import SECURE, until

# -- children that send garbage --------------------------------------------------------------------------------


def said(letter: Letter) -> dict[str, Any] | None:
    """What a letter says about a sum."""
    found = wire.unpack(letter.content)
    return found.data if isinstance(found, wire.ControlLetter) and found.kind == SUMMAND else None


def saying(letter: Letter, data: dict[str, Any]) -> Letter:
    return Letter(letter.dest, letter.series, letter.number, wire.control(SUMMAND, data))


def short_key(letter: Letter) -> Letter | None:
    data = said(letter)
    return saying(letter, {**data, "masks": b"short"}) if data and data["step"] == "keys" else None


def weak_key(letter: Letter) -> Letter | None:
    data = said(letter)
    return saying(letter, {**data, "masks": bytes(32)}) if data and data["step"] == "keys" else None


def no_keys(letter: Letter) -> Letter | None:
    data = said(letter)
    return saying(letter, {**data, "masks": [1, 2]}) if data and data["step"] == "keys" else None


def short_shares(letter: Letter) -> Letter | None:
    data = said(letter)
    if not data or data["step"] != "shares":
        return None
    return saying(letter, {**data, "boxes": {c: b"x" for c in data["boxes"]}})


def no_shares(letter: Letter) -> Letter | None:
    data = said(letter)
    if not data or data["step"] != "shares":
        return None
    return saying(letter, {**data, "boxes": {c: 1 << 50 for c in data["boxes"]}})


def few_shares(letter: Letter) -> Letter | None:
    data = said(letter)
    return saying(letter, {**data, "boxes": {}}) if data and data["step"] == "shares" else None


def few_words(letter: Letter) -> Letter | None:
    if not letter.parts or letter.parts[0].encoding != Encoding.MASKED:
        return None
    part = LetterPart.of(bytes(letter.parts[0].data[:80]), Encoding.MASKED)
    return Letter(letter.dest, letter.series, letter.number, letter.content, [part])


def bare_model(letter: Letter) -> Letter | None:
    if not letter.parts or letter.parts[0].encoding != Encoding.MASKED:
        return None
    part = LetterPart.of(np.zeros(64, dtype="<f4").tobytes(), Encoding.FLOAT32)
    return Letter(letter.dest, letter.series, letter.number, letter.content, [part])


def odd_help(letter: Letter) -> Letter | None:
    data = said(letter)
    return saying(letter, {**data, "there": {9: b""}}) if data and data["step"] == "help" else None


def tampered(net: Net, devices: set[int], change: Callable[[Letter], Letter | None], times: int | None = None) -> None:
    """Run with devices (the first ``times`` of) whose letters to the edge are changed on their way."""
    done: list[Letter] = []
    for _ in range(20_000):
        if net.coordinator.finished:
            break
        for place, (dest, origin, letter) in enumerate(net.wire):
            if dest != 4 or origin not in devices or len(done) == times:
                continue
            if letter not in done and (other := change(letter)) is not None:
                net.wire[place] = (dest, origin, other)
                done.append(other)
        if not net.step():
            net.idle()
    assert net.coordinator.finished
    assert done


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (short_key, "X25519"), (weak_key, "X25519"), (no_keys, "X25519"), (short_shares, "another length"),
        (no_shares, "another length"), (few_shares, "shares for 0 of 4"), (few_words, "sends 80 bytes"),
        (bare_model, "not masked"), (odd_help, "not known"),
    ],
)  # fmt: skip
def test_garbage_is_refused_and_does_not_stop_the_edge(
    quick: Path, change: Callable[[Letter], Letter | None], why: str
) -> None:
    # Device 0 sends garbage once. The first round is the three others' (all four's, if it had reported); the second is
    # everybody's again.
    net = Net(manifest(4, 1, 2, SECURE), quick, hostile=True)
    tampered(net, {0}, change, 1)
    assert [(by, who) for by, who, _ in net.refused] == [(4, 0)]
    assert why in net.refused[0][2]
    reports = 4 if change is odd_help else 3
    assert [(e["reports"], e["clients"]) for e in net.events("secure")] == [(reports, 4), (4, 4)]
    assert net.engines[4].nodes[4].state.offences == {0: 1}
    first = torch.ones(4) / 4 if change is odd_help else torch.tensor([0, 1, 1, 1.0]) / 3
    torch.testing.assert_close(net.model()[:4], first + torch.full((4,), 1 / 4), atol=1e-6, rtol=0)


def altered_shares(letter: Letter) -> Letter | None:
    data = said(letter)
    if not data or data["step"] != "shares":
        return None
    return saying(letter, {**data, "boxes": {c: b[:-16] + bytes(16) for c, b in data["boxes"].items()}})


def test_who_deals_out_altered_shares_is_left_out_in_the_end(quick: Path) -> None:
    # Nobody can open device 0's shares, which shows when they are needed: there is no sum then. After three such rounds
    # it gets no more orders.
    net = Net(manifest(4, 1, 5, SECURE), quick, hostile=True)
    tampered(net, {0}, altered_shares)
    assert [who for _, who, _ in net.refused] == [0] * 3
    assert all("the shares that nodes [0] dealt out cannot be opened" in why for _, _, why in net.refused)
    notes = net.events("secure")
    assert [("why" in e, e["clients"]) for e in notes] == [(True, 4)] * 3 + [(False, 3)] * 2
    torch.testing.assert_close(net.model()[:4], torch.tensor([0, 1, 1, 1.0]) * 2 / 3, atol=1e-6, rtol=0)


def test_masks_that_are_taken_off_wrongly_are_noticed(quick: Path) -> None:
    # Shares of nothing give another seed and another sum, whose weight is not that of 40 samples.
    def false(letter: Letter) -> Letter | None:
        data = said(letter)
        if not data or data["step"] != "help":
            return None
        return saying(letter, {**data, "there": {c: bytes(66) for c in data["there"]}})

    net = Net(manifest(4, 1, 1, SECURE), quick, hostile=True)
    tampered(net, {0, 1, 2, 3}, false)
    assert not net.model().any()
    assert "40 samples were reported" in net.events("secure")[0]["why"]


def test_a_silent_device_is_left_out(quick: Path) -> None:
    # It is linked and gets its letters, and says nothing.
    net = Net(manifest(4, 1, 1, SECURE), quick)
    for _ in range(5000):
        if net.coordinator.finished:
            break
        net.wire = [w for w in net.wire if not (w[0] == 4 and w[1] == 0)]
        net.boxes[0].pop(4, None)
        net.jobs = [(h, w) for h, w in net.jobs if h != 0]
        if not net.step():
            net.idle()
    assert net.coordinator.finished
    torch.testing.assert_close(net.model()[:4], torch.tensor([0, 1, 1, 1.0]) / 3, atol=1e-6, rtol=0)
    assert [e["why"] for e in net.events("dropped")] == ["silent in a secure sum (keys)"]


# -- what does not go together ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "why"),
    [
        (
            {**SECURE, "edge": {"merge": "secure", "guard": "median"}},
            {},
            "guard.kind = 'median' looks at single models",
        ),
        ({"name": "csahfl", "edge": {"merge": "secure", "hand_down": "replace"}}, {}, "a late model is in no sum"),
        ({**SECURE, "edge": {"merge": "secure", "pace": {"kind": "barrier", "late": "renew"}}}, {}, "late"),
        ({**SECURE, "edge": {"merge": "secure", "pace": {"kind": "barrier", "admits": True}}}, {}, "admits"),
        ({"name": "ifca", "root": {"merge": "secure"}}, {}, "looks at single models"),
        ({"name": "d2d", "edge": {"merge": "secure"}}, {}, "send each other single models"),
        ({"name": "easf", "edge": {"merge": "secure"}}, {}, "send each other single models"),
        ({**SECURE, "local": {"kind": "q8"}}, {}, "cannot be masked"),
        (SECURE, {"compress": "q8"}, "cannot be masked"),
    ],
)
def test_what_cannot_go_together_is_refused_at_start_up(method: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=r"merge\.kind = 'secure'") as caught:
        manifest(4, 2, 1, method, **options).plan()
    assert why in str(caught.value)


@dataclass(frozen=True)
class Curious(Structure, kind="test_curious"):
    """Asks devices for a training of its own before the first round."""

    def survey(self, view: View) -> Survey | None:
        return Survey(None)


def test_a_device_never_sends_its_model_as_it_is(quick: Path) -> None:
    net = Net(manifest(4, 2, 1, {**SECURE, "root": {"structure": "test_curious"}}), quick)
    with pytest.raises(ConfigError, match="the method wants node 6 to see a single model of device"):
        net.run()


def test_a_policy_that_looks_at_masked_models_is_told(quick: Path) -> None:
    net = Net(manifest(4, 1, 1, SECURE), quick)
    found = until(net, 4, "numbers")
    while not found.reports:
        net.step()
    refs = [ref for ref, _ in found.reports.values()]
    with pytest.raises(ConfigError, match="looks at single models, and they are masked"):
        net.engines[4].store.vectors(refs)

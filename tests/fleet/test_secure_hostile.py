"""Secure aggregation and those who do not follow the protocol, and what does not go together with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from espalier.core.errors import ConfigError
from espalier.core.messages import Order
from espalier.core.policies import Structure, Survey
from espalier.core.view import View
from espalier.fleet import certs
from espalier.fleet.authority.rules import SUM, SUMMAND
from espalier.fleet.certs import Bundle
from espalier.fleet.links import wire
from espalier.fleet.links.encoding import Encoding
from espalier.fleet.links.framing import Letter, LetterPart
from espalier.fleet.node.events import Call
from espalier.fleet.secure.credentials import CertificateCredentials
from espalier.secure import Client
from tests.fleet.net import Net, credentials, manifest
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
    return saying(letter, {**data, "boxes": {c: (b"x", b"x") for c in data["boxes"]}})


def no_shares(letter: Letter) -> Letter | None:
    data = said(letter)
    if not data or data["step"] != "shares":
        return None
    return saying(letter, {**data, "boxes": {c: 1 << 50 for c in data["boxes"]}})


def few_shares(letter: Letter) -> Letter | None:
    data = said(letter)
    return saying(letter, {**data, "boxes": {}}) if data and data["step"] == "shares" else None


def other_keys(letter: Letter) -> Letter | None:
    """Keys that the certificate has not signed."""
    data = said(letter)
    fresh = X25519PrivateKey.generate().public_key().public_bytes_raw()
    return saying(letter, {**data, "masks": fresh}) if data and data["step"] == "keys" else None


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
        (short_key, "another length"), (weak_key, "X25519"), (no_keys, "no bytes"), (other_keys, "not signed"),
        (short_shares, "another length"), (no_shares, "no row"), (few_shares, "shares for 0 of 3"),
        (few_words, "sends 80 bytes"), (bare_model, "not masked"),
    ],
)  # fmt: skip
def test_garbage_is_refused_and_does_not_stop_the_edge(
    quick: Path, change: Callable[[Letter], Letter | None], why: str
) -> None:
    # Device 0 sends garbage once. The first round is the three others'; the second is everybody's again.
    net = Net(manifest(4, 1, 2, SECURE), quick, hostile=True)
    tampered(net, {0}, change, 1)
    assert [(by, who) for by, who, _ in net.refused] == [(4, 0)]
    assert why in net.refused[0][2]
    assert [(e["reports"], e["clients"]) for e in net.events("secure")] == [(3, 4), (4, 4)]
    assert net.engines[4].nodes[4].state.offences == {0: 1}
    expected = torch.tensor([0, 1, 1, 1.0]) / 3 + torch.full((4,), 1 / 4)
    torch.testing.assert_close(net.model()[:4], expected, atol=1e-6, rtol=0)


def test_garbage_in_place_of_help(quick: Path) -> None:
    # All four must help here, so that nobody's answer comes too late to matter: there is no sum of the first round.
    method = {**SECURE, "edge": {"merge": {"kind": "secure", "threshold": 1.0}}}
    net = Net(manifest(4, 1, 2, method), quick, hostile=True)
    tampered(net, {0}, odd_help, 1)
    assert [(by, who, "another length" in why) for by, who, why in net.refused] == [(4, 0, True)]
    assert [e.get("why") for e in net.events("secure")] == ["3 helped to take the masks off", None]
    torch.testing.assert_close(net.model()[:4], torch.full((4,), 1 / 4), atol=1e-6, rtol=0)


def altered_shares(holders: set[int]) -> Callable[[Letter], Letter | None]:
    def change(letter: Letter) -> Letter | None:
        data = said(letter)
        if not data or data["step"] != "shares":
            return None
        boxes = {c: (a[:-16] + bytes(16), b[:-16] + bytes(16)) for c, (a, b) in data["boxes"].items() if c in holders}
        return saying(letter, {**data, "boxes": data["boxes"] | boxes})

    return change


def test_a_false_share_is_survived_and_its_dealer_named(quick: Path) -> None:
    # Device 1 cannot use what device 0 has dealt out to it, and shows it. Three of four shares are enough.
    net = Net(manifest(4, 1, 1, SECURE), quick, hostile=True)
    tampered(net, {0}, altered_shares({1}))
    assert [(by, who) for by, who, _ in net.refused] == [(4, 0)]
    assert "node 0 dealt out a share of its seed that client 1 cannot use" in net.refused[0][2]
    assert net.events("secure") == [{"group": "", "clients": 4, "reports": 4, "threshold": 3}]
    torch.testing.assert_close(net.model()[:4], torch.ones(4) / 4, atol=1e-6, rtol=0)


def test_who_deals_out_false_shares_is_left_out_in_the_end(quick: Path) -> None:
    # Two of three cannot use device 0's shares: there is no sum, and the note says why and who. After three such rounds
    # it gets no more orders.
    net = Net(manifest(4, 1, 5, SECURE), quick, hostile=True)
    tampered(net, {0}, altered_shares({1, 2}))
    assert [who for _, who, _ in net.refused] == [0] * 3
    notes = net.events("secure")
    assert [("why" in e, e["clients"]) for e in notes] == [(True, 4)] * 3 + [(False, 3)] * 2
    assert "secrets of nodes [0] are there; node 0 dealt out a share" in notes[0]["why"]
    torch.testing.assert_close(net.model()[:4], torch.tensor([0, 1, 1, 1.0]) * 2 / 3, atol=1e-6, rtol=0)


def false_help(letter: Letter) -> Letter | None:
    data = said(letter)
    if not data or data["step"] != "help":
        return None
    return saying(letter, {**data, "there": {c: bytes(66) for c in data["there"]}})


def test_a_helper_that_lies_is_named_and_survived(quick: Path) -> None:
    net = Net(manifest(4, 1, 1, SECURE), quick, hostile=True)
    tampered(net, {2}, false_help)
    assert [(by, who) for by, who, _ in net.refused] == [(4, 2)]
    assert "told a false share" in net.refused[0][2]
    torch.testing.assert_close(net.model()[:4], torch.ones(4) / 4, atol=1e-6, rtol=0)


def test_helpers_that_all_lie_leave_the_model_as_it_is(quick: Path) -> None:
    net = Net(manifest(4, 1, 1, SECURE), quick, hostile=True)
    tampered(net, {0, 1, 2, 3}, false_help)
    assert not net.model().any()
    assert {who for _, who, _ in net.refused} == {0, 1, 2, 3}
    assert "node 3 told a false share" in net.events("secure")[0]["why"]


def test_a_lie_about_a_neighbours_keys_is_the_liars(quick: Path) -> None:
    def accuse(letter: Letter) -> Letter | None:
        data = said(letter)
        if not data or data["step"] != "shares":
            return None
        kept = {c: b for c, b in data["boxes"].items() if c != 1}
        bound = {c: b for c, b in data["commitments"].items() if c != 1}
        return saying(letter, {**data, "boxes": kept, "commitments": bound, "accused": [1]})

    net = Net(manifest(4, 1, 1, SECURE), quick, hostile=True)
    tampered(net, {0}, accuse)
    assert [(who, "are not properly signed: they are" in why) for _, who, why in net.refused] == [(0, True)]
    torch.testing.assert_close(net.model()[:4], torch.tensor([0, 1, 1, 1.0]) / 3, atol=1e-6, rtol=0)


# -- an edge that puts itself in the middle --------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["nobody's", "its own", "another fleet's"])
def test_an_edge_cannot_put_keys_of_its_own_in(quick: Path, whose: str) -> None:
    # The edge introduces devices 1, 2 and 3 to device 0 with keys that it made itself, signed by nobody, with its own
    # certificate, or with a device's of another authority. Device 0's model stays at home.
    net = Net(manifest(4, 1, 1, SECURE), quick, hostile=True)
    signer = {"nobody's": None, "its own": credentials("edge-4", "edge"), "another fleet's": stranger(quick)}[whose]
    sent: list[bytes] = []
    for _ in range(20_000):
        if net.coordinator.finished:
            break
        for place, (dest, origin, letter) in enumerate(net.wire):
            data = wire.unpack(letter.content)
            if (dest, origin) == (0, 4) and isinstance(data, wire.ControlLetter) and data.data.get("step") == "keys":
                net.wire[place] = (dest, origin, in_the_middle(net, letter, signer))
            if (dest, origin) == (4, 0) and letter.parts:
                sent.append(bytes(letter.parts[0].data))
        if not net.step():
            net.idle()
    assert net.coordinator.finished
    assert not any(sent), "what device 0 reports holds no number"
    assert not [e for e in net.events("secure") if e["reports"] > 3]
    assert [e["why"] for e in net.events("rejected")] == ["1 clients have proper keys; 3 are needed."]


def stranger(folder: Path) -> CertificateCredentials:
    """A device of another authority."""
    certs.init(folder / "other")
    made = Bundle.read(certs.issue(folder / "other", "device-1", "device"))
    return CertificateCredentials(made, lambda serial: False)


def in_the_middle(net: Net, letter: Letter, signer: CertificateCredentials | None) -> Letter:
    """The letter that introduces device 0 to its neighbours, with keys of the edge's own."""
    found = wire.unpack(letter.content)
    assert isinstance(found, wire.ControlLetter)
    (server,) = net.engines[4].sums._servers.values()
    keys = {}
    for other in found.data["keys"]:
        own = Client(other, [0], 2, server._context, signer).advertise().to(0)
        keys[other] = (*own.keys, own.signature, own.certificate)
    return Letter(letter.dest, letter.series, letter.number, wire.control(SUM, {**found.data, "keys": keys}))


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
    # Whoever asks for it is refused and told not to wait: the device goes on, and so does the run.
    net = Net(manifest(4, 2, 2, {**SECURE, "root": {"structure": "test_curious"}}), quick, hostile=True)
    net.run()
    assert {(by, who) for by, who, _ in net.refused} == {(d, 6) for d in range(4)}
    assert all("node 6 wants to see a single model of device" in why for _, _, why in net.refused)
    torch.testing.assert_close(net.model()[:4], torch.full((4,), 2 / 4), atol=1e-6, rtol=0)


def test_a_victim_of_a_wrong_order_goes_on(quick: Path) -> None:
    # An order to train and to send the model straight back, as a survey's would be: it ended the device's process.
    net = Net(manifest(4, 1, 3, SECURE), quick, hostile=True)
    until(net, 4, "keys")
    cloud = net.engines[net.cloud]
    models = {"": cloud.store.initial()}
    wicked = Order(1 << 40, net.cloud, 0, models, updates=1, round=1, clock=1, sent=0.0, back=True)
    net.give(net.cloud, Call(lambda: cloud.send(wicked)))
    net.run()
    assert [(by, who) for by, who, _ in net.refused] == [(0, net.cloud)]
    assert "wants to see a single model of device 0" in net.refused[0][2]
    assert float(net.model()[:4].sum()) == pytest.approx(3.0, abs=1e-5)


def test_a_policy_that_looks_at_masked_models_is_told(quick: Path) -> None:
    net = Net(manifest(4, 1, 1, SECURE), quick)
    found = until(net, 4, "numbers")
    while not found.reports:
        net.step()
    refs = [ref for ref, _ in found.reports.values()]
    with pytest.raises(ConfigError, match="looks at single models, and they are masked"):
        net.engines[4].store.vectors(refs)

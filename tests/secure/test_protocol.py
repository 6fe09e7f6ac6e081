"""Secure aggregation: the sum is exact, lost clients are made up for, and the server sees nothing but the sum."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare, kstest

from espalier.core.codec import pack, unpack
from espalier.core.errors import ProtocolError
from espalier.policies.secure_sum import secure_sum
from espalier.secure import Client, Server, ring, shamir
from espalier.secure.client import TooFew
from espalier.secure.masks import Words, decode, encode, mask

Numbers = dict[int, NDArray[np.float64]]


class Game:
    """All parts of one sum, message by message."""

    def __init__(self, clients: int, threshold: int | None = None, neighbours: int | None = None) -> None:
        graph = ring(range(clients), clients if neighbours is None else neighbours)
        self.need = threshold or clients // 2 + 1
        self.server = Server(graph, self.need)
        self.clients = {n: Client(n, graph[n], self.need) for n in range(clients)}
        self.masked: dict[int, Words] = {}

    def advertise(self) -> Game:
        for n, c in self.clients.items():
            self.server.advertise(n, c.advertise())
        return self

    def deal(self) -> Game:
        self.dealt = {n: c.share(self.server.introductions(n)) for n, c in self.clients.items()}
        return self

    def hide(self, values: Numbers, lost: Collection[int] = ()) -> Game:
        for n, said in self.dealt.items():
            self.server.deal(n, said)
        self.server.route()
        for n, c in self.clients.items():
            c.receive(self.server.parcels(n))
        self.masked = {n: self.clients[n].hide(values[n]) for n in values if n not in lost}
        self.server.there = set(self.masked)
        return self

    def help(self) -> Game:
        self.answers = {n: self.clients[n].unmask(self.server.present(n)) for n in self.masked}
        return self

    def sum(self, helpers: Collection[int] | None = None) -> NDArray[np.float64]:
        for n, answer in self.answers.items():
            if helpers is None or n in helpers:
                self.server.help(n, answer)
        return self.server.sum(self.masked)


def play(values: Numbers, lost: Collection[int] = (), threshold: int | None = None, **options: Any) -> Game:
    """Play all messages; ``lost`` clients disappear after message 1."""
    return Game(len(values), threshold, **options).advertise().deal().hide(values, lost).help()


def draw(clients: int, count: int, seed: int = 0) -> Numbers:
    rng = np.random.default_rng(seed)
    return {n: rng.normal(size=count) for n in range(clients)}


def plain(values: Numbers, without: Collection[int] = ()) -> list[float]:
    """The sum in fixed point, without masks."""
    count = len(values[0])
    kept = [encode(v) for n, v in values.items() if n not in without]
    return decode(sum(kept, start=encode(np.zeros(count)))).tolist()


# -- the sum -------------------------------------------------------------------------------------------


def test_fixed_point_by_hand() -> None:
    # 0.5 is 2^23 steps of 2^-24; −1 wraps around to 2^64 − 2^24.
    assert encode([0.5, -1.0]).tolist() == [2**23, 2**64 - 2**24]
    assert decode(encode([0.5, -1.0])).tolist() == [0.5, -1.0]
    for wrong in (float("nan"), float("inf"), 1e12):
        with pytest.raises(ProtocolError, match="finite"):
            encode([wrong])


@settings(max_examples=15, deadline=None)
@given(clients=st.integers(2, 7), count=st.integers(1, 20), seed=st.integers(0, 99), data=st.data())
def test_the_sum_is_exact_whoever_is_lost(clients: int, count: int, seed: int, data: st.DataObject) -> None:
    values = draw(clients, count, seed)
    need = clients // 2 + 1
    lost = set(data.draw(st.lists(st.integers(0, clients - 1), max_size=clients - need, unique=True)))
    game = play(values, lost, need)
    # A few of those who are there may be gone by the last message.
    helpers = list(itertools.islice(sorted(game.answers), data.draw(st.integers(need, len(game.answers)))))
    assert game.sum(helpers).tolist() == plain(values, lost)
    assert not game.server.lies


@settings(max_examples=15, deadline=None)
@given(clients=st.integers(7, 14), seed=st.integers(0, 99), data=st.data())
def test_the_sum_is_exact_on_a_sparse_graph(clients: int, seed: int, data: st.DataObject) -> None:
    # six neighbours and itself hold shares, four of them suffice: whoever is lost, while each client keeps four
    values = draw(clients, 3, seed)
    lost = set(data.draw(st.lists(st.integers(0, clients - 1), max_size=3, unique=True)))
    game = play(values, lost, 4, neighbours=6)
    assert all(len(c.neighbours) == 6 for c in game.clients.values()) or clients == 7
    assert game.sum().tolist() == plain(values, lost)
    # state and bytes are per neighbour, not per client
    assert {len(d.boxes) for d in game.dealt.values()} == {6}


def test_a_neighbourhood_that_is_lost_ends_the_sum_with_a_sentence() -> None:
    values = draw(12, 2)
    game = Game(12, 4, neighbours=6).advertise().deal()
    lost = sorted(game.clients[0].neighbours)[:4]
    # three of seven holders are left for client 0, which needs four
    game.hide(values, lost)
    with pytest.raises(TooFew, match="the sum needs 4"):
        game.clients[0].unmask(game.server.present(0))


def test_the_merge_uses_it() -> None:
    values = draw(5, 100)
    found = secure_sum({n: values[n] for n in (0, 2, 4)}, [1, 3], 3)
    assert found == pytest.approx(values[0] + values[2] + values[4], abs=1e-6)


# -- what the server sees --------------------------------------------------------------------------------


def looks_random(words: Words) -> bool:
    """Tell whether words pass for uniform ones: their bytes, and their order of magnitude."""
    counts = np.bincount(words.view(np.uint8), minlength=256)
    uniform = kstest(words.astype(np.float64) / 2.0**64, "uniform").pvalue
    return bool(chisquare(counts).pvalue > 1e-4 and uniform > 1e-4)


def test_what_the_server_gets_looks_random() -> None:
    # Numbers that are far from random: all the same.
    values = {n: np.full(4000, 1.0) for n in range(4)}
    assert not looks_random(encode(values[0]))
    for words in play(values).masked.values():
        assert looks_random(words)


@pytest.mark.parametrize("neighbours", [None, 4])
def test_all_that_the_server_can_take_off_leaves_every_client_masked(neighbours: int | None) -> None:
    """After the last message the server knows all seeds and the lost client's key: still only the sum makes sense."""
    clients = 5 if neighbours is None else 8
    values = {n: np.full(4000, float(n)) for n in range(clients)}
    lost = clients - 1
    game = play(values, {lost}, 3, neighbours=neighbours)
    bare = {}
    for n, words in game.masked.items():
        held = {h: a.there[n] for h, a in game.answers.items() if n in a.there}
        bare[n] = words - mask(shamir.join(held, 3), 4000)
    for words in bare.values():
        assert looks_random(words)
    # Not even of all but one do the masks cancel.
    for out in bare:
        assert looks_random(np.sum([w for n, w in bare.items() if n != out], axis=0, dtype=np.uint64))
    assert game.sum().tolist() == [float(sum(range(lost)))] * 4000


def test_two_inputs_with_one_sum_cannot_be_told_apart() -> None:
    one = {0: np.full(4000, 5.0), 1: np.full(4000, -5.0), 2: np.zeros(4000)}
    other = {n: np.zeros(4000) for n in range(3)}
    for values in (one, other):
        game = play(values)
        assert game.sum().tolist() == [0.0] * 4000
        for n, words in game.masked.items():
            assert looks_random(words)
            correlation = np.corrcoef(words.astype(np.float64), np.arange(4000) % 2)[0, 1]
            assert abs(correlation) < 0.08, n


def test_the_server_cannot_open_shares() -> None:
    game = play(draw(3, 4))
    secret = game.clients[1]._seed
    seen = repr([vars(game.server), game.dealt, [c.advertise() for c in game.clients.values()]])
    assert repr(secret)[2:-1] not in seen
    assert all(
        len(box) == 12 + shamir.SHARE_BYTES + 16
        for d in game.dealt.values()
        for pair in d.boxes.values()
        for box in pair
    )


def test_no_client_gives_away_both_secrets_of_anybody() -> None:
    for answer in play(draw(5, 3), lost={1, 3}).answers.values():
        assert set(answer.lost) == {1, 3}
        assert set(answer.there) == {0, 2, 4}


# -- what clients refuse ---------------------------------------------------------------------------------


def test_everything_happens_once() -> None:
    game = play(draw(3, 2))
    client = game.clients[0]
    with pytest.raises(ProtocolError, match="once"):
        client.unmask({0, 1})
    with pytest.raises(ProtocolError, match="twice"):
        client.hide([1.0, 2.0])
    with pytest.raises(ProtocolError, match="already"):
        client.share(game.server.introductions(0))
    with pytest.raises(ProtocolError, match="once"):
        client.receive(game.server.parcels(0))


def test_a_client_refuses_a_small_group() -> None:
    # A threshold of half or less would let a server unmask two halves, and so single clients.
    with pytest.raises(ProtocolError, match="more than half"):
        Client(0, [1, 2, 3], 2)
    game = Game(4, 3).advertise()
    first = game.server.introductions(0)
    with pytest.raises(TooFew, match="3 are needed"):
        game.clients[0].share({1: first[1]})
    game.deal()
    for n, said in game.dealt.items():
        game.server.deal(n, said)
    game.server.route()
    parcels = game.server.parcels(0)
    with pytest.raises(TooFew, match="3 are needed"):
        Client.of_plain(game.clients[0].to_plain()).receive({1: parcels[1]})
    game.clients[0].receive(parcels)
    game.clients[0].hide([1.0])
    with pytest.raises(TooFew, match="the sum needs 3"):
        game.clients[0].unmask({0, 1})


def test_a_client_refuses_false_keys() -> None:
    game = Game(3, 2).advertise()
    known = game.server.introductions(0)
    with pytest.raises(ProtocolError, match="not its neighbours"):
        game.clients[0].share({**known, 7: known[1]})
    with pytest.raises(ProtocolError, match="same key"):
        game.clients[0].share({1: known[1], 2: known[1]})


def test_a_client_goes_on_where_it_was() -> None:
    def again(game: Game) -> None:
        game.clients = {n: Client.of_plain(unpack(pack(c.to_plain()))) for n, c in game.clients.items()}

    values, game = draw(3, 4), Game(3, 2)
    for step in (game.advertise, game.deal, lambda: game.hide(values), game.help):
        again(game)
        step()
    again(game)
    assert game.sum().tolist() == plain(values)
    with pytest.raises(ProtocolError, match="twice"):
        game.clients[0].hide(values[0])
    with pytest.raises(ProtocolError, match="once"):
        game.clients[0].unmask({0, 1, 2})


@pytest.mark.parametrize("key", [b"", b"short", bytes(32), b"x" * 33])
def test_what_is_no_key_is_refused(key: bytes) -> None:
    game = Game(3, 2)
    good = game.clients[0].advertise()
    for wrong in (replace(good, masks=key), replace(good, seals=key)):
        with pytest.raises(ProtocolError, match="X25519"):
            game.server.advertise(0, wrong)
    # a key for one neighbour only is refused by that neighbour, and its sender is named
    game.advertise()
    opens = {**good.opens, 1: (key, *good.opens[1][1:])}
    game.server.advertised[0] = replace(good, opens=opens)
    dealt = game.clients[1].share(game.server.introductions(1))
    assert dealt.accused == (0,)
    game.server.deal(1, dealt)
    assert set(game.server.lies) == {0}


def test_too_few_answers() -> None:
    game = play(draw(5, 2))
    with pytest.raises(ProtocolError, match="Too few good shares"):
        game.sum([0, 1])
    assert game.server.short() == set(range(5))


# -- shares ----------------------------------------------------------------------------------------------


@given(secret=st.binary(min_size=32, max_size=32), holders=st.integers(1, 8), data=st.data())
def test_any_threshold_shares_give_the_secret(secret: bytes, holders: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, holders))
    shares = shamir.split(secret, range(holders), threshold)
    chosen = data.draw(st.permutations(sorted(shares)))[:threshold]
    assert shamir.join({n: shares[n] for n in chosen}, threshold) == secret


def test_fewer_shares_give_nothing() -> None:
    shares = shamir.split(b"x" * 32, range(5), 3)
    with pytest.raises(ProtocolError, match="needs 3"):
        shamir.join({0: shares[0], 1: shares[1]}, 3)
    # Two shares fit every secret: with a third one made up, another secret comes out.
    line_through = shamir.split(b"y" * 32, range(5), 3)
    with pytest.raises(ProtocolError, match="false one"):
        shamir.join({0: shares[0], 1: shares[1], 2: line_through[2]}, 3)
    with pytest.raises(ProtocolError, match="threshold"):
        shamir.split(b"x" * 32, range(2), 3)
    with pytest.raises(ProtocolError, match="32 bytes"):
        shamir.split(b"x", range(2), 2)

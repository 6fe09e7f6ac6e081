"""Secure aggregation: the sum is exact, lost clients are made up for, and the server sees nothing but the sum."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare, kstest

from espalier.core.codec import pack, unpack
from espalier.core.errors import ProtocolError
from espalier.policies.secure_sum import secure_sum
from espalier.secure import Client, Server, shamir
from espalier.secure.client import Unmasking
from espalier.secure.masks import Words, decode, encode, mask

Numbers = dict[int, NDArray[np.float64]]


def play(
    values: Numbers, lost: set[int] = frozenset(), threshold: int | None = None
) -> tuple[Server, dict[int, Client], dict[int, Unmasking]]:
    """Play all messages; ``lost`` clients disappear after message 1."""
    need = threshold or len(values) // 2 + 1
    server, clients = Server(need), {n: Client(n, need) for n in values}
    keys = server.collect_keys({n: c.advertise() for n, c in clients.items()})
    boxes = server.route({n: c.share(keys) for n, c in clients.items()})
    there = server.collect({n: clients[n].hide(values[n], boxes[n]) for n in values if n not in lost})
    return server, clients, {n: clients[n].unmask(there) for n in there}


def draw(clients: int, count: int, seed: int = 0) -> Numbers:
    rng = np.random.default_rng(seed)
    return {n: rng.normal(size=count) for n in range(clients)}


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
    server, _, answers = play(values, lost, need)
    # A few of those who are there may be gone by the last message.
    kept = dict(itertools.islice(sorted(answers.items()), data.draw(st.integers(need, len(answers)))))
    expected = decode(sum((encode(v) for n, v in values.items() if n not in lost), start=encode(np.zeros(count))))
    assert server.sum(kept).tolist() == expected.tolist()


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
    server, _, _ = play(values)
    assert not looks_random(encode(values[0]))
    for words in server.masked.values():
        assert looks_random(words)


def test_all_that_the_server_can_take_off_leaves_every_client_masked() -> None:
    """After the last message the server knows all seeds and the lost client's key: still only the sum makes sense."""
    values = {n: np.full(4000, float(n)) for n in range(5)}
    lost = {4}
    server, _, answers = play(values, lost)
    seeds = {n: shamir.join({h: a.there[n] for h, a in answers.items()}, server.threshold) for n in range(4)}
    bare = {n: server.masked[n] - mask(seeds[n], 4000) for n in range(4)}
    for n in range(4):
        assert looks_random(bare[n])
    # Not even of three of the four do the masks cancel.
    for some in itertools.combinations(range(4), 3):
        assert looks_random(np.sum([bare[n] for n in some], axis=0, dtype=np.uint64))
    assert server.sum(answers).tolist() == [0.0 + 1 + 2 + 3] * 4000


def test_two_inputs_with_one_sum_cannot_be_told_apart() -> None:
    one = {0: np.full(4000, 5.0), 1: np.full(4000, -5.0), 2: np.zeros(4000)}
    other = {n: np.zeros(4000) for n in range(3)}
    for values in (one, other):
        server, _, answers = play(values)
        assert server.sum(answers).tolist() == [0.0] * 4000
        for n, words in server.masked.items():
            assert looks_random(words)
            correlation = np.corrcoef(words.astype(np.float64), np.arange(4000) % 2)[0, 1]
            assert abs(correlation) < 0.08, n


def test_the_server_cannot_open_shares() -> None:
    values = draw(3, 4)
    server, clients, _ = play(values)
    boxes = clients[0]._boxes
    assert all(len(box) == 12 + 2 * shamir.SHARE + 16 for box in boxes.values())
    secret = clients[1]._seed
    assert secret not in b"".join(boxes.values())
    assert all(secret not in repr(vars(server)).encode() for _ in [0])


def test_no_client_gives_away_both_secrets_of_anybody() -> None:
    _, _, answers = play(draw(5, 3), lost={1, 3})
    for answer in answers.values():
        assert set(answer.lost) == {1, 3}
        assert set(answer.there) == {0, 2, 4}


# -- what clients refuse ---------------------------------------------------------------------------------


def test_a_client_unmasks_once() -> None:
    _, clients, _ = play(draw(3, 2))
    with pytest.raises(ProtocolError, match="once"):
        clients[0].unmask({0, 1})


def test_a_client_hides_once() -> None:
    _, clients, _ = play(draw(3, 2))
    with pytest.raises(ProtocolError, match="twice"):
        clients[0].hide([1.0, 2.0], clients[0]._boxes)


def test_a_client_refuses_a_small_group() -> None:
    # A threshold of half or less would let a server unmask two halves, and so single clients.
    clients = {n: Client(n, 2) for n in range(4)}
    keys = {n: c.advertise() for n, c in clients.items()}
    with pytest.raises(ProtocolError, match="more than half"):
        clients[0].share(keys)
    clients = {n: Client(n, 3) for n in range(4)}
    keys = {n: c.advertise() for n, c in clients.items()}
    boxes = {n: c.share(keys) for n, c in clients.items()}
    with pytest.raises(ProtocolError, match="are needed"):
        clients[0].hide([1.0], {n: boxes[n][0] for n in (0, 1)})
    clients[0].hide([1.0], {n: boxes[n][0] for n in range(4)})
    with pytest.raises(ProtocolError, match="the sum needs 3"):
        clients[0].unmask({0, 1})


def test_a_client_refuses_false_keys() -> None:
    clients = {n: Client(n, 2) for n in range(3)}
    keys = {n: c.advertise() for n, c in clients.items()}
    with pytest.raises(ProtocolError, match="not in the server's list"):
        clients[0].share({**keys, 0: keys[1]})
    with pytest.raises(ProtocolError, match="same key"):
        clients[0].share({**keys, 2: keys[1]})


@pytest.mark.parametrize("altered", [{0}, {0, 2}])
def test_altered_shares_are_left_out(altered: set[int]) -> None:
    # Of three clients any two can take the masks off. Client 1 sends broken shares to one other, or to both.
    server, clients = Server(2), {n: Client(n, 2) for n in range(3)}
    keys = server.collect_keys({n: c.advertise() for n, c in clients.items()})
    sent = {n: c.share(keys) for n, c in clients.items()}
    for n in altered:
        sent[1][n] = sent[1][n][:-1] + bytes([sent[1][n][-1] ^ 1])
    boxes = server.route(sent)
    there = server.collect({n: c.hide([1.0], boxes[n]) for n, c in clients.items()})
    answers = {n: c.unmask(there) for n, c in clients.items()}
    assert {n for n, a in answers.items() if 1 not in a.there} == altered
    if len(altered) == 1:
        assert server.short(answers) == set()
        assert server.sum(answers).tolist() == [3.0]
    else:
        assert server.short(answers) == {1}
        with pytest.raises(ProtocolError, match=r"clients \[1\] dealt out could not be opened"):
            server.sum(answers)


def test_a_client_goes_on_where_it_was() -> None:
    def again(clients: dict[int, Client]) -> dict[int, Client]:
        return {n: Client.of_plain(unpack(pack(c.to_plain()))) for n, c in clients.items()}

    values, server = draw(3, 4), Server(2)
    clients = again({n: Client(n, 2) for n in values})
    keys = server.collect_keys({n: c.advertise() for n, c in clients.items()})
    sent = {n: c.share(keys) for n, c in clients.items()}
    clients, boxes = again(clients), server.route(sent)
    there = server.collect({n: c.hide(values[n], boxes[n]) for n, c in clients.items()})
    clients = again(clients)
    with pytest.raises(ProtocolError, match="twice"):
        clients[0].hide(values[0], boxes[0])
    assert server.sum({n: c.unmask(there) for n, c in clients.items()}) == pytest.approx(
        values[0] + values[1] + values[2], abs=1e-6
    )
    with pytest.raises(ProtocolError, match="once"):
        again(clients)[0].unmask(there)


@pytest.mark.parametrize("key", [b"", b"short", bytes(32), b"x" * 33])
def test_what_is_no_key_is_refused(key: bytes) -> None:
    good = Client(0, 2).advertise()
    good.check()
    with pytest.raises(ProtocolError, match="X25519"):
        replace(good, masks=key).check()


def test_too_few_answers() -> None:
    server, _, answers = play(draw(5, 2))
    with pytest.raises(ProtocolError, match="needs 3"):
        server.sum({0: answers[0], 1: answers[1]})
    false = {n: replace(a, there={c: bytes(shamir.SHARE) for c in a.there}) for n, a in answers.items()}
    found = server.sum(false)  # shares of nothing give another seed, hence another sum
    assert not np.allclose(found, sum(draw(5, 2).values()))


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

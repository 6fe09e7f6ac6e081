"""Clients that lie about shares: each is found and named, nobody else is, and the sum goes on while it can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.core.errors import ProtocolError
from espalier.secure import shamir
from espalier.secure.sealing import MASK, SEED, seal
from tests.secure.test_protocol import Game, draw, plain

CLIENTS, NEED = 6, 4


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def reseal(game: Game, dealer: int, holder: int, *, bound: bool) -> None:
    """A dealer seals shares of something else for one holder (``bound``: and commits itself to them)."""
    client, said = game.clients[dealer], game.dealt[dealer]
    keys, false = client._keys[holder], bytes(shamir.SHARE_BYTES)
    boxes = (
        seal(false, MASK, dealer, holder, client._seal_key, keys.opens_mask),
        seal(false, SEED, dealer, holder, client._seal_key, keys.opens_seed),
    )
    commitments = (shamir.commitment(MASK, false), shamir.commitment(SEED, false))
    game.dealt[dealer] = replace(
        said,
        boxes={**said.boxes, holder: boxes},
        commitments={**said.commitments, holder: commitments} if bound else said.commitments,
    )


def damage(game: Game, dealer: int, holder: int) -> None:
    """A dealer sends one holder boxes that nobody can open."""
    said = game.dealt[dealer]
    pair = said.boxes[holder]
    game.dealt[dealer] = replace(said, boxes={**said.boxes, holder: (flipped(pair[0]), flipped(pair[1]))})


@settings(max_examples=25, deadline=None)
@given(
    dealer=st.integers(0, CLIENTS - 1),
    holders=st.sets(st.integers(0, CLIENTS - 1), min_size=1, max_size=CLIENTS),
    damaged=st.booleans(),
    lost=st.booleans(),
)
def test_a_false_share_in_a_box_is_its_dealers(dealer: int, holders: set[int], damaged: bool, lost: bool) -> None:
    values, game = draw(CLIENTS, 3), Game(CLIENTS, NEED).advertise().deal()
    for holder in holders - {dealer}:
        if damaged:
            damage(game, dealer, holder)
        else:
            reseal(game, dealer, holder, bound=False)
    out = {dealer} if lost else set()
    game.hide(values, out).help()
    cheated = len(holders - {dealer})
    good = CLIENTS - cheated - len(out)
    if good >= NEED:
        assert game.sum().tolist() == plain(values, out)
    else:
        with pytest.raises(ProtocolError, match=rf"\[{dealer}\]"):
            game.sum()
    assert set(game.server.lies) == ({dealer} if cheated else set())


@settings(max_examples=25, deadline=None)
@given(
    helper=st.integers(0, CLIENTS - 1), lost=st.sampled_from([None, 0, 1]), whose=st.integers(0, CLIENTS - 1),
    kind=st.sampled_from(["alter", "keep back", "accuse", "accuse with a false key"]),
)  # fmt: skip
def test_a_false_share_in_an_answer_is_its_helpers(helper: int, lost: int | None, whose: int, kind: str) -> None:
    if helper == lost:
        return
    values, out = draw(CLIENTS, 3), {lost} - {None}
    game = Game(CLIENTS, NEED).advertise().deal().hide(values, out).help()
    answer = game.answers[helper]
    given = answer.lost if whose in answer.lost else answer.there
    share = given.pop(whose)
    opener = game.clients[helper]._opener(MASK if whose in out else SEED, whose).private_bytes_raw()
    if kind == "alter":
        given[whose] = flipped(share)
    elif kind != "keep back":
        answer.accused[whose] = opener if kind == "accuse" else flipped(bytes(32))
    # one share less is no harm
    assert game.sum().tolist() == plain(values, out)
    assert set(game.server.lies) == {helper}
    assert str(whose) in game.server.lies[helper] or kind == "keep back"


def test_a_true_complaint_tells_no_more_than_a_share() -> None:
    # The key that a holder shows opens this dealer's box of this kind: not the other kind's, nor another's.
    game = Game(CLIENTS, NEED).advertise().deal()
    damage(game, 0, 1)
    game.hide(draw(CLIENTS, 3)).help()
    shown = game.answers[1].accused
    assert set(shown) == {0}
    openers = {(kind, c): game.clients[1]._opener(kind, c).private_bytes_raw() for kind in (MASK, SEED) for c in (0, 2)}
    assert [what for what, key in openers.items() if key == shown[0]] == [(SEED, 0)]
    assert game.sum() is not None
    assert set(game.server.lies) == {0}


@pytest.mark.parametrize("lost", [False, True])
def test_shares_that_do_not_belong_together_are_their_dealers(lost: bool) -> None:
    # Each fits its commitment, and they lie on no one line: what comes out is not the committed secret.
    values, game = draw(CLIENTS, 3), Game(CLIENTS, NEED).advertise().deal()
    for holder in range(1, CLIENTS):
        reseal(game, 0, holder, bound=True)
    game.hide(values, {0} if lost else set()).help()
    with pytest.raises(ProtocolError, match=r"clients \[0\] dealt out do not belong together"):
        game.sum()
    assert set(game.server.lies) == {0}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda a: replace(a, there={**a.there, 9: bytes(66)}), "not known"),
        (lambda a: replace(a, lost=a.there, there={}), "another kind"),
    ],
)
def test_answers_that_make_no_sense(wrong: Callable[..., object], why: str) -> None:
    game = Game(CLIENTS, NEED).advertise().deal().hide(draw(CLIENTS, 3)).help()
    with pytest.raises(ProtocolError, match=why):
        game.server.help(0, wrong(game.answers[0]))  # type: ignore[arg-type]
    assert not game.server.lies

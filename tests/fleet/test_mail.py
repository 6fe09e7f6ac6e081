from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.fleet.links.delivery import DeliveryState, Transmitter
from espalier.fleet.links.framing import Letter, ReceivedLetter
from espalier.fleet.links.link import Link
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.node.events import Call, Effects
from espalier.fleet.node.journal import Journal
from espalier.fleet.node.outbox import LETTERS_OWED, MODELS_OWED
from tests.fleet.net import Net, manifest


def arrival(series: int, number: int, origin: int = 1) -> ReceivedLetter:
    return ReceivedLetter(origin, series, number, b"", ())


def taken(box: DeliveryState, *numbers: int, series: int = 10) -> list[int]:
    """Feed letters of a series; return those that were taken, in the order they were."""
    found: list[int] = []
    for number in numbers:
        following: ReceivedLetter | None = arrival(series, number)
        while following is not None and box.fate(following) == "new":
            found.append(following.number)
            following = box.take(following)
    return found


def test_letters_are_taken_once_and_in_order() -> None:
    box = DeliveryState(Journal(None))
    assert taken(box, 1, 1, 3, 2, 2, 4, 3, 5) == [1, 2, 3, 4, 5]
    assert box.heard(1) == (10, 5)


@settings(deadline=None)
@given(st.permutations(list(range(2, 9))), st.lists(st.integers(1, 8), max_size=8))
def test_whatever_the_order_and_the_doubles(order: list[int], doubles: list[int]) -> None:
    box = DeliveryState(Journal(None))
    assert taken(box, 1, *order, *doubles) == list(range(1, 9))


def test_a_series_without_its_beginning_is_void() -> None:
    # Letter 2 comes first. Whether 1 is late or was taken by an earlier incarnation cannot be told: the sender is asked
    # for a new series, and from then on nothing of the old one may be taken, for it will come again under new numbers.
    box = DeliveryState(Journal(None))
    assert box.fate(arrival(10, 2)) == "unknown"
    assert box.fate(arrival(10, 1)) == "unknown"
    assert taken(box, 1, 2, series=11) == [1, 2]


def test_a_new_series_begins_at_one() -> None:
    box = DeliveryState(Journal(None))
    assert taken(box, 1, 2) == [1, 2]
    assert taken(box, 1, series=11) == [1]
    assert box.fate(arrival(10, 3)) == "unknown", "the earlier series is over"
    assert box.fate(arrival(11, 1)) == "old"


def test_a_sender_without_memory_whose_clock_is_behind() -> None:
    receiver, sender = DeliveryState(Journal(None)), DeliveryState(Journal(None))
    far = 1 << 60
    assert taken(receiver, 1, 2, series=far) == [1, 2]
    letter = sender.post(4, b"x", [], ())
    assert receiver.fate(arrival(letter.series, 1)) == "unknown"
    assert sender.renumber(4, letter.series, above=receiver.heard(1)[0])
    assert sender.series(4) == far + 1
    assert taken(receiver, 1, series=sender.series(4)) == [1]


def test_a_destination_that_forgot_everything_gets_all_that_waits() -> None:
    box = DeliveryState(Journal(None))
    letters = [box.post(4, b"%d" % i, [], ()) for i in range(3)]
    series = letters[0].series
    assert [x.number for x in letters] == [1, 2, 3]
    assert box.acknowledged(4, series, 1)
    assert not box.acknowledged(4, series - 1, 3), "an acknowledgement of another series"
    assert box.renumber(4, series)
    assert not box.renumber(4, series), "asked twice"
    assert box.series(4) > series
    assert [(n, c) for n, (c, _) in box.waiting[4].items()] == [(1, b"1"), (2, b"2")]
    assert box.post(4, b"3", [], ()).number == 3
    assert box.renumber(4, box.series(4), forget=True)
    assert box.waiting[4] == {}


def test_a_mailbox_goes_on_from_its_journal() -> None:
    journal = Journal(None)
    box = DeliveryState(journal)
    taken(box, 1, 2)
    box.post(4, b"x", [], ())
    box.save()
    again = DeliveryState(journal)
    assert again.heard(1) == (10, 2)
    assert again.waiting == {4: {1: (b"x", [])}}
    assert again.post(4, b"y", [], ()).number == 2


class Pipe:
    """Collects what is written to a link."""

    def __init__(self) -> None:
        self.link = Link("test")
        self.numbers: list[int] = []
        self.task = asyncio.create_task(self.link.pump(self._write))

    async def _write(self, frame: pb.Frame) -> None:
        if frame.HasField("head"):
            self.numbers.append(frame.head.envelope.number)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_the_postman_sends_again_over_a_new_link() -> None:
    async def scene() -> None:
        links: dict[int, Link] = {}
        postman = Transmitter(1, links.get, lambda head: None)
        postman.post([Letter(4, 9, n, b"") for n in (1, 2, 3)])
        await settled()
        first = Pipe()
        links[4] = first.link
        postman.again([4])
        await settled()
        assert first.numbers == [1, 2, 3]
        postman.acknowledged(4, 9, 1)
        first.link.close()
        postman.post([Letter(4, 9, 4, b"")])
        await settled()
        assert first.numbers == [1, 2, 3], "the link is over"
        second = Pipe()
        links[4] = second.link
        postman.again(None)
        await settled()
        assert second.numbers == [2, 3, 4]
        postman.acknowledged(4, 8, 99)
        assert postman.pending() == 3
        postman.replace(4, [Letter(4, 12, 1, b"")])
        await settled()
        assert second.numbers[3:] == [1]
        postman.acknowledged(4, 12, 1)
        assert postman.pending() == 0
        assert not postman.reachable()
        await postman.close()
        for pipe in (first, second):
            pipe.task.cancel()

    asyncio.run(scene())


class Deaf(Net):
    """A fleet of which device 1 takes every letter and acknowledges none."""

    def carry_out(self, host: int, effects: Effects) -> None:
        if host == 1:
            effects.acks.clear()
        super().carry_out(host, effects)

    def resend(self) -> bool:
        return False


def test_who_acknowledges_nothing_is_not_written_to_without_bound(quick: Path) -> None:
    # every order, with its model, was kept for it, in memory and on the disk, and the round that it is in, each time
    # that it said it had closed one
    net = Deaf(manifest(2, 1, 300, "fedasync"), quick)
    held: list[int] = []
    while not net.coordinator.finished:
        if not net.step():
            net.idle()
        held += [len(e.outbox.delivery.waiting.get(1, {})) for h, e in net.engines.items() if h != 1]
    assert net.coordinator.round == 300
    assert max(held) <= MODELS_OWED + 10
    assert {e["child"] for e in net.events("unacknowledged")} == {1}
    cloud = net.engines[net.cloud]
    for number in range(2 * LETTERS_OWED):
        net.give(net.cloud, Call(lambda n=number: cloud.say(1, "round", round=n) and None))  # type: ignore[misc]
    kept = cloud.outbox.delivery.waiting[1]
    assert len(kept) <= LETTERS_OWED
    assert len(net.boxes[net.cloud][1]) == len(kept)

"""What the cloud tells of its members: who came, moved and went, who was late, whose letters were refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from espalier.fleet.coordinator.bulletin import EVALUATIONS, Bulletin
from espalier.fleet.membership import Member
from espalier.fleet.node.environment import Directory
from espalier.record.database import Recorder

CLOUD = 4


def bulletin(plain: dict[str, Any] | None = None, recorder: Recorder | None = None) -> Bulletin:
    """Devices 0 and 1 at edge 2, none at edge 3."""
    members = [
        Member(0, "d0", "device", via=2), Member(1, "d1", "device", via=2), Member(2, "e2", "edge", via=CLOUD),
        Member(3, "e3", "edge", via=CLOUD), Member(CLOUD, "cloud", "cloud", via=CLOUD),
    ]  # fmt: skip
    directory = SimpleNamespace(
        members={m.address: m for m in members},
        parent={0: 2, 1: 2, 2: CLOUD, 3: CLOUD}.get,
        is_device=lambda node: node < 2,
        cloud=CLOUD,
    )
    return Bulletin(cast(Directory, directory), plain or {}, (recorder or Recorder(None)).connection)


def test_who_comes_moves_and_goes_is_told_once() -> None:
    found = bulletin()
    known = found._directory.members
    found.changed([known[0]], ())  # it greets again over a new link: no news
    known[0] = Member(0, "d0", "device", via=3, samples=7, version="1.2")
    found.changed([known[0]], ())
    del known[1]
    found.changed((), [1])
    known[1] = Member(1, "d1", "device", via=2)
    found.changed([known[1]], ())
    assert [(event, fields["member"]) for event, fields in found.lines] == [
        ("member moved", "d0"), ("member left", "d1"), ("member joined", "d1"),
    ]  # fmt: skip
    assert found.lines[0][1] == {"member": "d0", "role": "device", "parent": "e3", "samples": 7, "version": "1.2"}


def test_only_an_aggregator_says_who_was_late() -> None:
    found = bulletin()
    found.noted(2, "overdue", {"children": [0]})
    found.noted(CLOUD, "overdue", {"children": [2]})
    found.noted(3, "overdue", {"children": [1]})  # not its child
    found.noted(2, "overdue", {"children": ["1", None, 10**30]})  # rubbish
    found.noted(2, "overdue", {"children": "01"})
    assert dict(found.late) == {0: 1, 2: 1}
    found.noted(CLOUD, "overdue", {"children": [1]})  # that of devices which train alone, too
    assert dict(found.late) == {0: 1, 2: 1, 1: 1}


def test_refusals_are_counted_by_who_was_refused() -> None:
    found = bulletin()
    found.noted(2, "refused", {"by": "e2", "who": "host 0", "why": "…"})
    found.noted(CLOUD, "refused", {"by": "cloud", "who": "d0", "why": "…", "untold": 4})
    found.noted(CLOUD, "refused", {"by": "cloud", "who": "somebody at the door", "why": "…"})
    found.noted(0, "refused", {"by": "d0", "who": "host 1", "why": "slander"})  # devices are not asked about others
    found.noted(3, "refused", {"by": "e3", "who": "d1", "why": "slander"})  # nor edges about those of others
    found.noted(2, "refused", {"who": "host 0", "untold": "many"})
    assert dict(found.refused) == {0: 1 + 5 + 1}


def test_it_goes_on_after_a_restart() -> None:
    before = bulletin()
    before.noted(2, "overdue", {"children": [0]})
    before.worked(0, 12.0)
    before.worked(0, 11.0)  # told late
    recorder = Recorder(None)
    recorder.metric(4.0, 1, "acc_global", 0.25)
    recorder.metric(9.0, 2, "loss_global", float("nan"))
    recorder.metric(9.0, 2, "acc_global", 0.5)
    recorder.commit()
    after = bulletin(before.to_plain(), recorder)
    assert (after.late[0], after.trained) == (1, {0: 12.0})
    after.evaluated(3, 15.0, {"acc_global": 0.75, "acc_device": float("nan")})
    assert [(e.round, e.scores) for e in after.evaluations] == [
        (1, {"acc_global": 0.25}), (2, {"acc_global": 0.5}), (3, {"acc_global": 0.75}),
    ]  # fmt: skip
    assert after.lines.pop() == ("evaluated", {"round": 3, "acc_global": 0.75})
    for number in range(EVALUATIONS):
        after.evaluated(number, 0.0, {})
    assert len(after.evaluations) == EVALUATIONS

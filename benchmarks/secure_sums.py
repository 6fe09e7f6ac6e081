"""What a secure sum costs: shares, bytes and seconds of one round, by the number of children.

``python benchmarks/secure_sums.py --children 10 100 1000`` plays the whole protocol of one round with real
certificates, all parts one after the other in this process. Bytes are those of the letters' contents without the masked
models; seconds are processor time of the aggregator and, in the mean, of one child, over models of ``--numbers``
numbers. A tenth of the children is lost after it has dealt out its shares. ``--complete`` adds what it costs if
everybody shares with everybody.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from espalier.fleet import certs
from espalier.fleet.authority.rules import SUM, SUMMAND
from espalier.fleet.certs import Bundle
from espalier.fleet.links import wire
from espalier.fleet.secure import forms
from espalier.fleet.secure.credentials import CertificateCredentials
from espalier.policies.secure_sum import SecureMerge
from espalier.secure import Client, Server, ring
from espalier.secure.identity import Context

T = TypeVar("T")
HEAD = "| children | neighbours | shares for a secret | shares held | MB through the aggregator | kB of one child | "
HEAD += "seconds of the aggregator | of one child |\n" + "| --- " * 8 + "|"


class Meter:
    """Processor time and bytes, of the aggregator and of all children."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.bytes = 0

    def timed(self, whose: str, work: Callable[[], T]) -> T:
        begun = time.process_time()
        found = work()
        self.seconds[whose] += time.process_time() - begun  # type: ignore[assignment]
        return found

    def sent(self, kind: str, **data: object) -> None:
        self.bytes += len(wire.control(kind, {"sum": 1 << 61, "child": 1, **data}))


def row(children: int, credentials: list[CertificateCredentials], numbers: int, complete: bool) -> str:
    """Play one round; return its line of the table."""
    merge, meter = SecureMerge(), Meter()
    neighbours, threshold = (children - 1, merge.needed(children)) if complete else merge.degree(children)
    graph = ring(range(children), neighbours)
    context = Context("run", children, 1 << 61, 1)
    server = Server(graph, threshold, context, credentials[0])
    clients: list[Client] = []
    for n in range(children):
        meter.sent(SUM, step="begin", members=children, neighbours=graph[n])

        def made(n: int = n) -> Client:
            return Client(n, graph[n], threshold, context, credentials[n])

        clients.append(meter.timed("child", made))
        said = meter.timed("child", clients[n].advertise)
        meter.sent(SUMMAND, step="keys", **forms.advertised(said))
        meter.timed("aggregator", lambda n=n, said=said: server.advertise(n, said))  # type: ignore[misc]
    for n, client in enumerate(clients):
        known = meter.timed("aggregator", lambda n=n: server.introductions(n))  # type: ignore[misc]
        meter.sent(SUM, step="keys", keys=forms.introduced(known))
        dealt = meter.timed("child", lambda c=client, k=known: c.share(k))  # type: ignore[misc]
        meter.sent(SUMMAND, step="shares", boxes=dealt.boxes, commitments=dealt.commitments, seed=dealt.seed)
        meter.timed("aggregator", lambda n=n, dealt=dealt: server.deal(n, dealt))  # type: ignore[misc]
    meter.timed("aggregator", server.route)
    masked, values = {}, np.linspace(-1, 1, numbers)
    for n, client in enumerate(clients):
        parcels = meter.timed("aggregator", lambda n=n: server.parcels(n))  # type: ignore[misc]
        meter.sent(SUM, step="boxes", boxes=parcels)
        meter.timed("child", lambda c=client, p=parcels: c.receive(p))  # type: ignore[misc]
        if n % 10:
            masked[n] = meter.timed("child", lambda c=client: c.hide(values))  # type: ignore[misc]
    server.there = set(masked)
    for n in masked:
        meter.sent(SUM, step="there", there=server.present(n))
        help = meter.timed("child", lambda n=n: clients[n].unmask(server.present(n)))  # type: ignore[misc]
        meter.sent(SUMMAND, step="help", lost=help.lost, there=help.there, accused=help.accused)
        meter.timed("aggregator", lambda n=n, help=help: server.help(n, help))  # type: ignore[misc]
    total = meter.timed("aggregator", lambda: server.sum(masked))
    assert np.allclose(total, len(masked) * values, atol=1e-4)
    held = sum(len(d.commitments) for d in server.dealt.values())
    return (
        f"| {children:,} | {neighbours} | {threshold} | {2 * held:,} | {meter.bytes / 1e6:.2f} | "
        f"{meter.bytes / children / 1e3:.1f} | {meter.seconds['aggregator']:.2f} | "
        f"{meter.seconds['child'] / children:.3f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--children", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--complete", type=int, nargs="*", default=[10, 100])
    parser.add_argument("--numbers", type=int, default=10_000)
    options = parser.parse_args()
    most = max([*options.children, *options.complete])
    with tempfile.TemporaryDirectory() as folder:
        ca = Path(folder)
        certs.init(ca)
        bundles = [Bundle.read(certs.issue(ca, f"device-{n}", "device")) for n in range(most)]
    credentials = [CertificateCredentials(bundle, lambda serial: False) for bundle in bundles]
    print(HEAD, flush=True)
    for children in options.children:
        print(row(children, credentials, options.numbers, False), flush=True)
    for children in options.complete:
        print(row(children, credentials, options.numbers, True) + " everybody with everybody", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Signatures of letters and manifests: whoever passes one on can neither alter it nor make one up.

A letter is signed with the key of its origin's certificate, for this run, this destination and this number. It is
checked where it enters the fleet (by its origin's parent) and where it arrives. The manifest, which says what a run
does, is signed by the cloud; every node checks that before it takes part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgpack

from espalier.core.errors import ProtocolError
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.secure.identity import Credentials

#: what a signature is for: it is of no use anywhere else
LETTER, MANIFEST, MEMBER = (f"espalier fleet: a {what}, 1" for what in ("letter", "manifest", "member"))
#: what a member says of itself; busy and the times are for its parent alone to know
SAID = ("address", "name", "role", "incarnation", "stamp", "via", "samples", "aggregates", "endpoint", "version")


def _letter(run: str, head: pb.Head) -> bytes:
    """Return what the origin of a letter signs; models are bound by their digests."""
    to = head.envelope
    parts = [[p.size, p.encoding, p.digest, p.base] for p in head.parts]
    content = hashlib.sha256(head.content).digest()
    packed: bytes = msgpack.packb([LETTER, run, to.origin, to.dest, to.series, to.number, content, parts])
    return packed


def _manifest(welcome: pb.Welcome) -> bytes:
    packed: bytes = msgpack.packb([MANIFEST, welcome.run, welcome.signed, welcome.manifest])
    return packed


def _member(run: str, member: pb.Member) -> bytes:
    packed: bytes = msgpack.packb([MEMBER, run, *(getattr(member, name) for name in SAID)])
    return packed


def sign_manifest(welcome: pb.Welcome, credentials: Credentials) -> None:
    """Sign what a run does, as the cloud."""
    welcome.certificate, welcome.signature = credentials.certificate, credentials.sign(_manifest(welcome))


def is_of_cloud(welcome: pb.Welcome, credentials: Credentials) -> bool:
    """Tell whether the cloud of this fleet has signed what a welcome says of its run."""
    try:
        author = credentials.verify(welcome.certificate, _manifest(welcome), welcome.signature)
    except ProtocolError:
        return False
    return author.role == "cloud"


class LetterSignatures:
    """Signs the letters of one host in one run, and checks others'."""

    def __init__(
        self, credentials: Credentials, run: str, devices: int, cloud: int, name_of: Callable[[int], str | None]
    ) -> None:
        """Use a node's credentials.

        Args:
            credentials: Its own.
            run: The run's name.
            devices: Hosts below this number are devices.
            cloud: The cloud's number.
            name_of: Tells a host's name, as far as it is known here.
        """
        self._credentials, self._run = credentials, run
        self._devices, self._cloud, self._name_of = devices, cloud, name_of

    def sign(self, head: pb.Head) -> None:
        """Sign a letter of this host."""
        head.certificate = self._credentials.certificate
        head.signature = self._credentials.sign(_letter(self._run, head))

    def vouch(self, member: pb.Member) -> None:
        """Sign what this host says of itself: that it is here, reached over this parent, with so many samples."""
        member.certificate = self._credentials.certificate
        member.signature = self._credentials.sign(_member(self._run, member))

    def vouched(self, member: pb.Member) -> bool:
        """Tell whether a member has said itself what is said of it."""
        try:
            author = self._credentials.verify(member.certificate, _member(self._run, member), member.signature)
        except ProtocolError:
            return False
        return author == (member.name, member.role)

    def genuine(self, head: pb.Head) -> bool:
        """Tell whether a letter is of the host that it says, by that host's certificate: its name and its role."""
        origin = head.envelope.origin
        try:
            author = self._credentials.verify(head.certificate, _letter(self._run, head), head.signature)
        except ProtocolError:
            return False
        role = "cloud" if origin == self._cloud else "device" if origin < self._devices else "edge"
        return author.role == role and self._name_of(origin) in (None, author.name)

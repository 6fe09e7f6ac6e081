"""Keys that members of a secure sum sign: believed from a certificate of the fleet, for one sum, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from espalier.core.errors import ProtocolError
from espalier.fleet import certs
from espalier.fleet.certs import Bundle
from espalier.fleet.secure.credentials import CertificateCredentials
from espalier.secure.identity import Author, Context, PublicKeys, statement
from tests.fleet.net import credentials

KEYS = PublicKeys(b"a" * 32, b"b" * 32, b"c" * 32, b"d" * 32)
SAID = statement(Context("run", 4, 7, 1), 0, 1, KEYS)


def test_a_signature_is_its_owners_and_of_one_statement() -> None:
    one, other = credentials("device-0", "device"), credentials("device-1", "device")
    signature = one.sign(SAID)
    assert other.verify(one.certificate, SAID, signature) == Author("device-0", "device")
    with pytest.raises(ProtocolError, match="not signed"):
        other.verify(other.certificate, SAID, signature)
    for wrong in (
        statement(Context("other", 4, 7, 1), 0, 1, KEYS), statement(Context("run", 5, 7, 1), 0, 1, KEYS),
        statement(Context("run", 4, 8, 1), 0, 1, KEYS), statement(Context("run", 4, 7, 2), 0, 1, KEYS),
        statement(Context("run", 4, 7, 1), 2, 1, KEYS), statement(Context("run", 4, 7, 1), 0, 2, KEYS),
        statement(Context("run", 4, 7, 1), 0, 1, KEYS._replace(masks=b"x" * 32)),
        statement(Context("run", 4, 7, 1), 0, 1, KEYS._replace(opens_seed=b"x" * 32)),
    ):  # fmt: skip
        with pytest.raises(ProtocolError, match="not signed"):
            other.verify(one.certificate, wrong, signature)
    for rubbish in (b"", b"x", one.certificate[:-1]):
        with pytest.raises(ProtocolError, match="not signed"):
            other.verify(rubbish, SAID, signature)


def test_revoked_old_and_foreign_certificates_are_not_believed(tmp_path: Path) -> None:
    certs.init(tmp_path / "ca")
    made = Bundle.read(certs.issue(tmp_path / "ca", "d0", "device"))
    old = Bundle.read(certs.issue(tmp_path / "ca", "d1", "device", days=0))
    revoked: set[int] = set()
    mine = CertificateCredentials(made, revoked.__contains__)
    assert mine.verify(mine.certificate, SAID, mine.sign(SAID)).name == "d0"
    revoked.add(made.identity.serial)
    with pytest.raises(ProtocolError, match="revoked"):
        mine.verify(mine.certificate, SAID, mine.sign(SAID))
    ended = CertificateCredentials(old, lambda serial: False)
    with pytest.raises(ProtocolError, match="not valid now"):
        mine.verify(ended.certificate, SAID, ended.sign(SAID))
    stranger = credentials("device-0", "device")
    with pytest.raises(ProtocolError, match="not signed"):
        mine.verify(stranger.certificate, SAID, stranger.sign(SAID))
    # after the authority has been rotated both are believed
    certs.rotate(tmp_path / "ca")
    newer = CertificateCredentials(Bundle.read(certs.renew(tmp_path / "ca", "d0")), lambda serial: False)
    assert newer.verify(mine.certificate, SAID, mine.sign(SAID)).name == "d0"
    assert newer.verify(newer.certificate, SAID, newer.sign(SAID)).name == "d0"

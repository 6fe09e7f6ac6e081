from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509

from espalier.core.errors import ConfigError
from espalier.fleet import certs
from espalier.fleet.links.admission import Admission, parse_parent
from espalier.fleet.links.limits import Limits


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ca") / "ca"
    certs.init(folder, "trial")
    return folder


def test_a_bundle_says_who_the_node_is(ca: Path) -> None:
    bundle = certs.Bundle.read(certs.issue(ca, "edge-7", "edge", ["example.org", "10.0.0.7"]))
    assert (bundle.identity.name, bundle.identity.role) == ("edge-7", "edge")
    assert bundle.ca == (ca / "ca.pem").read_bytes()


def test_keys_are_secret(ca: Path) -> None:
    bundle = certs.issue(ca, "secretive", "device")
    for path in (ca / "ca.key", bundle / "node.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not (bundle / "ca.key").exists()


def test_revoked_certificates_are_on_a_signed_list(ca: Path, tmp_path: Path) -> None:
    first, second = (certs.Bundle.read(certs.issue(ca, name, "device")) for name in ("bad", "good"))
    before = (ca / "crl.pem").read_bytes()
    assert certs.revoke(ca, "bad") == 1
    assert certs.revoke(ca, "bad") == 0
    crl = (ca / "crl.pem").read_bytes()
    listed = certs.revoked(crl, first.ca)
    assert first.identity.serial in listed
    assert second.identity.serial not in listed
    # the newer list wins, whichever way round they come; nothing is newer than something only if it is empty
    assert certs.newer(before, crl) == certs.newer(crl, before) == crl
    assert certs.newer(b"", crl) == crl
    # a certificate that was issued anew under the name counts again
    assert certs.Bundle.read(certs.issue(ca, "bad", "device")).identity.serial not in certs.revoked(crl, first.ca)
    other = tmp_path / "other"
    certs.init(other)
    with pytest.raises(ConfigError, match="not signed by this fleet's authority"):
        certs.revoked((other / "crl.pem").read_bytes(), first.ca)
    with pytest.raises(ConfigError, match="cannot be read"):
        certs.revoked(b"nonsense", first.ca)


def test_the_gate_keeps_revoked_certificates_out(ca: Path) -> None:
    thief = certs.Bundle.read(certs.issue(ca, "thief", "device"))
    gate = Admission(thief, Limits(greetings_per_minute=60))
    assert gate.refuses(thief.identity) is None
    assert "not one of this software's" in str(gate.refuses(None))
    certs.revoke(ca, "thief")
    new = (ca / "crl.pem").read_bytes()
    assert gate.update(new)
    assert not gate.update(new)
    assert not gate.update(thief.crl), "an older list does not bring a revoked certificate back"
    assert gate.refuses(thief.identity) == "the certificate of thief is revoked"
    # 60 per minute: a burst of 15, then one per second
    assert sum(not gate.hurries(thief.identity) for _ in range(50)) == 15


@pytest.mark.parametrize(
    ("name", "role", "what"),
    [
        ("Edge", "edge", "small letters"),
        ("a" * 64, "edge", "at most 63"),
        ("../up", "edge", "small letters"),
        ("issued", "edge", "none of issued"),
        ("edge-1", "boss", "must be one of cloud, edge, device"),
    ],
)
def test_names_and_roles_are_checked(ca: Path, name: str, role: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        certs.issue(ca, name, role)


def test_mistakes_are_explained(ca: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds a certificate authority already"):
        certs.init(ca)
    with pytest.raises(ConfigError, match="espalier certs init"):
        certs.issue(tmp_path, "edge-1", "edge")
    with pytest.raises(ConfigError, match=r"issued no certificate to 'edgy'"):
        certs.revoke(ca, "edgy")
    with pytest.raises(ConfigError, match="espalier certs issue"):
        certs.Bundle.read(tmp_path)


def test_a_parent_is_named_or_checked_by_its_host() -> None:
    assert parse_parent("edge-1@10.0.0.1:7000") == ("edge-1", "10.0.0.1:7000")
    assert parse_parent("[::1]:7000") == (None, "[::1]:7000")
    for wrong in ("host", "host:", ":70", "a@host:x"):
        with pytest.raises(ConfigError, match="must be host:port"):
            parse_parent(wrong)


def test_a_renewed_certificate_is_for_the_same_role_and_hosts(tmp_path: Path) -> None:
    certs.init(tmp_path)
    before = certs.Bundle.read(certs.issue(tmp_path, "edge-a", "edge", ["192.0.2.2", "edge.example.com"]))
    after = certs.Bundle.read(certs.renew(tmp_path, "edge-a"))
    assert (after.identity.name, after.identity.role) == ("edge-a", "edge")
    assert after.identity.serial != before.identity.serial
    assert after.key != before.key
    hosts = [
        x509.load_pem_x509_certificate(b.cert).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        for b in (before, after)
    ]
    assert hosts[0] == hosts[1]
    with pytest.raises(ConfigError, match="has issued no certificate to 'edge-b'"):
        certs.renew(tmp_path, "edge-b")
    certs.revoke(tmp_path, "edge-a")
    with pytest.raises(ConfigError, match="is revoked"):
        certs.renew(tmp_path, "edge-a")


def test_an_authority_is_rotated_in_three_steps(tmp_path: Path) -> None:
    certs.init(tmp_path)
    for name in ("a", "b"):
        certs.issue(tmp_path, name, "device")
    certs.revoke(tmp_path, "b")
    gone = certs.revoked((tmp_path / "crl.pem").read_bytes(), (tmp_path / "ca.pem").read_bytes())
    first = certs.Bundle.read(tmp_path / "a")
    assert certs.rotate(tmp_path) == [tmp_path / "a"], "nobody needs the bundle of one that is revoked"
    both = certs.Bundle.read(tmp_path / "a")
    assert (both.cert, both.ca.endswith(first.ca), both.ca == first.ca) == (first.cert, True, False)
    # who was revoked stays revoked, for nodes that trust both; a list of the old authority's counts with them, too
    assert certs.revoked(both.crl, both.ca) == certs.revoked(first.crl, both.ca) | gone == gone
    with pytest.raises(ConfigError, match="not signed by this fleet's authority"):
        certs.revoked(both.crl, first.ca)
    with pytest.raises(ConfigError, match="has two authorities already"):
        certs.rotate(tmp_path)
    with pytest.raises(ConfigError, match="a is of the old authority still; renew it first: espalier certs renew a"):
        certs.retire(tmp_path)
    certs.renew(tmp_path, "a")
    # one that was revoked could not be renewed, and does not stand in the way
    assert certs.retire(tmp_path) == [tmp_path / "a"]
    certs.issue(tmp_path, "b", "device")
    last = certs.Bundle.read(tmp_path / "a")
    assert both.ca == last.ca + first.ca
    assert certs.revoked(last.crl, last.ca) == gone

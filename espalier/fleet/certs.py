"""Who is who on the network: a fleet's own certificate authority.

A node is what its certificate says: the common name is its name, the organisational unit its role (``cloud``, ``edge``
or ``device``; an ``operator`` is a person or a program that submits runs). No name inside a message is ever believed.
The authority's directory::

    ca.pem  ca.key      the authority; ca.key never leaves this directory
    crl.pem             revoked certificates, signed; copied to the cloud, which hands it to everybody
    issued/NAME-SERIAL.pem   every certificate that was issued
    NAME/               a bundle to copy to the node: ca.pem, node.pem, node.key, crl.pem
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from espalier.core.errors import ConfigError, nearest

ROLES = ("cloud", "edge", "device", "operator")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
#: files and directories of the authority itself
_RESERVED = ("issued", "ca.pem", "ca.key", "crl.pem", "crl.pem.tmp")


@dataclass(frozen=True)
class Identity:
    """What a certificate says of a node."""

    name: str
    role: str
    serial: int


@dataclass(frozen=True)
class Bundle:
    """A node's certificate, its key, the authority's certificate and the list of revoked ones, all PEM."""

    identity: Identity
    ca: bytes
    cert: bytes
    key: bytes
    crl: bytes

    @staticmethod
    def read(directory: Path) -> Bundle:
        """Read a node's bundle.

        Raises:
            ConfigError: A file is missing, or is no certificate.
        """
        try:
            ca, cert, key = ((directory / n).read_bytes() for n in ("ca.pem", "node.pem", "node.key"))
            identity = identity_of(cert)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--certs {directory}: cannot be used ({error}); give a directory with ca.pem, node.pem and node.key, "
                "as `espalier certs issue` makes it."
            ) from error
        path = directory / "crl.pem"
        return Bundle(identity, ca, cert, key, path.read_bytes() if path.is_file() else b"")


def is_name(text: str) -> bool:
    """Tell whether a certificate may be issued for this name."""
    return _NAME.fullmatch(text) is not None and text not in _RESERVED


def identity_of(pem: bytes) -> Identity:
    """Read name, role and serial number of a certificate.

    Raises:
        ValueError: It is no certificate, or not one of this software's.
    """
    cert = x509.load_pem_x509_certificate(pem)
    names = cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    roles = cert.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    if len(names) != 1 or len(roles) != 1 or roles[0].value not in ROLES:
        raise ValueError(
            "the certificate's subject must have one common name and one unit: cloud, edge, device or operator"
        )
    return Identity(str(names[0].value), str(roles[0].value), cert.serial_number)


def revoked(crl: bytes, ca: bytes) -> frozenset[int]:
    """Return the serial numbers on a list of revoked certificates (none if there is no list).

    Raises:
        ConfigError: The list is damaged or another authority signed it.
    """
    if not crl:
        return frozenset()
    try:
        found = x509.load_pem_x509_crl(crl)
        keys = [c.public_key() for c in x509.load_pem_x509_certificates(ca)]
        genuine = any(isinstance(key, ec.EllipticCurvePublicKey) and found.is_signature_valid(key) for key in keys)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise ConfigError(f"The list of revoked certificates cannot be read: {error}.") from error
    if not genuine:
        raise ConfigError("The list of revoked certificates was not signed by this fleet's authority.")
    return frozenset(entry.serial_number for entry in found)


def newer(one: bytes, other: bytes) -> bytes:
    """Return the newer of two lists of revoked certificates (both genuine, or empty)."""
    if not one or not other:
        return one or other
    first, second = (x509.load_pem_x509_crl(c) for c in (one, other))
    return one if _number(first) >= _number(second) else other


def init(directory: Path, fleet: str = "fleet", days: int = 3650) -> None:
    """Make a certificate authority.

    Raises:
        ConfigError: There is one already.
    """
    if (directory / "ca.key").exists():
        raise ConfigError(f"{directory} holds a certificate authority already; choose another directory.")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "issued").mkdir(exist_ok=True)
    _make_authority(directory, f"espalier {fleet}", days)
    _write_crl(directory, [])


def _make_authority(directory: Path, title: str, days: int, older: bytes = b"") -> None:
    """Write a new authority's key and certificate; ``older`` ones' certificates stay trusted besides."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_secret(directory / "ca.key", _pem_key(key))
    (directory / "ca.pem").write_bytes(cert.public_bytes(serialization.Encoding.PEM) + older)


def rotate(directory: Path, days: int = 3650) -> list[Path]:
    """Make a new authority that issues from now on; the old one's certificates stay valid until :func:`retire`.

    Returns:
        The bundles, which trust both now: each node needs its own before any node shows a certificate of the new one.
    """
    _authority(directory)
    before = (directory / "ca.pem").read_bytes()
    if len(x509.load_pem_x509_certificates(before)) > 1:
        raise ConfigError(f"{directory} has two authorities already; retire the old one first: espalier certs retire.")
    crl = x509.load_pem_x509_crl((directory / "crl.pem").read_bytes())
    # a name of its own: with two of one name, TLS would try only one of them
    _make_authority(directory, f"espalier {secrets.token_hex(4)}", days, before)
    _write_crl(directory, [entry.serial_number for entry in crl], _number(crl) + 1)
    return _refresh(directory)


def retire(directory: Path) -> list[Path]:
    """Trust the newest authority only; return the bundles, which say so too.

    Raises:
        ConfigError: A bundle's certificate is still of the old one.
    """
    newest, _ = _authority(directory)
    for bundle in _bundles(directory):
        if x509.load_pem_x509_certificate((bundle / "node.pem").read_bytes()).issuer != newest.subject:
            command = f"espalier certs renew {bundle.name}"
            raise ConfigError(f"{bundle} is of the old authority still; renew it first: {command}.")
    (directory / "ca.pem").write_bytes(newest.public_bytes(serialization.Encoding.PEM))
    return _refresh(directory)


def _bundles(directory: Path) -> list[Path]:
    """Return the bundles, but for those whose certificate is revoked: nobody needs them."""
    gone = revoked((directory / "crl.pem").read_bytes(), (directory / "ca.pem").read_bytes())
    return sorted(p.parent for p in directory.glob("*/node.pem") if identity_of(p.read_bytes()).serial not in gone)


def _refresh(directory: Path) -> list[Path]:
    """Copy the authority's certificate and its list into every bundle."""
    found = _bundles(directory)
    for bundle in found:
        for name in ("ca.pem", "crl.pem"):
            shutil.copyfile(directory / name, bundle / name)
    return found


def issue(directory: Path, name: str, role: str, hosts: Sequence[str] = (), days: int = 825) -> Path:
    """Issue a certificate; return the bundle to copy to the node.

    Args:
        directory: The authority's.
        name: The node's name: small letters, digits, ``-`` and ``.``; it is also the name that children check.
        role: ``cloud``, ``edge`` or ``device``.
        hosts: DNS names and IP addresses under which a node that listens is reached.
        days: How long it is valid.
    """
    if role not in ROLES:
        raise ConfigError(f"role = {role!r}: must be one of {', '.join(ROLES)}.{nearest(role, ROLES)}")
    if not is_name(name):
        raise ConfigError(
            f"name = {name!r}: must be at most 63 small letters, digits, '-' and '.', and none of "
            f"{', '.join(_RESERVED)}."
        )
    authority, signer = _authority(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, name),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
        ]
    )
    now = datetime.now(UTC)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    cert = (
        x509.CertificateBuilder(authority.subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_general(h) for h in dict.fromkeys([name, *hosts])]), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    pem = cert.public_bytes(serialization.Encoding.PEM)
    (directory / "issued").mkdir(exist_ok=True)
    (directory / "issued" / f"{name}-{cert.serial_number:x}.pem").write_bytes(pem)
    bundle = directory / name
    bundle.mkdir(mode=0o700, exist_ok=True)
    (bundle / "node.pem").write_bytes(pem)
    _write_secret(bundle / "node.key", _pem_key(key))
    shutil.copyfile(directory / "ca.pem", bundle / "ca.pem")
    shutil.copyfile(directory / "crl.pem", bundle / "crl.pem")
    return bundle


def renew(directory: Path, name: str, days: int = 825) -> Path:
    """Issue a certificate with a new key to a node that has one, for the same role and hosts; return its bundle.

    The one before stays valid until it ends: the node takes the new bundle when it is started again.

    Raises:
        ConfigError: The node has no certificate, or it was revoked.
    """
    newest = max(_issued(directory, name), key=lambda c: c.not_valid_before_utc)
    if newest.serial_number in revoked((directory / "crl.pem").read_bytes(), (directory / "ca.pem").read_bytes()):
        raise ConfigError(f"The certificate of {name!r} is revoked; to let it in again: espalier certs issue.")
    alternative = newest.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [str(h.value) for h in alternative if h.value != name]
    role = identity_of(newest.public_bytes(serialization.Encoding.PEM)).role
    return issue(directory, name, role, hosts, days)


def _issued(directory: Path, name: str) -> list[x509.Certificate]:
    """Return every certificate that was issued to a name.

    Raises:
        ConfigError: There is none.
    """
    texts = [p.read_bytes() for p in (directory / "issued").glob("*.pem")]
    found = [x509.load_pem_x509_certificate(t) for t in texts if identity_of(t).name == name]
    if not found:
        known = {identity_of(t).name for t in texts}
        raise ConfigError(f"{directory} has issued no certificate to {name!r}.{nearest(name, known)}")
    return found


def revoke(directory: Path, name: str) -> int:
    """Put every certificate of a name on the list of revoked ones; return how many are newly on it."""
    found = _issued(directory, name)
    old = x509.load_pem_x509_crl((directory / "crl.pem").read_bytes())
    serials = [entry.serial_number for entry in old]
    new = [c.serial_number for c in found if c.serial_number not in serials]
    _write_crl(directory, [*serials, *new], _number(old) + 1)
    return len(new)


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        cert = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
        key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{directory} holds no certificate authority ({error}); make one: espalier certs init."
        ) from error
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return cert, key


def _write_crl(directory: Path, serials: Sequence[int], number: int = 1) -> None:
    cert, key = _authority(directory)
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder(cert.subject, now, now + timedelta(days=3650))
    builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    for serial in serials:
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        )
    data = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    temporary = directory / "crl.pem.tmp"
    temporary.write_bytes(data)
    temporary.replace(directory / "crl.pem")


def _number(crl: x509.CertificateRevocationList) -> int:
    return crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_secret(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)

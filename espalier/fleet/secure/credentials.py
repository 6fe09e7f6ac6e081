"""A node's certificate as members use it: to sign letters and the keys of secure sums, and to check each other's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from espalier.core.errors import ProtocolError
from espalier.fleet.certs import Bundle, identity_of
from espalier.secure.identity import Author

#: certificates of others that are remembered as genuine
KEPT = 10_000


class CertificateCredentials:
    """Signs with a node's key; believes certificates that the fleet's authority issued and has not revoked."""

    def __init__(self, bundle: Bundle, revoked: Callable[[int], bool]) -> None:
        """Use a node's bundle; ``revoked`` tells whether a serial number is on the newest list."""
        key = serialization.load_pem_private_key(bundle.key, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key, self._revoked = key, revoked
        self._authorities = x509.load_pem_x509_certificates(bundle.ca)
        self.author = Author(bundle.identity.name, bundle.identity.role)
        self.certificate = x509.load_pem_x509_certificate(bundle.cert).public_bytes(serialization.Encoding.DER)
        self._genuine: dict[bytes, tuple[x509.Certificate, ec.EllipticCurvePublicKey, Author]] = {}

    def sign(self, statement: bytes) -> bytes:
        """Sign with the certificate's key."""
        return self._key.sign(statement, ec.ECDSA(hashes.SHA256()))

    def verify(self, certificate: bytes, statement: bytes, signature: bytes) -> Author:
        """Return who signed a statement.

        Raises:
            ProtocolError: The certificate is not the authority's or not valid now, or the signature is not its owner's.
        """
        try:
            found, key, author = self._read(certificate)
            key.verify(signature, statement, ec.ECDSA(hashes.SHA256()))
        except (ValueError, TypeError, InvalidSignature) as error:
            raise ProtocolError("A statement is not signed with a certificate of this fleet.") from error
        if not found.not_valid_before_utc <= datetime.now(UTC) <= found.not_valid_after_utc:
            raise ProtocolError("A certificate is not valid now.")
        if self._revoked(found.serial_number):
            raise ProtocolError("A certificate is revoked.")
        return author

    def _read(self, certificate: bytes) -> tuple[x509.Certificate, ec.EllipticCurvePublicKey, Author]:
        """Return a certificate that the authority issued, and that is no authority itself; its key, and whose it is."""
        known = self._genuine.get(certificate)
        if known is not None:
            return known
        found = x509.load_der_x509_certificate(certificate)
        issuer = next((a for a in self._authorities if a.subject == found.issuer), None)
        if issuer is None or found in self._authorities:
            raise ValueError("another authority's")
        found.verify_directly_issued_by(issuer)
        key, identity = found.public_key(), identity_of(found.public_bytes(serialization.Encoding.PEM))
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ProtocolError("A certificate's key is of another kind than this fleet's.")
        if len(self._genuine) >= KEPT:
            self._genuine.clear()
        known = self._genuine[certificate] = found, key, Author(identity.name, identity.role)
        return known

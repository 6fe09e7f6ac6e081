"""What clients hand each other through a server that must not look, and may judge who lied about it.

Every share has a box and a key of its own: the receiver's key for this sender and this kind of share. A receiver that
cannot use a share shows that key, which opens this one box and no other: the server sees what the sender had sealed,
and so which of the two is lying. What it learns is the share that an honest receiver would have told it.
"""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from espalier.core.errors import ProtocolError
from espalier.secure import shamir

#: kinds of shares: of the key of a client's masks, and of the seed of its own mask
MASK, SEED = "mask", "seed"
#: bytes of a sealed share: nonce, share, seal
BOX_BYTES = 12 + shamir.SHARE_BYTES + 16


def derived(secret: bytes, what: str) -> bytes:
    """Derive a 32-byte key from a secret."""
    return HKDF(hashes.SHA256(), 32, salt=None, info=f"espalier secure aggregation {what}".encode()).derive(secret)


def private_key(raw: bytes) -> X25519PrivateKey:
    """Return the key of 32 bytes."""
    return X25519PrivateKey.from_private_bytes(raw)


def public_key(key: X25519PrivateKey) -> bytes:
    """Return a key's public half."""
    return key.public_key().public_bytes_raw()


def exchanged(own: X25519PrivateKey, other: bytes, what: str) -> bytes:
    """Return a key that two clients share.

    Raises:
        ProtocolError: The other's is no key, or one that gives everybody the same secret.
    """
    try:
        return derived(own.exchange(X25519PublicKey.from_public_bytes(other)), what)
    except (ValueError, TypeError) as error:
        raise ProtocolError("A public key is not one of X25519.") from error


def seal(share: bytes, kind: str, sender: int, receiver: int, own: X25519PrivateKey, opens: bytes) -> bytes:
    """Seal a share for one client."""
    label, nonce = f"{kind} {sender}>{receiver}", secrets.token_bytes(12)
    return nonce + ChaCha20Poly1305(exchanged(own, opens, label)).encrypt(nonce, share, label.encode())


def unseal(box: bytes, kind: str, sender: int, receiver: int, own: X25519PrivateKey, seals: bytes) -> bytes | None:
    """Open a box; None if it is not what the sender's key has sealed for this."""
    label = f"{kind} {sender}>{receiver}"
    try:
        return ChaCha20Poly1305(exchanged(own, seals, label)).decrypt(box[:12], box[12:], label.encode())
    except InvalidTag:
        return None

"""Download one file: resumable, checked against its published digest, put in place atomically."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from espalier.core.errors import DataError
from espalier.data.loaders.base import Source

Progress = Callable[[str, int, int | None], None]
BLOCK_BYTES = 1 << 18
TIMEOUT_SECONDS = 30.0


def download(source: Source, folder: Path, progress: Progress | None = None) -> Path:
    """Bring one file into a folder unless it is there already.

    The bytes go to ``NAME.part``, which a later call continues; only a whole file with the right digest gets
    its name.

    Args:
        source: Where from, and the digest (``sha256:…`` or ``md5:…``).
        folder: Where to; made if need be.
        progress: Called as ``progress(file, bytes so far, bytes in all or None)``.

    Raises:
        DataError: No network, a refusal by the server, a full disk, or another digest.
    """
    target = folder / source.file
    if target.exists() and digest(target, source.digest) == source.digest:
        return target
    part = target.with_name(target.name + ".part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        _stream(source, part, progress)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"Could not download {source.file} from {source.url}: {reason}. Is there a network? What came so far is "
            f"kept in {part} and continued by the next call; or download the file elsewhere and put it into {folder}."
        ) from None
    found = digest(part, source.digest)
    if found != source.digest:
        part.unlink()
        raise DataError(
            f"{source.file} from {source.url} has the checksum {found}, expected {source.digest}; it was removed. "
            "Try again; if it stays so, the publisher changed the file."
        )
    os.replace(part, target)
    return target


def digest(path: Path, like: str) -> str:
    """The digest of a file, by the algorithm that ``like`` (``md5:…``) names."""
    algorithm = like.partition(":")[0]
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def _stream(source: Source, part: Path, progress: Progress | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(source.url, headers={"User-Agent": "espalier"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        # 416: nothing is left to send, the part is already whole (or wrong, which the digest will tell).
        if have and error.code == 416:
            return
        raise
    with response:
        # A server without ranges (or a file: address) answers with the whole file: start again.
        resumed = getattr(response, "status", None) == 206
        have = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if resumed else "wb") as file:
            while block := response.read(BLOCK_BYTES):
                file.write(block)
                have += len(block)
                if progress:
                    progress(source.file, have, total)
    if total is not None and have < total:
        raise OSError(f"the connection ended after {have} of {total} bytes")

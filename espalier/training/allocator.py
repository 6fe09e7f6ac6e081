"""Ask glibc to keep large temporaries instead of mapping and unmapping them at every step."""

from __future__ import annotations

import ctypes
import functools
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_GIGABYTE = 1 << 30


@functools.cache
def keep_pages() -> bool:
    """Raise the allocator's thresholds once per process; True where that is possible (glibc on Linux).

    A training step frees and takes again the same tens of megabytes. By default glibc hands blocks of
    that size back to the kernel, and every step pays the page faults anew.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
        done = libc.mallopt(_M_MMAP_THRESHOLD, _GIGABYTE) and libc.mallopt(_M_TRIM_THRESHOLD, _GIGABYTE)
    except (OSError, AttributeError):
        return False
    return bool(done)

"""What training asks of the process it runs in: one torch thread, and an allocator that keeps its pages."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_GIGABYTE = 1 << 30


class _Holders:
    """Who holds the process to one thread: the setting is the process's own, so its holders are counted here."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.before = 1


_HOLDERS = _Holders()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one torch thread inside; the caller's number comes back when the last holder leaves.

    A kernel may split a sum by its number of threads: with always one, results do not depend on the
    machine's cores or on the number of workers; for models of this size it is also faster than two.
    Part of the setting is per thread and part of it is the process's, so every thread sets it, and none
    may take it back while another computes.
    """
    with _HOLDERS.lock:
        if _HOLDERS.count == 0:
            _HOLDERS.before = torch.get_num_threads()
        _HOLDERS.count += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _HOLDERS.lock:
            _HOLDERS.count -= 1
            if _HOLDERS.count == 0:
                torch.set_num_threads(_HOLDERS.before)


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

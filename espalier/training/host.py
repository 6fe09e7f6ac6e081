"""What training asks of its process: one torch thread, an allocator that keeps its pages, room for models."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

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
    that size back to the kernel, and every step pays the page faults again.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
        done = libc.mallopt(_M_MMAP_THRESHOLD, _GIGABYTE) and libc.mallopt(_M_TRIM_THRESHOLD, _GIGABYTE)
    except (OSError, AttributeError):
        return False
    return bool(done)


def release_pages() -> None:
    """Give back what building a large fleet has left in the heap, which :func:`keep_pages` would keep for ever."""
    if keep_pages():
        ctypes.CDLL("libc.so.6").malloc_trim(0)


#: vectors of fewer numbers lie in the common heap
_SMALL = 1 << 14
_SLAB_BYTES = 16 << 20
#: between two vectors, so that they do not all begin at the same place of a page: caches have few places for those
_APART_BYTES = 320


class _Room:
    """Memory for models: what one leaves when it is forgotten, the next of its size takes.

    In the common heap smaller things settle in the gaps that models leave, and a run that holds a thousand of them
    takes twice their memory. After :meth:`clear` a slab is given back when all its vectors are forgotten.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[tuple[mmap.mmap, int]]] = {}

    def vector(self, size: int) -> Tensor:
        """Return a float32 vector ``[size]`` that holds anything."""
        if size < _SMALL or not sys.platform.startswith("linux"):
            return torch.empty(size)
        free = self._free.setdefault(size, [])
        try:
            place = free.pop()
        except IndexError:
            place, *others = self._slab(size)
            free.extend(others)  # another thread may take them at once
        array = np.frombuffer(place[0], dtype=np.float32, count=size, offset=place[1])
        weakref.finalize(array, free.append, place).atexit = False
        return torch.from_numpy(array)

    def clear(self) -> None:
        """Keep no memory that no model is in."""
        self._free.clear()

    @staticmethod
    def _slab(size: int) -> list[tuple[mmap.mmap, int]]:
        """Return the places of a new slab, one or more."""
        each = -(-4 * size // 64) * 64 + _APART_BYTES
        count = max(1, _SLAB_BYTES // each)
        slab = mmap.mmap(-1, count * each, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        slab.madvise(mmap.MADV_HUGEPAGE)
        return [(slab, each * place) for place in range(count)]


ROOM = _Room()

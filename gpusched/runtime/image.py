"""The memory that every shim and rank is forked from: made cheap to fork and cheap to leave.

Forking copies a page-table entry per page in use and ending frees them again, so a 300 MB image of 4 KiB pages costs
about 5 ms each time, per process. In huge pages it is a fifth of that. And what importing torch registered to be done
at interpreter exit belongs to the server's process, not to each of its forks.
"""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

_MADV_COLLAPSE = 25
_HUGE = 2 << 20
_PIECE = 16 * _HUGE


def settle() -> None:
    """Call before the first fork, and again after further imports."""
    # There is no public way to ask for all finalizers; those of torch's own libraries cost 7 ms at every exit.
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False
    gc.freeze()


def huge_page_pieces() -> Iterator[tuple[int, int]]:
    """Start and length of the pieces of private memory that can be in huge pages; a piece takes milliseconds."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, _, *name = line.split(maxsplit=5)
        if not access.startswith("rw") or (name and name[0] != "[heap]"):
            continue
        start, end = (int(word, 16) for word in addresses.split("-"))
        start, end = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
        for at in range(start, end, _PIECE):
            yield at, min(_PIECE, end - at)


def use_huge_pages(start: int, length: int) -> None:
    """Have the kernel move this piece into huge pages now (Linux 6.1); where it cannot, nothing changes."""
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_COLLAPSE)

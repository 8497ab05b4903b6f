"""Marks a forked process where the kernel shows it: its environment block and its command line.

``/proc/<pid>/environ`` and ``ps`` show the memory that ``exec`` filled. A process forked from the warm server would
show the server's for ever, so it writes its own mark (``processes/identity.py``: ``MARK``) and title over it in place.
The server is started with ``MARK`` set to blanks of the full width; where that is missing, nothing is written.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

from gpusched.processes.identity import MARK, MARK_WIDTH_BYTES, read_file

_PR_SET_NAME = 15


def _block(first_field: int) -> tuple[int, int]:
    """Where the kernel keeps the command line (48) or the environment (50) of this process: start, length."""
    fields = (read_file("/proc/self/stat") or b"").rpartition(b")")[2].split()
    start, end = int(fields[first_field - 3]), int(fields[first_field - 2])
    return start, end - start


def put_mark(mark: str) -> bool:
    """Have this process and all it forks or executes from now on carry ``mark``."""
    text = mark.encode().ljust(MARK_WIDTH_BYTES)
    os.environ[MARK] = text.decode()
    if len(text) > MARK_WIDTH_BYTES:
        return False
    start, length = _block(50)
    environment = ctypes.string_at(start, length)
    name = MARK.encode() + b"="
    at = 0 if environment.startswith(name) else environment.find(b"\0" + name) + 1
    value = at + len(name)
    if not environment.startswith(name, at) or environment.find(b"\0", value) - value != len(text):
        return False
    ctypes.memmove(start + value, text, len(text))
    return True


def put_title(title: str) -> None:
    """What ``ps``, ``top`` and ``nvidia-smi`` show for this process; cut to the room there is."""
    start, length = _block(48)
    if length > 1:
        text = title.encode()[: length - 1]
        ctypes.memmove(start, text.ljust(length, b"\0"), length)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, title.encode()[:15], 0, 0, 0)

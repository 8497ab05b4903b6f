"""Telling the user something on stderr, from inside their script: it must never be what ends it."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(text: str) -> None:
    """One line on stderr. Where it cannot be written (disk full, closed), it is lost."""
    with suppress(OSError, ValueError, AttributeError):
        print(f"gpusched: {text}", file=sys.stderr, flush=True)

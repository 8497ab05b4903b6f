"""``shim.json``: the claim to be *the* process tree of an incarnation.

It is made with ``link``, so exactly one can ever be made: by the shim, first thing, or by a resumed daemon that found
none and thereby forbids a late shim to start. Later the shim adds who its ranks are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from gpusched.folder.files import read_record, write_aside
from gpusched.processes.identity import Identity, boot_id, is_alive
from gpusched.protocol import Number, decoder, encode


class Claim(Struct, frozen=True):
    """The processes that look after an incarnation. ``pid`` is None where a daemon has forbidden a shim to start."""

    pid: Number | None
    start_time: int | None
    boot_id: str
    ranks: tuple[Identity, ...] = ()

    @property
    def shim(self) -> Identity | None:
        known = self.pid is not None and self.start_time is not None
        return Identity(self.pid, self.start_time) if known else None  # type: ignore[arg-type]

    @property
    def is_alive(self) -> bool:
        return self.shim is not None and self.boot_id == boot_id() and is_alive(self.shim)

    @property
    def leaders(self) -> tuple[Identity, ...]:
        """The leaders of the sessions made in this boot."""
        if self.shim is None or self.boot_id != boot_id():
            return ()
        return (self.shim, *self.ranks)


_decode = decoder(Claim)


def _text(shim: Identity | None, ranks: Iterable[Identity] = ()) -> bytes:
    pid, began = shim if shim is not None else (None, None)
    return encode(Claim(pid, began, boot_id(), tuple(ranks)))


def make_claim(path: Path, shim: Identity | None) -> bool:
    """Make the claim; return False if there is one already."""
    aside = write_aside(path, _text(shim))
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True


def add_ranks(path: Path, shim: Identity, ranks: Iterable[Identity]) -> None:
    """Add the ranks to one's own claim."""
    write_aside(path, _text(shim, ranks)).replace(path)


def read_claim(path: Path) -> Claim | None:
    """Read a claim; None if there is none (or nothing that could be one)."""
    return read_record(path, _decode)

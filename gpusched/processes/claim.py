"""``shim.json``: the claim to be *the* process tree of an incarnation.

It is made with ``link``, so exactly one can ever be made: by the shim, first thing, or by a resumed daemon that found
none and thereby forbids a late shim to start. Later the shim adds who its ranks are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpusched.folder.files import read_json, write_aside
from gpusched.processes.identity import Identity, boot_id, is_alive


@dataclass(frozen=True, slots=True)
class Claim:
    """The processes that look after an incarnation. ``shim`` is None where a daemon has forbidden it to start."""

    shim: Identity | None
    boot: str
    ranks: tuple[Identity, ...] = field(default=())

    @property
    def is_alive(self) -> bool:
        return self.shim is not None and self.boot == boot_id() and is_alive(self.shim)

    @property
    def leaders(self) -> tuple[Identity, ...]:
        """The leaders of the sessions made in this boot."""
        if self.shim is None or self.boot != boot_id():
            return ()
        return (self.shim, *self.ranks)


def _text(shim: Identity | None, ranks: Iterable[Identity]) -> bytes:
    pid, began = shim if shim is not None else (None, None)
    record = {
        "pid": pid,
        "start_time": began,
        "boot_id": boot_id(),
        "ranks": [list(r) for r in ranks],
    }
    return json.dumps(record).encode() + b"\n"


def make_claim(path: Path, shim: Identity | None) -> bool:
    """Make the claim; return False if there is one already."""
    aside = write_aside(path, _text(shim, ()))
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


def _identity(found: object) -> Identity | None:
    match found:
        case [int(pid), int(began)] if pid > 0:
            return Identity(pid, began)
        case _:
            return None


def read_claim(path: Path) -> Claim | None:
    """Read a claim; None if there is none (or nothing that could be one)."""
    record = read_json(path)
    if record is None:
        return None
    ranks = record.get("ranks")
    return Claim(
        shim=_identity([record.get("pid"), record.get("start_time")]),
        boot=str(record.get("boot_id")),
        ranks=tuple(
            r for r in map(_identity, ranks if isinstance(ranks, list) else ()) if r is not None
        ),
    )

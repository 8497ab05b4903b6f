"""Memory of each GPU when nobody was on it, kept in the search's folder for a daemon that resumes it.

That one may find a trial's processes on a GPU, and could not learn the figure from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpusched.folder.files import read_json, write_durably
from gpusched.processes.identity import boot_id

FILE = "gpus.json"


def keep(folder: Path, idle_bytes: Mapping[str, int | None]) -> None:
    """Keep the figures by UUID; where the disk refuses, a resume has to do without."""
    with suppress(OSError):
        found = {"boot": boot_id(), "idle_bytes": dict(idle_bytes)}
        write_durably(folder / FILE, json.dumps(found).encode())


def kept(folder: Path) -> tuple[Mapping[str, int | None], bool]:
    """Return the figures of this boot, and whether processes of that search may be left: not where it was another."""
    found = read_json(folder / FILE) or {}
    is_this_boot = found.get("boot", boot_id()) == boot_id()
    return found.get("idle_bytes", {}) if is_this_boot else {}, is_this_boot

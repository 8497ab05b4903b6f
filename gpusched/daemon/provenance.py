"""The code of a search: commit, versions of packages and checksum of the script, recorded at its start."""

from __future__ import annotations

import json
import subprocess
import zlib
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from gpusched.folder.files import read_json, write_durably
from gpusched.folder.paths import ExperimentPaths

GIT_LIMIT_S = 5.0
#: Packages that change what a model becomes.
PACKAGES = ("torch", "torchvision", "numpy", "transformers", "lightning", "accelerate")


def record(paths: ExperimentPaths, script: Path, recipe: Path | None) -> None:
    """Write ``code.json``; ``recipe``: the recipe's file."""
    known: dict[str, Any] = {"packages": {}}
    if recipe is not None:
        known["recipe"] = str(recipe.absolute())
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            known["packages"][name] = metadata.version(name)
    with suppress(OSError):
        known["script_crc32"] = zlib.crc32(script.read_bytes())
    with suppress(OSError, subprocess.SubprocessError):
        known["commit"] = _git(script.parent, "rev-parse", "HEAD")
        changed = _git(script.parent, "status", "--porcelain", "--untracked-files=no")
        is_known = bool(_git(script.parent, "ls-files", script.name))
        known["is_committed"] = is_known and not changed
    write_durably(paths.code, json.dumps(known).encode())


def recorded(paths: ExperimentPaths) -> dict[str, Any]:
    """Return what was recorded at the start; empty where the note cannot be read."""
    return read_json(paths.code) or {}


def in_words(known: dict[str, Any]) -> str:
    """Word the recorded code in a line."""
    words = [f"{name} {version}" for name, version in known.get("packages", {}).items()]
    if commit := known.get("commit"):
        changes = "" if known.get("is_committed") else " with uncommitted changes"
        words.insert(0, f"commit {commit[:10]}{changes}")
    return ", ".join(words)


class Edits:
    """Edits of the script since the search began: each launch reads the file anew."""

    def __init__(self, paths: ExperimentPaths, script: str | Path) -> None:
        self._script = Path(script)
        self._changed_ns = -1
        self._crc32 = recorded(paths).get("script_crc32")

    def look(self) -> str | None:
        """Return a remark where the script is another than at the last look, or than at the start."""
        try:
            changed_ns = self._script.stat().st_mtime_ns
            if changed_ns == self._changed_ns:
                return None
            before, self._crc32 = self._crc32, zlib.crc32(self._script.read_bytes())
        except OSError:  # an editor may put another file in its place
            return None
        self._changed_ns = changed_ns
        if before in (None, self._crc32):
            return None
        return (
            f"{self._script} was edited: trials that start or continue now train the new code, and are ranked with "
            "those of the old; 'gpusched run' again compares trials of the new code alone"
        )


def _git(folder: Path, *words: str) -> str:
    """Return git's output. Raises OSError without git, SubprocessError without a repository."""
    command = ["git", "--no-optional-locks", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=GIT_LIMIT_S, check=True)
    return done.stdout.decode(errors="replace").strip()

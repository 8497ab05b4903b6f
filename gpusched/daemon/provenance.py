"""The code of a search: git commit, uncommitted changes and package versions at its start, and what differs now."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import zlib
from importlib import metadata
from pathlib import Path
from typing import Any

from gpusched.folder.files import read_json, write_durably
from gpusched.folder.paths import ExperimentPaths

GIT_LIMIT_S = 5.0
DIFF_BYTES_MAX = 8 << 20
#: Packages that a message names first, as they change what a model becomes.
_FIRST = ("torch", "torchvision", "numpy", "transformers", "lightning", "accelerate")
PACKAGES_NAMED = 3


def record(paths: ExperimentPaths, script: Path) -> None:
    """Write ``code.json`` and ``uncommitted.diff`` into an experiment's folder; without git only the packages."""
    known, diff = _code_of(script)
    if diff:
        write_durably(paths.diff, diff)
    write_durably(paths.code, json.dumps(known).encode())


def recorded(paths: ExperimentPaths) -> dict[str, Any] | None:
    """Return what was recorded at the start; None for an experiment of an older gpusched."""
    return read_json(paths.code, limit_bytes=-1)


def recipe_file(paths: ExperimentPaths) -> Path | None:
    """Return the recipe's file, as noted when the experiment was made; None if the note cannot be read."""
    noted = (read_json(paths.source) or {}).get("recipe")
    return Path(noted) if isinstance(noted, str) else None


def in_words(known: dict[str, Any]) -> str:
    """Word the recorded code in a line."""
    versions = known.get("packages", {})
    words = [f"{name} {versions[name]}" for name in _FIRST if name in versions]
    if commit := known.get("commit"):
        words.insert(0, f"commit {commit[:10]}")
        if known.get("uncommitted_crc32") is not None:
            words.insert(1, "uncommitted changes (uncommitted.diff)")
    return ", ".join(words)


def differences(paths: ExperimentPaths, script: Path) -> list[str]:
    """Name in one line what is not as it was at the start of the search; an empty list where all is."""
    then = recorded(paths)
    if then is None:
        return []
    now, _ = _code_of(script)
    names = {
        "script_crc32": "the script",
        "commit": "the commit",
        "uncommitted_crc32": "the uncommitted changes",
        "python": "Python",
    }
    found = [words for key, words in names.items() if then.get(key) != now.get(key)]
    before, after = then.get("packages", {}), now.get("packages", {})
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    changed.sort(key=lambda name: (name not in _FIRST, name))
    found += changed[:PACKAGES_NAMED]
    if len(changed) > PACKAGES_NAMED:
        found.append(f"{len(changed) - PACKAGES_NAMED} more packages")
    return [f"others than then: {', '.join(found)}"] if found else []


class Edits:
    """Edits of the script since the search began: each launch reads the file anew."""

    def __init__(self, paths: ExperimentPaths, script: str | Path) -> None:
        self._script = Path(script)
        self._changed_ns = -1
        self._crc32 = (recorded(paths) or {}).get("script_crc32")

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


def _code_of(script: Path) -> tuple[dict[str, Any], bytes]:
    """Return what is recorded of the code as it is now, and the uncommitted changes as a patch."""
    names = ((one.metadata["Name"], one.version) for one in metadata.distributions())
    packages = dict(sorted((name.lower(), version) for name, version in names if name))
    known: dict[str, Any] = {"python": platform.python_version(), "packages": packages}
    try:
        known["script_crc32"] = zlib.crc32(script.read_bytes())
    except OSError:
        return known, b""
    commit = _git(script.parent, "rev-parse", "HEAD")
    if commit is None:
        return known, b""
    known["commit"] = commit.decode().strip()
    diff = _git(script.parent, "diff", "--binary", "HEAD") or b""
    if _git(script.parent, "ls-files", "--error-unmatch", script.name) is None:
        diff += (
            _git(script.parent, "diff", "--no-index", "/dev/null", script.name, fails=True) or b""
        )
    known["uncommitted_crc32"] = zlib.crc32(diff) if diff else None
    return known, diff[:DIFF_BYTES_MAX]


def _git(folder: Path, *words: str, fails: bool = False) -> bytes | None:
    """Return git's output; None without git or a repository. ``fails``: status 1 is an answer."""
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            timeout=GIT_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 or (fails and done.returncode == 1) else None

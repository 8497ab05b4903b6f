"""The code of a search and its environment: commit, versions of packages, checksums of its files, at its start."""

from __future__ import annotations

import json
import re
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpusched import plugins
from gpusched.folder.files import read_json, write_durably
from gpusched.folder.paths import ExperimentPaths

GIT_LIMIT_S = 5.0
_INSTALLED = re.compile(r"/(site-packages|dist-packages|lib/python3[^/]*)/")
#: Packages that change what a model becomes.
PACKAGES = ("torch", "torchvision", "numpy", "transformers", "lightning", "accelerate")
#: Variables that scripts and libraries go by, without secrets and what is of one login.
_TELLING = re.compile(
    r"(?!XDG_(RUNTIME|SE)|.*(TOKEN$|KEY|SECRET|PASS))(PYTHONPATH|TORCH.*|(CUDA|CUBLAS|HF|LD|MKL|NCCL|OMP|PYTORCH|"
    r"TOKENIZERS|TRANSFORMERS|TRITON|WANDB)_.*|(.*_)?(CACHE|DATA|DIR|HOME|PATH|ROOT))"
)


def record(paths: ExperimentPaths, script: Path, recipe: Path | None) -> None:
    """Write ``code.json``; ``recipe``: the recipe's file."""
    sums = {str(file): _crc32(file) for file in (script, *_imported(script))}
    known: dict[str, Any] = {"packages": {}, "files_crc32": sums}
    if recipe is not None:
        known |= {"recipe": str(recipe.absolute()), "recipe_crc32": _crc32(recipe)}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            known["packages"][name] = metadata.version(name)
    with suppress(OSError, subprocess.SubprocessError):
        known["commit"] = _git(script.parent, "rev-parse", "HEAD")
        changed = _git(script.parent, "status", "--porcelain", "--untracked-files=no")
        is_known = bool(_git(script.parent, "ls-files", script.name))
        known["is_committed"] = is_known and not changed
    write_durably(paths.code, json.dumps(known).encode())


def keep_policy(paths: ExperimentPaths, name: str) -> None:
    """Copy the file of a policy of the user's own, by which the journal is read: the file may be edited later."""
    if plugins.is_file(name):
        with suppress(OSError):  # a full disk
            write_durably(paths.policy, Path(name.rpartition(":")[0]).read_bytes())


def recorded(paths: ExperimentPaths) -> dict[str, Any]:
    """Return what was recorded at the start; empty where the note cannot be read."""
    return read_json(paths.code) or {}


def environment(paths: ExperimentPaths, now: Mapping[str, str]) -> dict[str, str]:
    """Return ``now`` with what it lacks of the environment that the search began in, which the first call records.

    A shell after a reboot, and ``cron``, may not have all that the script needs.
    """
    if "environment" not in (known := recorded(paths)):
        told = {
            n: value for n, value in now.items() if _TELLING.fullmatch(n) and "://" not in value
        }
        known["environment"] = told
        write_durably(paths.code, json.dumps(known).encode())
    return {**known["environment"], **now}


def in_words(known: dict[str, Any]) -> str:
    """Word the recorded code in a line."""
    words = [f"{name} {version}" for name, version in known.get("packages", {}).items()]
    if commit := known.get("commit"):
        changes = "" if known.get("is_committed") else " with uncommitted changes"
        words.insert(0, f"commit {commit[:10]}{changes}")
    if known.get("is_edited"):
        words.append("edited during the search")
    return ", ".join(words)


def recipe_edits(paths: ExperimentPaths) -> list[str]:
    """Return a remark where the recipe's file is another than at the start: the search continues as it began."""
    known = recorded(paths)
    crc32 = _crc32(file := Path(known.get("recipe", "")))
    if crc32 in (None, known.get("recipe_crc32", crc32)):
        return []
    return [
        f"{file} was edited, but this search continues as it began; 'gpusched run' begins one with the edits"
    ]


class Edits:
    """Edits, since the search began, of the script and of modules of the user's own: launches read them anew."""

    def __init__(self, paths: ExperimentPaths, preload: Sequence[str] | None = None) -> None:
        """``preload``: that of the recipe."""
        self._paths, self._preload = paths, preload
        began = recorded(paths).get("files_crc32", {})
        #: When each file was changed, and the sum of its content.
        self._known = {Path(file): (-1, crc32) for file, crc32 in began.items()}

    def look(self) -> str | None:
        """Return a remark where a file is another than at the last look, or at the first one than at the start."""
        edited = [str(file) for file in self._known if self._is_edited(file)]
        if not edited:
            return None
        with suppress(OSError):  # a full disk
            known = recorded(self._paths) | {"is_edited": True}
            write_durably(self._paths.code, json.dumps(known).encode())
        more = f" and {len(edited) - 3} more" if len(edited) > 3 else ""
        late = " (modules of `preload` after a stop and a resume)" if self._preload else ""
        return (
            f"{', '.join(edited[:3])}{more} was edited: trials that start or continue now train the new code{late}, "
            "and are ranked with those of the old; 'gpusched run' again compares trials of the new code alone"
        )

    def _is_edited(self, file: Path) -> bool:
        changed_ns, crc32 = self._known[file]
        with suppress(OSError):  # an editor may put another file in its place
            if (now_ns := file.stat().st_mtime_ns) != changed_ns:
                self._known[file] = now_ns, zlib.crc32(file.read_bytes())
                return crc32 not in (None, self._known[file][1])
        return False


def _imported(script: Path) -> list[Path]:
    """List the user's own modules that a script names in lines with ``import``, beside it or on Python's path.

    Of a package, such as one that is installed as editable, these are the files of two levels; of a folder without
    ``__init__.py``, which may hold data as well, of one.
    """
    text, files = "", set[Path]()
    with suppress(OSError):
        text = script.read_text(errors="replace")
    for name in set(re.findall(r"\w+", " ".join(re.findall(r".*import.*", text)))) - {"gpusched"}:
        found = None
        with suppress(Exception):  # a finder may be anybody's code
            found = PathFinder.find_spec(name, [str(script.parent)]) or find_spec(name)
        for folder in map(Path, (found and found.submodule_search_locations) or ()):
            files |= {*folder.glob("*.py")}
            files |= {*(folder.glob("*/*.py") if found and found.has_location else ())}
        if found and found.has_location:
            files.add(Path(str(found.origin)))
    return sorted(file for file in files if not _INSTALLED.search(str(file)))


def _crc32(file: Path) -> int | None:
    try:
        return zlib.crc32(file.read_bytes())
    except OSError:
        return None


def _git(folder: Path, *words: str) -> str:
    """Return git's output. Raises OSError without git, SubprocessError without a repository."""
    command = ["git", "--no-optional-locks", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=GIT_LIMIT_S, check=True)
    return done.stdout.decode(errors="replace").strip()

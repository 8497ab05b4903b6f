"""Checkpoints on disk: whole or not there.

Written into a staged folder file by file (each hashed), the manifest last, and all synced; then one rename commits it,
and the folder above is synced. The manifest has size and SHA-256 of every file and of itself; nothing is used that does
not match. A damaged generation is set aside, said on stderr, and the one before it is used. After a commit the newest
``keep`` generations stay, on a full disk one. One that was committed within ``FRESH_S`` on this boot is in the page
cache as it was hashed: a resize hashes nothing again (0.6 s a GB). Nothing is ever unpickled: ``torch.load`` runs with
``weights_only=True`` and no second try without.

One rank writes; what the files hold is not this file's business.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpusched import failpoints
from gpusched.folder.files import FULL, private_folder, sync
from gpusched.folder.lock import Fence
from gpusched.folder.paths import HELD, commit_left
from gpusched.processes.identity import boot_id
from gpusched.worker.endings import say

MANIFEST = "manifest.json"
FRESH_S = 60.0
FOLDER = "files"
"""Name, inside a checkpoint, of the folder that the script has written (``trial.checkpoint_dir``)."""
OPEN_FOLDER = ".open-folder"
_STALE = (".staged-", ".trash-", ".replaced-", ".damaged-", OPEN_FOLDER)


class Damaged(Exception):
    """A checkpoint that must not be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint whose files were found to be what its manifest says."""

    folder: Path
    step: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    @property
    def script_folder(self) -> Path | None:
        """The folder that the script has written into this checkpoint; None without one."""
        return self.folder / FOLDER if self.facts.get("folder") else None

    def load(self, name: str) -> Any:
        """Load what ``torch.save`` wrote to a file of it; tensors on the CPU, mapped from the file and private."""
        import torch

        return torch.load(self.folder / name, map_location="cpu", weights_only=True, mmap=True)


class CheckpointStore:
    """The checkpoints of one trial."""

    def __init__(self, folder: Path, keep: int = 2, fence: Fence | None = None) -> None:
        """``fence``: of the incarnation that writes; raised, it commits nothing and touches nothing."""
        self._fence = fence or Fence(None, 0)
        self.folder = folder
        self._keep = max(1, keep)

    def open_folder(self) -> Path:
        """Make an empty folder that ``write`` can take into a checkpoint.

        Raises:
            OSError: The disk refuses.
        """
        self._make_folder()
        folder = self.folder / OPEN_FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        return folder

    def write(
        self,
        step: int,
        files: Mapping[str, memoryview | bytes],
        facts: Mapping[str, Any],
        script_folder: Path | None = None,
        *,
        held: bool = False,
    ) -> int:
        """Commit a checkpoint; return its size in bytes.

        Args:
            step: The step that the checkpoint is of; one that was saved before is replaced.
            files: Contents by name.
            facts: Go into the manifest (JSON).
            script_folder: Made by ``open_folder``; moved into the checkpoint, and every file below it hashed.
            held: Only put it aside, in the page cache alone, for ``commit_held``. A writer that is killed leaves it to
                whoever comes next; a machine that dies loses it.

        Raises:
            OSError: It could not be written (disk full, not writable); the newest that was there before is untouched.
        """
        self._fence.check()
        staged = self.folder / f".staged-{step:08d}-{os.getpid()}"
        try:
            self._make_folder()
            self._put_back()
            self._remove(_STALE, but=script_folder)
            staged.mkdir(mode=0o700)
            entries = {name: _write_file(staged / name, each) for name, each in files.items()}
            if script_folder is not None:
                facts = {**facts, "folder": True}
                script_folder.rename(staged / FOLDER)
                entries.update(_seal_folder(staged, FOLDER))
            manifest = {"step": step, **facts, "files": entries}
            manifest["boot"] = boot_id()
            manifest["check"] = _manifest_hash(manifest)
            text = json.dumps(manifest, indent=1).encode()
            _write_file(staged / MANIFEST, text)
            if held:
                aside = self.folder / f"{HELD}{step:08d}"
                shutil.rmtree(aside, ignore_errors=True)  # of a boot that is over
                staged.rename(aside)
                self._remove(HELD, but=aside)
            else:
                self._commit(staged, step)
        except OSError as error:
            shutil.rmtree(staged, ignore_errors=True)
            if error.errno in FULL and script_folder is None and self._prune(step, 1):
                return self.write(step, files, facts, held=held)
            raise
        return sum(int(entry["bytes"]) for entry in entries.values()) + len(text)

    def commit_held(self, step: int) -> None:
        """Commit what ``write`` has put aside. Raises OSError."""
        self._commit(self.folder / f"{HELD}{step:08d}", step)

    def _commit(self, staged: Path, step: int) -> None:
        for path in (*staged.iterdir(), staged):
            sync(path)
        failpoints.reach("checkpoint.staged")
        self._fence.check()
        committed = self.folder / f"step-{step:08d}"
        if committed.exists():  # training went back to an older step
            old = committed.with_name(f".replaced-{committed.name}")
            shutil.rmtree(old, ignore_errors=True)
            committed.rename(old)
        staged.rename(committed)
        sync(self.folder)
        failpoints.reach("checkpoint.renamed")
        if self._fence.wait():  # raised since: this process may have been stopped before the rename
            committed.rename(staged)
            self._put_back()
            self._fence.check()
        self._prune(step, self._keep)
        self._remove(HELD)

    def newest(self) -> Checkpoint | None:
        """Return the newest checkpoint that is whole; damaged ones are set aside and said on stderr."""
        commit_left(self.folder, boot_id())
        self._put_back()
        for step, folder in sorted(self._committed().items(), reverse=True):
            try:
                return verify(folder, step)
            except Damaged as why:
                say(f"checkpoint {folder.name} is damaged ({why}); looking for an older one")
                with suppress(OSError):
                    aside = folder.with_name(f".damaged-{folder.name}")
                    shutil.rmtree(aside, ignore_errors=True)
                    folder.rename(aside)
            except OSError as error:
                say(f"checkpoint {folder} cannot be read: {error}")
        return None

    def _make_folder(self) -> None:
        """Make the folder, and sync those above it: the trial's own was made without, and holds the checkpoint."""
        if not self.folder.is_dir():
            private_folder(self.folder)
            sync(self.folder.parent)
            sync(self.folder.parent.parent)

    def _put_back(self) -> None:
        """Rename back a step that a crash between the two renames of ``_commit`` left under its other name alone."""
        with suppress(OSError):
            for entry in list(self.folder.glob(".replaced-step-*")):
                target = entry.with_name(entry.name.removeprefix(".replaced-"))
                if not target.exists():
                    entry.rename(target)

    def _committed(self) -> dict[int, Path]:
        found: dict[int, Path] = {}
        with suppress(FileNotFoundError, NotADirectoryError):
            for entry in self.folder.iterdir():
                if (step := entry.name.removeprefix("step-")).isdecimal():
                    found[int(step)] = entry
        return found

    def _prune(self, newest: int, keep: int) -> bool:
        """Keep the newest generations; tell whether others went.

        One with a higher step is of a course of training that was given up.
        """
        committed, has_removed = self._committed(), False
        kept = sorted((step for step in committed if step <= newest), reverse=True)[:keep]
        for step, folder in committed.items():
            if step not in kept:
                with suppress(OSError):
                    folder.rename(folder.with_name(f".trash-{folder.name}"))
                    has_removed = True
        self._remove(_STALE)
        return has_removed

    def _remove(self, names: str | tuple[str, ...], but: Path | None = None) -> None:
        """Remove the folders whose names begin with one of ``names``, except ``but``."""
        for entry in self.folder.iterdir():
            if entry.name.startswith(names) and entry != but:
                shutil.rmtree(entry, ignore_errors=True)


def verify(folder: Path, step: int, *, hashed: bool = True) -> Checkpoint:
    """Read the manifest of a committed checkpoint, and compare every file with it if ``hashed``.

    Raises:
        Damaged: Something does not match.
        OSError: It cannot be read.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        check, found = manifest.pop("check"), _manifest_hash(manifest)
        entries, is_sound = manifest.pop("files"), check == found and manifest.pop("step") == step
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_sound = False
    if not is_sound:
        raise Damaged("its manifest is missing, damaged or of another step")
    age_s = time.time() - (folder / MANIFEST).stat().st_mtime
    is_fresh = manifest.pop("boot", None) == boot_id() != "" and 0 <= age_s < FRESH_S
    for name, entry in entries.items() if hashed else ():
        _compare(folder / name, entry, is_fresh=is_fresh)
    return Checkpoint(folder, step, manifest, tuple(entries))


def _compare(path: Path, entry: Mapping[str, Any], *, is_fresh: bool) -> None:
    try:
        with path.open("rb") as file:
            is_whole = os.fstat(file.fileno()).st_size == entry["bytes"] and (
                is_fresh or hashlib.file_digest(file, "sha256").hexdigest() == entry["sha256"]
            )
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None
    if not is_whole:
        raise Damaged(f"{path.name} is not what was written")


def _manifest_hash(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _write_file(path: Path, content: memoryview | bytes) -> dict[str, Any]:
    """Write a file; return its manifest entry."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb", buffering=1 << 20) as file:
        file.write(content)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _seal_folder(checkpoint: Path, name: str) -> dict[str, dict[str, Any]]:
    """Sync and hash every file below the folder ``name``; their manifest entries."""
    entries: dict[str, dict[str, Any]] = {}
    for path in sorted((checkpoint / name).iterdir()):
        inside = f"{name}/{path.name}"
        if path.is_dir():
            entries.update(_seal_folder(checkpoint, inside))
        elif path.is_file():
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
                entries[inside] = {"bytes": os.fstat(file.fileno()).st_size, "sha256": sha256}
    sync(checkpoint / name)
    return entries

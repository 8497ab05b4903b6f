"""Files of a checkpoint as they are written: hashed on the way, synced, and stamped so that a later write shows."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from gpusched.folder.files import sync

_PIECE_BYTES = 8 << 20

Writer = Callable[["HashingFile"], None]
Source = Writer | memoryview
"""Content of a file: a function that writes it, or bytes, which are hashed while they are written."""


class HashingFile:
    """A file that is written once, front to back, and hashed on the way."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size_bytes = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error  # torch.save reports it as something else
            raise
        view = memoryview(data)
        self._hash.update(view)
        self.size_bytes += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        self._file.flush()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def replace_links(folder: Path) -> None:
    """Put what it points to in the place of every link below ``folder``; a link to nothing goes."""
    for path in [path for path in folder.rglob("*") if path.is_symlink()]:
        target = path.resolve()
        path.unlink()
        if target.exists():
            (shutil.copytree if target.is_dir() else shutil.copyfile)(target, path)


def seal_folder(checkpoint: Path, name: str) -> dict[str, dict[str, Any]]:
    """Sync and hash every file below the folder ``name``; their manifest entries."""
    entries: dict[str, dict[str, Any]] = {}
    for path in sorted((checkpoint / name).iterdir()):
        inside = f"{name}/{path.name}"
        if path.is_dir():
            entries.update(seal_folder(checkpoint, inside))
        elif path.is_file():
            entries[inside] = _seal_file(path)
        else:
            path.unlink()  # a socket or a pipe holds nothing
    sync(checkpoint / name)
    return entries


def _seal_file(path: Path) -> dict[str, Any]:
    """Sync and hash a file that the script has written; its manifest entry."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return {"sha256": sha256, **_stamped(file.fileno())}


def _stamped(descriptor: int) -> dict[str, Any]:
    """Sync a file and give it a time that no later write can set (file times are as coarse as 4 ms); size and stamp."""
    then_ns = time.time_ns() - 1_000_000_000
    os.utime(descriptor, ns=(then_ns, then_ns))
    os.fsync(descriptor)
    found = os.fstat(descriptor)
    return {"bytes": found.st_size, "stamp": [found.st_ino, found.st_mtime_ns]}


def write_file(path: Path, source: Source) -> dict[str, Any]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=1 << 20) as raw:
        if isinstance(source, memoryview):
            sha256 = _write_buffer(raw.fileno(), source)
        else:
            file = HashingFile(raw)
            try:
                source(file)
            except RuntimeError:
                if file.error is not None:
                    raise file.error from None
                raise
            raw.flush()
            sha256 = file.sha256
        return {"sha256": sha256, **_stamped(raw.fileno())}


def _write_buffer(descriptor: int, data: memoryview) -> str:
    """Write ``data`` while another thread hashes it: both leave the interpreter's lock alone. Its SHA-256."""
    found: list[str] = []
    hashing = threading.Thread(
        target=lambda: found.append(hashlib.sha256(data).hexdigest()), name="gpusched-hash"
    )
    hashing.start()
    try:
        written = 0
        while written < data.nbytes:
            written += os.write(descriptor, data[written : written + _PIECE_BYTES])
    finally:
        hashing.join()
    return found[0]


def write_all(file: HashingFile, data: bytes) -> None:
    file.write(data)

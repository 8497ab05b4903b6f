"""Files that a script writes by itself: noticed where two trials use one path, or a prestart has read an old state.

Trials share a working directory (unless the recipe says ``cwd: private``), so a script's own ``snapshot.pt`` may be
another trial's. And the ranks of a prestart look for a "last checkpoint" of the script's own while the incarnation
before may still write it. ``Files`` knows what rank 0 has opened for writing, from Python's audit events and from
``torch.save``; writers in C++ or Rust that open a path by themselves (HDF5, safetensors) escape. A path is claimed by
the first trial that writes it, in the experiment's folder; appending claims nothing, as logs may be shared.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpusched.folder.files import private_folder

CLAIMS_MAX = 256
"""Paths of one launch that are looked at: a script that writes an image a step is not slowed down by it."""

_WRITES = os.O_WRONLY | os.O_RDWR
# Path's own expanduser raises for a user without a home.
_CACHE = os.path.expanduser("~/.cache/")  # noqa: PTH111
_NOT_OURS = ("/dev/", "/proc/", "/sys/", f"{sys.prefix}/", _CACHE)


class Files:
    """Files of rank 0 of one trial. ``root``: the experiment's folder; ``own``: the trial's folder for such files.

    With ``notes_reads`` what is read is remembered too, for a rehearsal.
    """

    def __init__(
        self, root: Path, claims: Path, own: Path, trial: int, *, notes_reads: bool = False
    ) -> None:
        self._root, self._claims, self._own, self._trial = f"{root}/", claims, f"{own}/", trial
        self._pid = os.getpid()
        self._here = f"{Path.cwd()}/"
        self._temporary = f"{tempfile.gettempdir()}/"
        #: Paths that the script has opened for writing since the last look for collisions.
        self.written: dict[str, None] = {}
        self._claimed: set[str] = set()
        self._read: set[str] | None = set() if notes_reads else None
        #: Times of change of the files that a prestart has looked at; None: it was not there.
        self._looked: dict[str, int | None] = {}
        self._stat: Any = None
        self._watches_torch = False
        self.watch_torch()
        sys.addaudithook(self._hear)

    def look_on(self) -> None:
        """Remember from now on what the script reads or looks for (``stale``)."""
        real = self._stat = os.stat

        def stat(path: Any, *arguments: Any, **keywords: Any) -> os.stat_result:
            self._saw(path)
            return real(path, *arguments, **keywords)

        os.stat = stat

    def stale(self) -> list[str]:
        """Return what this prestart has looked at, and an earlier launch of its trial has written since."""
        if self._stat is None:
            return []
        os.stat, self._stat = self._stat, None
        looked, self._looked = self._looked, {}
        return sorted(
            path
            for path, then in looked.items()
            if self._changed_at(path) != then
            and (path.startswith(self._own) or self._owner(path) == self._trial)
        )

    def collisions(self) -> list[tuple[str, bool]]:
        """Claim what was written since the last call.

        Returns:
            For each path that another trial has claimed: a line to tell, and whether this trial was seen to read it.
        """
        written, self.written = list(self.written), {}
        found = []
        for path in written:
            if path not in self._claimed and len(self._claimed) < CLAIMS_MAX:
                self._claimed.add(path)
                owner = self._claim(path)
                if owner is not None and owner != self._trial:
                    line = (
                        f"writes {path}, as trial {owner} does: a script that reads it again trains on with another "
                        f"trial's state. Write below trial.folder, or say `cwd: private` in the recipe"
                    )
                    found.append((line, path in (self._read or ())))
        return found

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take an audit event; runs at every one of the interpreter, and must not raise."""
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITES and not flags & os.O_APPEND:
                self._wrote(path)
            elif self._stat is not None:
                self._saw(path)
            elif self._read is not None:
                self._read.add(self._place(path))
        elif event == "os.rename":
            self._wrote(arguments[1])

    def _wrote(self, path: Any) -> None:
        place = self._place(path)
        if place and not place.startswith(self._own) and len(self.written) < CLAIMS_MAX:
            self.written[place] = None

    def _saw(self, path: Any) -> None:
        place = self._place(path)
        if place and place not in self._looked:
            self._looked[place] = self._changed_at(place)

    def _changed_at(self, path: str) -> int | None:
        with suppress(OSError):
            return int((self._stat or os.stat)(path).st_mtime_ns)
        return None

    def _place(self, path: Any) -> str:
        """Return the absolute path; nothing for a file that is not watched."""
        if os.getpid() != self._pid or not isinstance(path, str | bytes | os.PathLike):
            return ""
        place = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - links are kept
        if place.startswith(self._own):
            return place
        if place.startswith(self._root) or "/__pycache__/" in place:
            return ""
        if place.startswith(self._here):
            return place
        return "" if place.startswith((*_NOT_OURS, self._temporary)) else place

    def _mark(self, path: str) -> Path:
        return self._claims / hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()

    def _owner(self, path: str) -> int | None:
        try:
            return int(self._mark(path).read_text())
        except (OSError, ValueError):
            return None

    def _claim(self, path: str) -> int | None:
        """Return the trial that has claimed the path first; None where the disk does not say."""
        with suppress(OSError):
            private_folder(self._claims)
            descriptor = os.open(
                self._mark(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
            os.write(descriptor, str(self._trial).encode())
            os.close(descriptor)
            return self._trial
        return self._owner(path)

    def watch_torch(self) -> None:
        """Have ``torch.save`` tell of the paths that it opens in C++."""
        serialization: Any = sys.modules.get("torch.serialization")
        if self._watches_torch or serialization is None:
            return
        self._watches_torch = True
        real = serialization._open_zipfile_writer

        def open_writer(name_or_buffer: Any) -> Any:
            self._wrote(name_or_buffer)
            return real(name_or_buffer)

        serialization._open_zipfile_writer = open_writer

"""Power loss, simulated: what may be on the disk after one, from what was really written before it.

Two recorders, as the two writers differ. What they model, and what not, is in ``docs/reliability.md``.

* ``Recorder``: files of ours. Every call that changes a folder and every fsync is recorded as the real code runs. Then
  a file holds what it held at its last fsync, or any mixture of that and of what was written since (cut at any
  byte, sectors missing or zero). A change of a folder that no fsync of that folder followed is there or not, each by
  itself; changes of one name keep their order.
* ``JournalStates``: SQLite's files, by their contents before and after each commit. Within a commit any of the changed
  sectors of the log are there or not, the last one cut at any byte; then, if the commit moved the log into the
  database, any of the changed sectors of that. The mark was never synced: any older one, or torn.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

SECTOR = 512
WAL_HEADER = 32


def mixed(rng: random.Random, old: bytes, new: bytes) -> bytes:
    """``old`` on its way to ``new``: nothing, all, a beginning, or some of the sectors."""
    kind = rng.randrange(5)
    if kind == 0:
        return old
    if kind == 1:
        return new
    cut = rng.randrange(len(new) + 1)
    if kind == 2:
        return new[:cut] + old[cut:]
    if kind == 3:
        return new[:cut] + old[cut:].ljust(
            len(new) - cut, b"\0"
        )  # the size was written, not the data
    data = bytearray(new)
    for begin in range(0, len(new), SECTOR):
        if rng.random() < 0.5:
            sector = old[begin : begin + SECTOR]
            data[begin : begin + SECTOR] = sector.ljust(min(SECTOR, len(new) - begin), b"\0")
    return bytes(data)


# ---------------------------------------------------------------- files of ours


@dataclass
class Change:
    """A change of a folder: ``names`` (relative to the root) that it sets to what ``do`` makes of a tree."""

    folder: str
    do: Callable[[dict[str, Any]], None]
    what: str


@dataclass
class Sync:
    """An fsync of a file (with what it then held) or of a folder."""

    inode: int | None
    folder: str | None
    data: bytes = b""


@dataclass
class Ack:
    """From here on this must survive."""

    fact: Any


@dataclass
class Recorder:
    """Records what happens below ``root`` within ``recording``: one thread, and no file is written after its fsync."""

    root: Path
    log: list[Change | Sync | Ack] = field(default_factory=list)
    final: dict[int, bytes] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)

    def acknowledge(self, fact: Any) -> None:
        self.log.append(Ack(fact))

    @contextmanager
    def recording(self) -> Iterator[None]:
        names = [
            "open",
            "fsync",
            "rename",
            "replace",
            "mkdir",
            "unlink",
            "rmdir",
            "link",
            "symlink",
        ]
        real = {name: getattr(os, name) for name in names}
        found = (path for path in self.root.rglob("*") if path.is_dir())
        self.folders = [str(path.relative_to(self.root)) for path in found]

        def inside(path: Any) -> str:
            """The file's name below the root; empty if it is elsewhere."""
            full = os.path.abspath(os.fspath(path))  # noqa: PTH100 - a link is not to be followed
            return full.removeprefix(f"{self.root}/") if full.startswith(f"{self.root}/") else ""

        def change(kind: str, name: str, do: Callable[[dict[str, Any]], None]) -> None:
            if name:
                self.log.append(Change(name.rpartition("/")[0], do, f"{kind} {name}"))

        def becomes(kind: str, name: str, what: Callable[[dict[str, Any]], Any]) -> None:
            change(kind, name, lambda tree: tree.__setitem__(name, what(tree)))

        def open_(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
            new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
            descriptor = int(real["open"](path, flags, mode, **more))
            if new and inside(path) and "dir_fd" not in more:
                inode = os.fstat(descriptor).st_ino
                self._keep_alive(inode, descriptor)
                becomes("create", inside(path), lambda tree: inode)
            return descriptor

        def fsync(descriptor: int) -> None:
            real["fsync"](descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            if path != self.root and not inside(path):
                return
            if path.is_dir():
                self.log.append(Sync(None, inside(path)))
            else:
                self.log.append(Sync(os.fstat(descriptor).st_ino, None, path.read_bytes()))

        def rename(source: Any, target: Any, **more: Any) -> None:
            real["rename"](source, target, **more)
            one, other = inside(source), inside(target)
            assert one, source
            assert other, target
            change("rename to", other, lambda tree: _rename(tree, one, other))

        def mkdir(path: Any, mode: int = 0o777, **more: Any) -> None:
            real["mkdir"](path, mode, **more)
            becomes("mkdir", inside(path), lambda tree: "folder")

        def remove(kind: str, path: Any, *, dir_fd: int | None = None) -> None:
            full = path if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink() / path
            real[kind](path, dir_fd=dir_fd)
            change(kind, name := inside(full), lambda tree: _remove(tree, name))

        def link(source: Any, target: Any, **more: Any) -> None:
            real["link"](source, target, **more)
            one = inside(source)
            assert one, source
            becomes("link", inside(target), lambda tree: tree.get(one))

        def symlink(source: Any, target: Any, *more: Any, **most: Any) -> None:
            real["symlink"](source, target, *more, **most)
            becomes("symlink", inside(target), lambda tree: ("symlink", os.fspath(source)))

        fakes = {
            **{"open": open_, "fsync": fsync, "rename": rename, "replace": rename, "mkdir": mkdir},
            **{"link": link, "symlink": symlink},
            **{name: partial(remove, name) for name in ("unlink", "rmdir")},
        }
        self._open: dict[int, int] = {}
        with mock.patch.multiple(os, **fakes):
            yield
        for inode, descriptor in self._open.items():
            size = os.fstat(descriptor).st_size
            self.final[inode] = os.pread(descriptor, size, 0)
            os.close(descriptor)

    def _keep_alive(self, inode: int, descriptor: int) -> None:
        """The inode's number must not be given to another file, and what it held last must be known."""
        self._open[inode] = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    # ------------------------------------------------------------ states

    def state(self, rng: random.Random, into: Path) -> list[Any]:
        """Make one state that a crash may leave, in ``into``; return the facts that had been acknowledged."""
        until = rng.randrange(len(self.log) + 1)
        past = self.log[:until]
        synced_folder: dict[str, int] = {}
        synced_data: dict[int, bytes] = {}
        for place, step in enumerate(past):
            if isinstance(step, Sync) and step.folder is not None:
                synced_folder[step.folder] = place
            elif isinstance(step, Sync) and step.inode is not None:
                synced_data[step.inode] = step.data
        tree: dict[str, Any] = dict.fromkeys(self.folders, "folder")
        loses = rng.random() < 0.8
        for place, step in enumerate(past):
            if isinstance(step, Change):
                durable = place < synced_folder.get(step.folder, -1)
                if durable or not loses or rng.random() < 0.6:
                    step.do(tree)
        self._materialise(rng, tree, synced_data, into)
        return [step.fact for step in past if isinstance(step, Ack)]

    def _materialise(
        self, rng: random.Random, tree: dict[str, Any], synced: dict[int, bytes], into: Path
    ) -> None:
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        contents: dict[int, bytes] = {}
        for name in sorted(tree):
            what, path = tree[name], into / name
            if what is None or not path.parent.is_dir():
                continue
            if what == "folder":
                path.mkdir(exist_ok=True)
            elif isinstance(what, tuple):
                path.symlink_to(what[1])
            else:
                if what not in contents:
                    contents[what] = mixed(rng, synced.get(what, b""), self.final[what])
                    if self.final[what] == synced.get(what):
                        contents[what] = self.final[what]
                path.write_bytes(contents[what])


def _rename(tree: dict[str, Any], one: str, other: str) -> None:
    """Also of a folder, with what is below it. What is not there (its creation was lost) cannot be renamed."""
    if one not in tree:
        return
    _remove(tree, other)
    for name in [name for name in tree if name == one or name.startswith(one + "/")]:
        tree[other + name[len(one) :]] = tree.pop(name)


def _remove(tree: dict[str, Any], gone: str) -> None:
    for name in [name for name in tree if name == gone or name.startswith(gone + "/")]:
        del tree[name]


# ---------------------------------------------------------------- SQLite's files


@dataclass
class Step:
    """One commit: the files at the last sync and after it, and how many events were acknowledged at that sync."""

    before: dict[str, bytes]
    after: dict[str, bytes]
    acknowledged: int


class JournalStates:
    """Records the commits of a journal at ``path``; ``commit`` is called in the place of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.steps: list[Step] = []
        self._synced: dict[str, bytes] = {}
        self._acknowledged = 0
        self._marks: list[bytes] = [b""]

    def files(self) -> dict[str, bytes]:
        found = {}
        for suffix in ("", "-wal", "-mark"):
            file = self._path.with_name(self._path.name + suffix)
            found[suffix] = file.read_bytes() if file.exists() else b""
        return found

    def commit(self, journal: Any, acknowledged: int, *, is_synced: bool = True) -> None:
        """Commit; ``acknowledged``: number of events that are, once this commit is synced."""
        before = self._synced = self._synced or self.files()
        journal.commit(is_synced=is_synced)
        after = self.files()
        self.steps.append(Step(before, after, self._acknowledged))
        self._marks.append(after["-mark"])
        if is_synced:
            self._acknowledged, self._synced = acknowledged, after

    def _log(self, rng: random.Random, old: bytes, new: bytes) -> bytes:
        """Where the log begins anew, SQLite syncs its header before it writes what follows (its ticket ff5be73dee)."""
        if old[:WAL_HEADER] == new[:WAL_HEADER]:
            return mixed(rng, old, new)
        if rng.random() < 0.2:
            cut = rng.randrange(WAL_HEADER + 1)
            return new[:cut] + old[cut:]
        return new[:WAL_HEADER] + mixed(rng, old[WAL_HEADER:], new[WAL_HEADER:])

    def state(self, rng: random.Random, into: Path) -> int:
        """Make one state that a crash may leave, at ``into``; return how many events were acknowledged."""
        number = rng.randrange(len(self.steps))
        step = self.steps[number]
        log, database = step.before["-wal"], step.before[""]
        marks = self._marks[: number + 1]
        if step.after[""] != database and rng.random() < 0.5:
            log, database = step.after["-wal"], mixed(rng, database, step.after[""])
        else:
            log = self._log(rng, log, step.after["-wal"])
        mark = rng.choice(marks)
        if rng.random() < 0.2:
            mark = mark[: rng.randrange(len(mark) + 1)]
        for old in into.parent.glob(into.name + "*"):
            old.unlink()
        into.write_bytes(database)
        into.with_name(into.name + "-wal").write_bytes(log)
        into.with_name(into.name + "-mark").write_bytes(mark)
        return step.acknowledged

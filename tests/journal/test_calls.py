"""Every call that SQLite makes on the journal's files fails once, or for good, with everything a disk may say.

Real calls of the C library: ``journal_calls.c`` is compiled and preloaded into a process that runs ``play`` below.
Nothing is acknowledged that is not there afterwards; what was acknowledged before stays; a failed sync ends the daemon;
a full disk does not; and when the disk is well again, it works again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from gpusched.core.events import Event, Reported
from gpusched.errors import DamagedState, GpuschedError
from gpusched.journal.log import DiskFull, Journal
from tests.journal_samples import META, ROOT, sample

SOURCE = Path(__file__).with_name("journal_calls.c")
ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EINTR", "short")
ENDS = 25
PASSING = ("EINTR", "short")
"""What does not happen again and again: whoever is interrupted tries again."""
ONCE, FOR_GOOD, SHORT = 0, 1, 2
SYNCS = ("fsync", "fdatasync")
PAGE_BYTES = 4096
NEARLY_FULL_LOG_PAGES = 980
"""From 1,000 pages on a commit also copies the log into the database."""


@dataclass
class Daemon:
    """Journals events as the driver does; knows what has been acknowledged."""

    path: Path
    journal: Journal | None = None
    acknowledged: int = 0
    offered: list[Event] = field(default_factory=list)
    #: How the last commit ended.
    ending: BaseException | None = None

    def create(self) -> None:
        self.journal = Journal.create(self.path, META)

    def take_over(self) -> None:
        """As resume does."""
        self.journal = Journal.open(self.path)
        assert self.journal.meta == META
        known = [entry.event for entry in self.journal.entries()]
        assert self.acknowledged <= len(known), f"{self.acknowledged} acknowledged, {len(known)}"
        assert known == self.offered[: len(known)], "other events than were appended"
        self.acknowledged = len(known)
        del self.offered[len(known) :]

    def journalize(self, count: int, weight: int = 0, *, is_synced: bool = True) -> None:
        assert self.journal is not None
        for event, commands in sample(len(self.offered) + count)[len(self.offered) :]:
            if weight and isinstance(event, Reported):
                heavy = msgspec.structs.replace(event.report, metrics={"m" * weight: 1})
                event = msgspec.structs.replace(event, report=heavy)
            self.journal.append(event, commands)
            self.offered.append(event)
        self.commit(is_synced=is_synced)

    def commit(self, *, is_synced: bool = True) -> None:
        self.journal.commit(is_synced=is_synced)
        if is_synced:
            self.acknowledged = len(self.offered)

    def die(self) -> None:
        """Without a last commit."""
        if self.journal is not None:
            self.journal.abandon()
            self.journal = None


def _commit(daemon: Daemon) -> None:
    """First unsynced, where SQLite would move the log, then synced: an error of any sync is heard of."""
    daemon.journal.connection.execute("PRAGMA wal_autocheckpoint=1")
    daemon.journalize(2, is_synced=False)
    daemon.journalize(3)


def _commit_much(daemon: Daemon) -> None:
    daemon.journalize(3, weight=10 * PAGE_BYTES)


def _end(daemon: Daemon) -> None:
    daemon.journal.close()


PHASES: dict[str, tuple[str, Callable[[Daemon], None]]] = {
    # what the daemon has done in peace, and what it does while calls fail
    "create": ("nothing", Daemon.create),
    "commit": ("created", _commit),
    "take over": ("died", Daemon.take_over),
    "copy the log": ("log nearly full", _commit_much),
    "end": ("created", _end),
}


def bring_about(folder: Path, state: str) -> Daemon:
    daemon = Daemon(folder / "journal.db")
    if state == "nothing":
        return daemon
    daemon.create()
    if state == "log nearly full":
        daemon.journalize(3, weight=NEARLY_FULL_LOG_PAGES * PAGE_BYTES)
    daemon.journalize(4)
    if state == "died":
        # What a kill leaves: files as they are, nothing closed in good order.
        with_log = folder / "killed"
        with_log.mkdir()
        for file in folder.glob("journal.db*"):
            shutil.copy(file, with_log)
        daemon.die()
        daemon.path = with_log / "journal.db"
    return daemon


def play(folder: Path, phase: str, at: int, error: str, for_good: bool) -> str:
    """The name of the call that failed; empty if it was not reached. Runs where ``journal_calls`` is preloaded."""
    library = ctypes.CDLL(None)
    library.faults_failed.restype = ctypes.c_char_p
    state, do = PHASES[phase]
    daemon = bring_about(folder, state)
    mode = SHORT if error == "short" else FOR_GOOD if for_good else ONCE
    library.faults_arm(at, getattr(errno, error, 0), mode)
    ending: BaseException | None = None
    try:
        do(daemon)
    except (DiskFull, sqlite3.Error, GpuschedError) as problem:
        ending = problem
    failed = library.faults_failed().decode()
    library.faults_arm(0, 0, 0)
    if phase == "commit" and failed in SYNCS and error != "short":
        assert ending is not None, "a sync failed, and it was acknowledged"
        assert not isinstance(ending, DiskFull), "a sync failed, and it is tried again"
    if error == "ENOSPC" and phase == "commit" and failed.startswith("pwrite"):
        assert ending is None or isinstance(ending, DiskFull), (
            f"a full disk is no reason to die: {ending!r}"
        )
    if _code(ending) == sqlite3.SQLITE_IOERR and isinstance(ending, DamagedState):
        # (A sector that cannot be read is damage to SQLite, and has another code.)
        assert "the disk answers with an error" in str(ending), f"{failed}: {ending}"
    if phase == "create":
        return failed if ending is None or not daemon.path.exists() else _discarded(folder, failed)
    if isinstance(ending, DiskFull):
        daemon.commit()  # there is room again: the same daemon goes on
    daemon.die()
    again = Daemon(daemon.path, acknowledged=daemon.acknowledged, offered=daemon.offered)
    again.take_over()
    again.journalize(2)
    again.die()
    return failed


def _code(ending: BaseException | None) -> int:
    """What SQLite called it."""
    cause = ending.__cause__ if ending is not None else None
    return int(getattr(cause, "sqlite_errorcode", 0)) & 0xFF


def _discarded(folder: Path, failed: str) -> str:
    """What never began is removed with its folder."""
    shutil.rmtree(folder)
    return failed


def calls_of(folder: Path, phase: str) -> int:
    """How many there are where none fails."""
    state, do = PHASES[phase]
    folder.mkdir()
    daemon = bring_about(folder, state)
    library = ctypes.CDLL(None)
    library.faults_arm(1 << 30, 0, 0)
    do(daemon)
    count = int(library.faults_count())
    library.faults_arm(0, 0, 0)
    daemon.die()
    return count


def points(count: int) -> list[int]:
    """All; of thousands (the log is copied page by page) the first, the last and some between."""
    if count <= 4 * ENDS:
        return list(range(1, count + 1))
    first, last = range(1, ENDS), range(count - ENDS, count + 1)
    return [*first, *range(ENDS, count - ENDS, 10 * ENDS), *last]


def main(root: Path, phases: list[str], errors: list[str]) -> None:
    met: dict[str, int] = {}
    for phase in phases:
        count = calls_of(root / "counted", phase)
        shutil.rmtree(root / "counted")
        for error in errors:
            for for_good in (False, True) if error not in PASSING else (False,):
                for at in points(count):
                    folder = root / f"{phase}-{error}-{at}-{for_good}".replace(" ", "-")
                    folder.mkdir()
                    try:
                        failed = play(folder, phase, at, error, for_good)
                    except BaseException as problem:
                        problem.add_note(f"{phase}: call {at}, {error}{' for good' * for_good}")
                        raise
                    shutil.rmtree(folder, ignore_errors=True)
                    met[failed] = met.get(failed, 0) + 1
    print(" ".join(f"{name}:{count}" for name, count in sorted(met.items()) if name))


# ---------------------------------------------------------------- from outside


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    made = tmp_path_factory.mktemp("faults") / "journal_calls.so"
    words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(SOURCE), "-ldl"]
    subprocess.run(words, check=True, capture_output=True)
    return made


def run(library: Path, folder: Path, phases: tuple[str, ...], errors: tuple[str, ...]) -> str:
    program = (
        "import sys; from pathlib import Path; from tests.journal.test_calls import main; "
        f"main(Path({str(folder)!r}), {list(phases)!r}, {list(errors)!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library)},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return done.stdout


def test_every_call_of_a_commit_fails(library: Path, folder: Path) -> None:
    said = run(library, folder, ("commit",), ("ENOSPC", "EIO", "short"))
    for name in ("pwrite64", "fdatasync"):
        assert f"{name}:" in said, f"no {name} failed; is SQLite linked statically? {said}"


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_every_call_fails_with_everything(library: Path, folder: Path, phase: str) -> None:
    said = run(library, folder, (phase,), ERRORS)
    assert said.strip()
    if phase == "copy the log":
        assert "pread64:" in said, "the log was not copied"

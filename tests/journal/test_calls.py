"""Every call that SQLite makes in a commit fails once, or for good, with everything a disk may say.

Real calls of the C library: ``journal_calls.c`` is compiled and preloaded into a process that runs ``play`` below.
Nothing is acknowledged that is not there afterwards; what was acknowledged before stays; a failed sync ends the daemon;
a full disk does not; and when the disk is well again, it works again.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from gpusched.errors import GpuschedError
from gpusched.journal.log import DiskFull, Journal
from tests.journal_samples import META, ROOT, sample
from tests.rig import run_python

SOURCE = Path(__file__).with_name("journal_calls.c")
PASSING = ("EINTR", "short")
"""Faults that pass: an interrupted call is made again."""
ONCE, FOR_GOOD, SHORT = 0, 1, 2


def append(journal: Journal, events: slice) -> None:
    for event, commands in sample(events.stop)[events]:
        journal.append(event, commands)


def play(folder: Path, at: int, error: str, for_good: bool) -> str:
    """Return the name of the call that failed; empty where there are not so many. The library must be preloaded."""
    library = ctypes.CDLL(None)
    library.faults_failed.restype = ctypes.c_char_p
    journal = Journal.create(folder / "journal.db", META)
    append(journal, slice(0, 4))
    journal.commit()
    acknowledged, ending = 4, None
    mode = SHORT if error == "short" else FOR_GOOD if for_good else ONCE
    library.faults_arm(at, getattr(errno, error, 0), mode)
    try:
        append(journal, slice(4, 9))
        journal.commit()
        acknowledged = 9
    except (DiskFull, sqlite3.Error, GpuschedError) as problem:
        ending = problem
    failed = library.faults_failed().decode()
    library.faults_arm(0, 0, 0)
    if failed in ("fsync", "fdatasync") and error != "short":
        assert ending is not None, "a sync failed, and it was acknowledged"
        assert not isinstance(ending, DiskFull), "a sync failed, and it is tried again"
    if failed.startswith("pwrite") and error == "ENOSPC":
        assert ending is None or isinstance(ending, DiskFull), (
            f"a full disk is no reason to die: {ending!r}"
        )
    if isinstance(ending, DiskFull):
        journal.commit()  # there is room again: the same daemon goes on
    journal.abandon()
    again = Journal.open(folder / "journal.db")
    assert again.meta == META
    known = [(entry.event, entry.commands) for entry in again.entries()]
    assert acknowledged <= len(known), f"{acknowledged} acknowledged, {len(known)}"
    assert known == sample(9)[: len(known)], "other events than were appended"
    append(again, slice(len(known), len(known) + 2))
    again.close()
    return failed


def main(root: Path, errors: list[str]) -> None:
    met: dict[str, int] = {}
    for error in errors:
        for for_good in (False, True) if error not in PASSING else (False,):
            for at in itertools.count(1):
                folder = root / f"{error}-{at}-{for_good}"
                folder.mkdir()
                try:
                    failed = play(folder, at, error, for_good)
                except BaseException as problem:
                    problem.add_note(f"call {at}, {error}{' for good' * for_good}")
                    raise
                shutil.rmtree(folder)
                if not failed:
                    break
                met[failed] = met.get(failed, 0) + 1
    print(" ".join(f"{name}:{count}" for name, count in sorted(met.items())))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    made = tmp_path_factory.mktemp("faults") / "journal_calls.so"
    words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(SOURCE), "-ldl"]
    subprocess.run(words, check=True, capture_output=True)
    return made


@pytest.mark.parametrize(
    "errors",
    [
        ("ENOSPC", "EIO", "short"),
        pytest.param(("ENOSPC", "EDQUOT", "EIO", "EINTR", "short"), marks=pytest.mark.slow),
    ],
    ids=["", "everything"],
)
def test_every_call_of_a_commit_fails(errors: tuple[str, ...], library: Path, folder: Path) -> None:
    program = "import sys; from pathlib import Path; from tests.journal.test_calls import main; "
    program += f"main(Path({str(folder)!r}), {list(errors)!r})"
    done = run_python("-c", program, folder=ROOT, LD_PRELOAD=str(library))
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    for name in ("pwrite64", "fdatasync"):
        assert f"{name}:" in done.stdout, f"no {name} failed; is SQLite linked statically?"

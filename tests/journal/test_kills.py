"""Kills and full disks: what was acknowledged is there, what was not is still waiting or was never said to be."""

from __future__ import annotations

import random
import resource
import signal
import time
from pathlib import Path

import pytest

from gpusched.errors import GpuschedError
from gpusched.journal.log import Journal
from tests.journal_samples import META, read, run_program, sample, start_program

# ---------------------------------------------------------------- kill -9

WRITER = """
    import sys
    from pathlib import Path
    from gpusched.journal.log import Journal
    from tests.journal_samples import META, sample
    path = Path(sys.argv[1])
    if path.exists():
        journal = Journal.open(path)
        done = sum(1 for _ in journal.entries())
    else:
        journal, done = Journal.create(path, META), 0
    events = sample(2)
    while True:
        for event, commands in events:
            journal.append(event, commands)
        journal.commit()
        done += 2
        print(done, flush=True)
"""


def _kill_writers(path: Path, times: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(times):
        writer = start_program(WRITER, str(path))
        writer.stdout.readline()
        time.sleep(rng.random() * 0.02)
        writer.send_signal(signal.SIGKILL)
        said = writer.stdout.read().split()
        writer.wait()
        writer.stdout.close()
        assert writer.stderr.read() == ""
        writer.stderr.close()
        acknowledged = int(said[-1]) if said else 2
        found = read(path)
        assert len(found) >= acknowledged, f"seed {seed}: an acknowledged event is lost"
        assert len(found) % 2 == 0, "half a batch"
        pair = [(e.event, e.commands) for e in found[-2:]]
        assert pair == sample(2)


def test_kill_9_loses_nothing_that_was_acknowledged(path: Path) -> None:
    _kill_writers(path, 8, seed=3)


@pytest.mark.slow
def test_kill_9_a_hundred_times(tmp_path: Path) -> None:
    for seed in range(10):
        _kill_writers(tmp_path / f"{seed}.db", 10, seed)


# ---------------------------------------------------------------- a full disk


def test_a_full_disk_acknowledges_nothing_and_loses_nothing(path: Path) -> None:
    """The file size limit stands in for the full disk: both are a write that does not succeed."""
    program = """
        import resource, signal, sqlite3, sys
        from pathlib import Path
        from gpusched.journal.log import Journal
        from tests.journal_samples import META, sample
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        journal = Journal.create(Path(sys.argv[1]), META)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        acknowledged, failures, failing = 0, 0, sample(2)
        for n in range(4000):
            for event, commands in failing:
                journal.append(event, commands)
            try:
                journal.commit()
            except sqlite3.Error:
                failures += 1
                assert journal.is_dirty
                if failures == 3:
                    # There is room again: what was not acknowledged is still there.
                    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
                    journal.commit()
                    print(acknowledged, 2 * (n + 1))
                    break
            else:
                acknowledged = 2 * (n + 1)
    """
    done = run_program(program, str(path))
    assert done.returncode == 0, done.stderr
    acknowledged, written = map(int, done.stdout.split())
    assert 0 < acknowledged < written
    found = read(path)
    assert len(found) == written
    assert [(e.event, e.commands) for e in found[-2:]] == sample(2)


def test_killed_while_the_disk_is_full_it_keeps_what_was_acknowledged(path: Path) -> None:
    program = """
        import os, resource, signal, sqlite3, sys
        from pathlib import Path
        from gpusched.journal.log import Journal
        from tests.journal_samples import META, sample
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        journal = Journal.create(Path(sys.argv[1]), META)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
        acknowledged = 0
        while True:
            for event, commands in sample(2):
                journal.append(event, commands)
            try:
                journal.commit()
            except sqlite3.Error:
                print(acknowledged, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            acknowledged += 2
    """
    done = run_program(program, str(path))
    assert done.returncode == -signal.SIGKILL, done.stderr
    acknowledged = int(done.stdout)
    assert acknowledged > 0
    assert len(read(path)) == acknowledged


def test_a_disk_that_is_full_at_the_start_is_said_so(path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with pytest.raises(GpuschedError) as raised:
            Journal.create(path, META)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert str(path) in str(raised.value)

"""Journals for tests: some events of every size, written and read."""

from __future__ import annotations

from pathlib import Path

from gpusched.core.commands import Command, Launch, Yield
from gpusched.core.events import (
    CheckpointSaved,
    DaemonResumed,
    DevicesJoined,
    DevicesReleased,
    Event,
    QuarantineChanged,
    TrialExited,
    TrialUp,
)
from gpusched.journal.log import Journal
from gpusched.journal.rows import Entry
from tests.events import reported

ROOT = Path(__file__).resolve().parent.parent
EVIL = '</title><script>alert("x")</script>'
META = {"began": {"boot": 12.5, "wall": 1e9}, "epoch": 1}


def sample(count: int) -> list[tuple[Event, list[Command]]]:
    """Events of every size, some with commands."""
    found: list[tuple[Event, list[Command]]] = [
        (
            DevicesJoined(at=0.0, devices=("d0", "d1"), islands={"d0": 0, "d1": 1}),
            [Launch(0, 1, ("d0",), {"lr": 0.1, "act": "relu", "é": [1, 2]})],
        ),
        (TrialUp(at=0.5, trial=0, incarnation=1), []),
    ]
    for n in range(2, count):
        report = reported(
            at=n * 0.37,
            trial=0,
            incarnation=1,
            seq=n,
            step=n,
            metric=None if n % 7 == 0 else 1 / n,
            step_time_s=0.37,
            metrics={"loss": "nan" if n % 7 == 0 else 0.1 * n},
        )
        found.append((report, [Yield(0, 1, save=True)] if n % 11 == 0 else []))
    return found[:count]


def write(path: Path, count: int) -> list[Entry]:
    journal = Journal.create(path, META)
    entries = []
    for seq, (event, commands) in enumerate(sample(count), 1):
        journal.append(event, commands)
        entries.append(Entry(seq, event, commands))
        if seq % 5 == 0:
            journal.commit()
    journal.close()
    return entries


def read(path: Path) -> list[Entry]:
    journal = Journal.open(path)
    try:
        return list(journal.entries())
    finally:
        journal.close()


def story(path: Path) -> Path:
    """Two devices, two trials: one is resized, one loses its device."""
    told: list[tuple[Event, list[Command]]] = [
        (
            DevicesJoined(at=0.0, devices=("d0", "d1"), unusable={"d1": "a stranger's"}),
            [Launch(0, 1, ("d0",), {"act": EVIL, "opt": {"lr": 0.1}})],
        ),
        (reported(at=1.0, trial=0, incarnation=1, seq=1, step=1, metric=0.5), []),
        (CheckpointSaved(at=1.5, trial=0, incarnation=1, step=1, save_s=0.25), []),
        (QuarantineChanged(at=2.0, device="d1"), [Launch(1, 1, ("d1",), {"act": "relu"})]),
        (reported(at=3.0, trial=0, incarnation=1, seq=2, step=2, metric=0.75), [Yield(0, 1, True)]),
        (reported(at=3.5, trial=1, incarnation=1, seq=1, step=1, metric=None), []),
        (CheckpointSaved(at=3.75, trial=0, incarnation=1, step=2, save_s=0.5), []),
        (TrialExited(at=4.0, trial=0, incarnation=1, outcome="yielded"), []),
        (DevicesReleased(at=4.5, devices=("d0",)), [Launch(0, 2, ("d0",), {"act": EVIL})]),
        (QuarantineChanged(at=5.0, device="d1", reason="Xid 79"), []),
        (TrialExited(at=5.5, trial=1, incarnation=1, outcome="killed"), []),
        (TrialExited(at=6.0, trial=0, incarnation=1, outcome="lost"), []),  # of before
        (DaemonResumed(at=6.5, epoch=2, unusable={"d1": "it is gone"}), []),
        (reported(at=7.0, trial=0, incarnation=2, seq=3, step=3, metric=0.6), []),
    ]
    journal = Journal.create(path, {"epoch": 1})
    for event, commands in told:
        journal.append(event, commands)
    journal.commit()
    journal.close()
    return path

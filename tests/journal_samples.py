"""Journals for tests: some events of every size, written and read, and programs that use them from outside."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from gpusched.core.decisions import Command, Launch, SetTimer, Yield
from gpusched.core.events import Event, ExperimentStarted, Reported, TrialUp
from gpusched.journal.log import Entry, Journal

ROOT = Path(__file__).resolve().parent.parent
META = {"began": {"boot": 12.5, "wall": 1e9}, "epoch": 1}


def sample(count: int) -> list[tuple[Event, list[Command]]]:
    """Events of every size, some with commands."""
    found: list[tuple[Event, list[Command]]] = [
        (
            ExperimentStarted(at=0.0, devices=("d0", "d1"), islands={"d0": 0, "d1": 1}),
            [
                SetTimer("deadline", 60.0),
                Launch(0, 1, ("d0",), {"lr": 0.1, "act": "relu", "é": [1, 2]}),
            ],
        ),
        (TrialUp(at=0.5, trial=0, incarnation=1), []),
    ]
    for n in range(2, count):
        report = Reported(
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


def write(path: Path, count: int, *, batch: int = 5) -> list[Entry]:
    journal = Journal.create(path, META)
    entries = []
    for seq, (event, commands) in enumerate(sample(count), 1):
        journal.append(event, commands)
        entries.append(Entry(seq, event, commands))
        if seq % batch == 0:
            journal.commit()
    journal.close()
    return entries


def read(path: Path) -> list[Entry]:
    journal = Journal.open(path)
    try:
        return list(journal.entries())
    finally:
        journal.close()


def start_program(program: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *args],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_program(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

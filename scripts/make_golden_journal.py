"""Write tests/golden/journal.db: a simulated search, replayed by today's code in the tests.

    python scripts/make_golden_journal.py

Until the first release the file is made again whenever the journal or a rule changes; after it, one of each released
format stays as it is, or released journals can no longer be resumed. How the search was set up, and how it ended,
stands in the journal's meta.
"""

from __future__ import annotations

import dataclasses
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpusched.core.events import DevicesJoined, LimitsMoved, UserAsked, Verb
from gpusched.core.experiment import Experiment
from gpusched.core.rules import Rules
from gpusched.driver.loop import Driver
from gpusched.journal.log import Journal
from gpusched.policies import make
from gpusched.sim.physics import Delays
from gpusched.sim.workload import Synthetic

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.faults import Faults, FaultyExecutor, Incident

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "golden"

SETUP: dict[str, Any] = {
    "policy": "hypersched",
    "options": {"r": 2, "R": 60, "eta": 2.0, "cooldown": 2},
    "rules": {
        "deadline_s": 12.0,
        "mode": "max",
        "max_atoms": 4,
        "last_call_s": 0.5,
        "scaling": "auto",
    },
    "hparams": [
        {"b0_quantile": (7 * n % 20) / 20, "b1": (3 * n % 10) / 10, "b2": 0.5} for n in range(30)
    ],
}
#: What people asked for: (seconds, verb, trial).
ASKED: list[tuple[float, Verb, int]] = [
    (1.0, "pause", 1),
    (2.5, "unpause", 1),
    (3.0, "stop_trial", 2),
    (3.5, "pause", 99),
]
INCIDENTS = (
    Incident(
        at=2.0, kind="quarantine", device="sim:3", reason="Xid 79: GPU has fallen off the bus"
    ),
    Incident(at=2.2, kind="lost", trial=0),
    Incident(at=4.0, kind="readmit", device="sim:3"),
)


def experiment(setup: dict[str, Any]) -> Experiment:
    """The search that a journal's meta describes; the tests use this too."""
    hparams = setup["hparams"]
    return Experiment(
        Rules(**setup["rules"]),
        make(setup["policy"], setup["options"]),
        lambda n: hparams[n] if n < len(hparams) else None,
    )


def outcome(of: Experiment) -> dict[str, Any]:
    """How it ended, as JSON."""
    state = of.state
    policy: Any = of.policy
    assert state.best is not None
    return {
        "now": state.now,
        "stopping": state.stopping,
        "best": dataclasses.asdict(state.best),
        "trials": {
            str(t.id): [t.state.value, t.step, t.incarnation] for t in state.trials.values()
        },
        "rungs": {
            str(rung.milestone): [[trial, rung.score(trial)] for trial in rung.top(len(rung))]
            for rung in policy.rungs
        },
        "overhead_s": state.speed.overhead_s,
        "s": [state.speed.s(atoms) for atoms in (1, 2, 4)],
    }


def record(path: Path) -> Experiment:
    """Simulate it into a journal."""
    delays = Delays(launch_s=0.08, resize_s=0.06, save_s=0.01, exit_s=0.02, release_s=0.05)
    executor = FaultyExecutor(
        Synthetic(),
        4,
        delays=delays,
        faults=Faults(lost=0.004, crash=0.002),
        incidents=INCIDENTS,
        seed=11,
    )
    journal = Journal.create(path, {"setup": SETUP})
    made = experiment(SETUP)
    driver = Driver(made, executor, journal, check=True)
    devices = tuple(device.id for device in executor.inventory())
    islands = {device: n // 2 for n, device in enumerate(devices)}
    driver.handle([DevicesJoined(at=0.0, devices=devices, islands=islands)])
    for at, verb, trial in ASKED:
        while executor.now() < at:
            driver.turn(at)
        driver.handle([UserAsked(at=executor.now(), verb=verb, trial=trial)])
    driver.handle([LimitsMoved(at=executor.now(), deadline_s=SETUP["rules"]["deadline_s"] + 1)])
    driver.resume(epoch=2)
    driver.run()
    journal.set_meta({"outcome": outcome(made)})
    journal.close()
    return made


def main() -> int:
    target = FOLDER / "journal.db"
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        made = record(path)
        # As one plain file: without a write-ahead log beside it.
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("VACUUM")
        connection.close()
        target.write_bytes(path.read_bytes())
    print(f"{target}: {target.stat().st_size} bytes, {len(made.state.trials)} trials")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The daemon's log ends no search and fills no disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpusched.daemon.storage import LOOK_EVERY_S, Storage
from gpusched.folder.logcap import FIRST_BYTES, LAST_BYTES, STEP_BYTES
from gpusched.folder.paths import ExperimentPaths
from tests.helpers import Script

PRINTS = """
import sys, traceback
from gpusched.daemon.start import write_unfailingly
write_unfailingly()
for number in range(3):
    print("line", number, "\\ud800", flush=True)
print("to the other", file=sys.stderr)
"""


def test_a_disk_that_refuses_a_line_is_no_reason_to_end() -> None:
    full = Path("/dev/full")
    with full.open("wb") as log:
        done = subprocess.run([sys.executable, "-c", PRINTS], stdout=log, stderr=log)
    assert done.returncode == 0


def test_what_can_be_written_is() -> None:
    done = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True)
    assert done.stdout.decode() == "".join(f"line {n} \\ud800\n" for n in range(3))
    assert done.stderr.decode() == "to the other\n"


def test_a_log_keeps_its_first_and_last_part(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    size = FIRST_BYTES + LAST_BYTES + STEP_BYTES
    storage = Storage(ExperimentPaths(tmp_path), beside=lambda work: work())
    state = Script().state
    log.write_bytes(b"first" + bytes(size - 9) + b"last")
    storage.look(0.0, state)
    blocks = log.stat().st_blocks * 512
    assert blocks <= FIRST_BYTES + LAST_BYTES + 4096
    text = log.read_bytes()
    assert text.startswith(b"first")
    assert text.endswith(b"last") or len(text) == FIRST_BYTES, "no holes here: cut back"
    with log.open("ab") as file:
        file.write(bytes(STEP_BYTES))
    storage.look(LOOK_EVERY_S / 2, state)
    assert log.stat().st_blocks * 512 > blocks, "not yet"
    storage.look(LOOK_EVERY_S, state)
    assert log.stat().st_blocks * 512 <= blocks + 4096

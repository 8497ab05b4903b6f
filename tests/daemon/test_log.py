"""The daemon's log ends no search."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PRINTS = """
import sys, traceback
from gpusched.folder.files import write_unfailingly
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

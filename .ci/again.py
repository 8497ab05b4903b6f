"""Run once more, alone, the few tests that failed beside others; fail where one fails again.

    python .ci/again.py LOG ARTEFACT

Thousands of tests start real processes, three at a time, on machines that other jobs share. A test that fails there and
passes alone assumes something about speed: it is named in ARTEFACT and on the terminal, to be mended, and does not hold
up a change that has nothing to do with it. More than ``MOST`` failures are the change's own, and are not tried again.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

MOST = 5
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(log: Path, artefact: Path) -> int:
    # pytest's last line: "2 failed, 4570 passed, 1 error in 467.01s (0:07:47)". A run that was cut short passed none.
    ends = re.findall(r"^.*\b\d+ passed\b.* in [\d.]+s\b", log.read_text(), re.M)
    counted = sum(map(int, re.findall(r"(\d+) (?:failed|errors?)\b", ends[-1]))) if ends else 0
    tests = list(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []
    if not 0 < counted <= MOST or len(tests) > counted:
        return 1
    print(f"\nOnce more, alone: {', '.join(tests)}", flush=True)
    code = subprocess.call([sys.executable, "-m", "pytest", "-q", "-m", "not gpu", *tests])
    if code == 0:
        with artefact.open("a") as file:
            file.writelines(f"{test}\n" for test in tests)
        print(f"UNSTEADY (failed beside others, passed alone; to be mended): {', '.join(tests)}")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))

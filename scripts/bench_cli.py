"""How long do ``gpusched --help`` and ``status`` take against ``python -c "import rich"``? Whole processes, in turn.

Prints one JSON line a command: medians in seconds and the ratio, measured pair by pair in one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path


def seconds(command: list[str], folder: Path) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument(
        "--folder", type=Path, default=Path.cwd(), help="where there is a runs/ folder"
    )
    args = parser.parse_args()
    tool = str(Path(sys.executable).with_name("gpusched"))
    base = [sys.executable, "-c", "import rich"]
    for words in (["--help"], ["status"]):
        pairs = [
            (seconds([tool, *words], args.folder), seconds(base, args.folder))
            for _ in range(args.runs + 1)
        ][1:]
        ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratio = statistics.median(mine / other for mine, other in pairs)
        result = {"command": words[0], "seconds": round(ours, 4), "import_rich_s": round(theirs, 4)}
        print(json.dumps({**result, "ratio": round(ratio, 2)}))


if __name__ == "__main__":
    main()

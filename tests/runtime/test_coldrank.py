"""A rank of ``launch: cold`` becomes its script: Python, or a program of another kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpusched

COLDRANK = Path(gpusched.__file__).parent / "runtime" / "coldrank.py"


@pytest.mark.parametrize(
    ("name", "text", "mode"),
    [
        ("train.py", "import sys\nprint(*sys.argv[1:])\n", 0o644),
        ("train.py", "#!/bin/false\nimport sys\nprint(*sys.argv[1:])\n", 0o755),
        ("train", "import sys\nprint(*sys.argv[1:])\n", 0o644),
        ("train", "#!/bin/sh\necho $*\n", 0o755),
    ],
    ids=["python", "executable python", "python without .py", "shell"],
)
def test_it_runs_what_it_is_given(tmp_path: Path, name: str, text: str, mode: int) -> None:
    script = tmp_path / name
    script.write_text(text)
    script.chmod(mode)
    files = {key: str(tmp_path / key) for key in ("out", "err", "error")}
    ranks = [{**files, "env": {"GPUSCHED_TRIAL": "0"}, "cpus": None}]
    subprocess.run(
        [sys.executable, "-I", COLDRANK, script, "--lr", "0.1"],
        env={**os.environ, "LOCAL_RANK": "0", "GPUSCHED_RANKS": json.dumps(ranks)},
        check=True,
    )
    assert (tmp_path / "out").read_text() == "--lr 0.1\n", (tmp_path / "err").read_text()

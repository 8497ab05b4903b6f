"""Scripts in an interpreter of their own: what they import, how they end, and what is told on their command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.fakes import Bench, at_step, daemon

ROOT = Path(__file__).resolve().parents[2]

SLEEPER = """
import sys
from contextlib import suppress
import gpusched
from tests.counting import calls_of
trial = gpusched.init()
trial.track()
def train():
    with suppress(SystemExit):
        for _ in trial.steps():
            trial.report(accuracy=0.5)
calls = calls_of(train) / trial.step
print(int("torch" in sys.modules), int("numpy" in sys.modules), calls)
"""


def python(*words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run an interpreter that has nothing else of this one's environment."""
    environment = {"PATH": "/usr/bin", "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_script_that_only_reports_never_imports_torch(bench: Bench, tmp_path: Path) -> None:
    """In an interpreter of its own: yields, resumes, finishes; a report costs little."""
    script = tmp_path / "sleeper.py"
    script.write_text(SLEEPER)
    bench.prepare(max_steps=400)
    words = ("-m", "gpusched.runtime.rank", script)
    with daemon(bench, at_step(**{"yield": 200})):
        first = python(*words, **bench.environment(1))
        assert bench.last_word(1) == {"why": "yielded", "step": 200, "saved_step": 200}
        second = python(*words, **bench.environment(2))
    assert bench.last_word(2) == {"why": "finished", "step": 400, "saved_step": 400}
    assert [line["k"] for line in bench.reports()] == list(range(1, 401))
    has_torch, has_numpy, calls = zip(
        *(each.stdout.split() for each in (first, second)), strict=True
    )
    assert {*has_torch, *has_numpy} == {"0"}
    assert min(map(float, calls)) < 120, "function calls a report"


@pytest.mark.parametrize(
    ("ending", "word"),
    [
        ("", True),
        ("sys.exit()", True),
        ("sys.exit(3)", False),
        ("sys.exit('no data')", False),
        ("raise ValueError('bad')", False),
        ("import os; os.kill(os.getpid(), 9)", False),
    ],
)
def test_only_a_good_ending_is_called_finished(
    bench: Bench, tmp_path: Path, ending: str, word: bool
) -> None:
    script = tmp_path / "ends.py"
    script.write_text(f"import sys, gpusched\ngpusched.init().report(accuracy=1)\n{ending}\n")
    done = python("-m", "gpusched.runtime.rank", script, **bench.environment())
    assert (done.returncode == 0) == word
    expected = {"why": "finished", "step": 1, "saved_step": 1}
    assert bench.last_word() == (expected if word else None)
    if "kill" not in ending:  # in an interpreter that nobody watches the exit code has the word
        bench.paths.last_word(1).unlink(missing_ok=True)
        python(script, **bench.environment())
        assert bench.last_word() is None


def test_a_library_that_is_imported_after_the_trial_is_seeded_too(bench: Bench) -> None:
    script = (
        "from gpusched import trial\nimport random, numpy as np\n"
        "trial.hparams\nprint(np.random.rand(), random.random())"
    )
    drawn = set()
    for seed in (1, 1, 2):
        bench.seed = seed
        bench.prepare()
        drawn.add((seed, python("-c", script, **bench.environment()).stdout))
    assert len(drawn) == len({text for _, text in drawn}) == 2


def test_a_wrong_command_line_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text("import gpusched\ngpusched.init({'beta1': 0.9})\n")
    done = python(script, "--beta1", "x")
    assert done.returncode == 2
    assert done.stderr == "gpusched: --beta1 x: not of type float (default 0.9)\n"
    done = python(script, "--beta2", "0.95")
    assert done.returncode == 0, "it may be the script's own"
    assert "--beta2 is none of the defaults" in done.stderr

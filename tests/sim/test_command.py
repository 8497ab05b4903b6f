"""``gpusched simulate`` as it is typed."""

from __future__ import annotations

import pytest

from gpusched import policies
from gpusched.cli import main
from tests.rig import run_python

SHORT = ["--deadline", "4", "--seeds", "2", "--jobs", "1"]
FIRST_FAILS = """
import time

def f(hp, step):
    if hp["u"] > 0.5:  # which the first trial of seed 1 draws, and that of seed 0 does not
        time.sleep(600)
    raise RuntimeError("no such data")
"""


def simulate(capsys, *arguments):
    code = main(["simulate", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_table_compares_on_the_same_seeds(capsys, tmp_path, monkeypatch):
    """Two classes of one name shared a row."""
    monkeypatch.chdir(tmp_path)
    for name in ("asha", "hypersched"):
        kind = policies.REGISTRY[name][1]
        text = f"from gpusched.policies.{name} import {kind} as Mine\n"
        (tmp_path / f"{name}.py").write_text(text)
    code, out, err = simulate(capsys, "--policy", "asha.py:Mine,hypersched.py:Mine", *SHORT)
    assert code == 0
    head, asha, hypersched = out.splitlines()
    assert head.split()[:4] == ["policy", "seeds", "best", "score"]
    assert "difference" in head
    assert asha.startswith("asha.py:Mine ")
    assert hypersched.count("±") >= 2
    assert "95% interval" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--polcy", "asha"], "--polcy; did you mean --policy?"),
        (["--nothing-like-it"], "unknown option --nothing-like-it\n"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--deadline", "soon"], "--deadline: 'soon' is not a duration"),
        (["--delay", "fast"], "--delay: 'fast' is not a delay"),
        (["--delay=-1"], "must be 0 or more"),
        (["--set", "eta"], "write KEY=VALUE"),
        (["--seeds", "many"], "--seeds: invalid int value: 'many'"),
    ],
)
def test_bad_input(capsys, arguments, message):
    code, out, err = simulate(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_run_that_fails_ends_the_others(tmp_path):
    """The command waited for them at its end, after a Ctrl-C as well."""
    file = tmp_path / "own.py"
    file.write_text(FIRST_FAILS)
    words = ["simulate", f"{file}:f", "--seeds", "2", "--jobs", "2"]
    done = run_python("-m", "gpusched", *words)
    assert done.returncode == 2, done.stderr
    assert "RuntimeError: no such data" in done.stderr


def test_no_model_at_all_is_exit_code_3(capsys):
    code, out, _ = simulate(capsys, "--delay", "100", *SHORT)
    assert code == 3
    assert out

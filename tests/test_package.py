"""What a script imports: the names of ``gpusched`` itself, without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gpusched
from gpusched.cli import main

ANNOTATED = """
import sys
import gpusched
from gpusched import Trial

def train(trial: gpusched.Trial, again: Trial) -> None: ...

assert train.__annotations__["trial"] is Trial
assert Trial.__module__ == "gpusched.worker.trial"
print(sorted({"torch", "numpy", "yaml"} & set(sys.modules)))
"""


def test_a_script_can_annotate_its_trial_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ANNOTATED], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_no_other_name_appears() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trail'"):
        gpusched.trail  # noqa: B018


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_told(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == 0
    assert capsys.readouterr().out == f"gpusched {gpusched.__version__}\n"

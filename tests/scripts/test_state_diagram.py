"""docs/states.md is the transition table."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gpusched.core.trial import TRANSITIONS, TrialState

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "state_diagram.py"


@pytest.fixture
def diagram() -> ModuleType:
    spec = importlib.util.spec_from_file_location("state_diagram", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_page_that_is_not_is_said_so(
    diagram: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagram, "PAGE", tmp_path / "states.md")
    monkeypatch.setattr(sys, "argv", ["state_diagram.py", "--check"])
    assert diagram.main() == 1
    monkeypatch.setattr(sys, "argv", ["state_diagram.py"])
    assert diagram.main() == 0
    monkeypatch.setattr(sys, "argv", ["state_diagram.py", "--check"])
    assert diagram.main() == 0


def test_the_page_has_every_transition(diagram: ModuleType) -> None:
    page = diagram.page()
    for origin, ways in TRANSITIONS.items():
        for to in TrialState:
            assert (f"    {origin.value} --> {to.value}:" in page) == (to in ways)


def test_a_transition_without_a_cause_is_an_error(
    diagram: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = dict(list(diagram.CAUSES.items())[1:])
    monkeypatch.setattr(diagram, "CAUSES", some)
    with pytest.raises(ValueError, match="pending -> starting"):
        diagram.page()

"""The arithmetic of ``scripts/seamless.py``, by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])


def test_seams_are_held_against_the_noise_between_seeds() -> None:
    from seamless import Curve, seams

    plain = [Curve({"loss": [3.0, 2.0, 1.0]}, []), Curve({"loss": [3.2, 2.2, 1.4]}, [])]
    resized = [Curve({"loss": [3.0, 2.0, 1.1]}, [2]), Curve({"loss": [3.2, 2.2, 1.3]}, [2])]
    (seam,) = seams(plain, resized, "loss")
    assert seam == {"after_step": 2, "apart": 0.0, "noise_between_seeds": 0.28284}

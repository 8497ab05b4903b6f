"""The arithmetic of ``scripts/bench_gain.py`` and ``scripts/seamless.py``, by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])


def test_predicted_and_measured_gain_of_a_growth() -> None:
    """10 s from decision to decision, To = 1 s, Ta = 0.5 s, s(2) = 1.8: 9 * 1.8 / 0.5 - 20 = 12.4; 31 made: 11 more."""
    from bench_gain import Stretch

    one = Stretch(100.0, 1, 2, 0.5, 1.0, 1.0, 1.8, 0.5, ends_at=110.0, steps=31)
    assert one.gains() == pytest.approx((12.4, 11.0))


def test_seams_are_held_against_the_noise_between_seeds() -> None:
    from seamless import Curve, seams

    plain = [Curve({"loss": [3.0, 2.0, 1.0]}, []), Curve({"loss": [3.2, 2.2, 1.4]}, [])]
    resized = [Curve({"loss": [3.0, 2.0, 1.1]}, [2]), Curve({"loss": [3.2, 2.2, 1.3]}, [2])]
    (seam,) = seams(plain, resized, "loss")
    assert seam == {"after_step": 2, "apart": 0.0, "noise_between_seeds": 0.28284}

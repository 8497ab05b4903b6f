"""The panel of devices: a GPU's figures, its last minute, and why it is not used."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpusched.dashboard import panels
from gpusched.dashboard.model import DeviceView

GIB = 1 << 30
BUSY: dict[str, Any] = {
    "id": "GPU-8932f937-0000-1111",
    "label": "GPU 0 NVIDIA H100 80GB HBM3",
    "state": "held",
    "trial": 7,
    "utilisation": 0.93,
    "memory_used_bytes": 61 * GIB,
    "memory_total_bytes": 80 * GIB,
    "temperature_c": 71.0,
    "power_w": 612.0,
    "history": tuple(n / 29 for n in range(30)),
}
HELD_BY = "not released after 60 s: held by pid 4242 (alice: python hers.py, 3.00 GiB)"


def drawn(width: int, **changes: Any) -> str:
    view: Any = SimpleNamespace(devices=(DeviceView(**{**BUSY, **changes}),), trials=())
    (line,) = panels.devices(view, width, 5)
    return str(line.plain)


def test_figures_and_the_last_minute() -> None:
    line = drawn(160, notes=("slowed down by heat",))
    told = ["GPU 0 ", "trial 7", "93%", "▁▁▂", "▇█", "61.0/80 GiB", "71°C", "612 W"]
    places = [line.index(text) for text in [*told, "slowed down by heat"]]
    assert places == sorted(places)


def test_at_80_columns_the_figures_of_now_are_all_there() -> None:
    line = drawn(80)
    assert len(line) <= 80
    assert all(text in line for text in ("GPU 0", "trial 7", "93%", "61.0/80 GiB", "71°C", "612 W"))


@pytest.mark.parametrize(("width", "figures"), [(80, False), (160, True)])
def test_why_it_is_not_used_comes_before_its_figures_where_both_do_not_fit(
    width: int, figures: bool
) -> None:
    line = drawn(width, state="quarantined", trial=None, reason=HELD_BY)
    assert "quarantined" in line
    assert HELD_BY in line
    assert ("612 W" in line) == figures
    if not figures:
        assert "held by pid 4242 (alice:" in line[:80]


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("GPU 2+3 NVIDIA H100", "GPU 2+3"),
        ("GPU 0/1 NVIDIA H100 MIG 1g.10gb", "GPU 0/1"),
        ("core 3", "GPU-8932f937"),
        ("", "GPU-8932f937"),
    ],
)
def test_a_gpu_goes_by_its_number(label: str, name: str) -> None:
    assert drawn(80, label=label).startswith(f"{name} ")


def test_what_could_not_be_read_is_a_gap() -> None:
    assert "▁ █" in drawn(120, history=(0.0, None, 1.0))

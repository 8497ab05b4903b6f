"""The panel of devices: a GPU's figures, its last minute, and why it is not used."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpusched.dashboard import devices, panels
from gpusched.dashboard.model import DecisionRow, DeviceRow

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
    view: Any = SimpleNamespace(devices=(DeviceRow(**{**BUSY, **changes}),), trials=())
    (line,) = devices.lines(view, width)
    return str(line.plain)


def test_figures_and_the_last_minute() -> None:
    line = drawn(160, notes=("slowed down by heat",))
    told = ["GPU 0 ", "trial 7", "93%", "▁▂▂", "▇█", "61.0/80 GiB", "71°C", "612 W"]
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
        ("GPU 0 #2 NVIDIA H100 80GB HBM3", "GPU 0 #2"),
        ("core 3", "GPU-8932f937"),
        ("", "GPU-8932f937"),
    ],
)
def test_a_gpu_goes_by_its_number(label: str, name: str) -> None:
    assert drawn(80, label=label).startswith(f"{name} ")


def test_what_could_not_be_read_is_a_gap() -> None:
    assert "▁ █" in drawn(120, history=(0.0, None, 1.0))


def test_its_name_is_said_once_and_a_strangers_gpu_is_busy() -> None:
    line = drawn(62, state="quarantined", trial=None, reason="GPU 0: held by pid 9 (bob: sleep)")
    assert line.startswith("GPU 0    busy          held by pid 9 (bob: sleep)")
    line = drawn(62, state="quarantined", trial=None, reason="GPU 0: the GPU is lost")
    assert line.startswith("GPU 0    quarantined   the GPU is lost")
    share = {"label": "GPU 0 #2", "state": "quarantined", "trial": None}
    line = drawn(62, **share, reason="GPU 0: held by pid 9 (bob: sleep)")
    assert line.startswith("GPU 0 #2    busy          held by pid 9 (bob: sleep)")


def test_in_a_narrow_panel_the_last_minute_takes_the_place_of_the_bar() -> None:
    line = drawn(62)
    assert "▁▂" in line
    assert "━" not in line
    assert "━" in drawn(62, history=())


def test_what_slows_it_is_seen_before_its_power() -> None:
    line = drawn(62, notes=("slowed by heat",))
    assert len(line) <= 62
    assert line.endswith("71°C  slowed by heat")


def test_decisions_name_a_gpu_as_the_panel_does() -> None:
    device = DeviceRow(**{**BUSY, "state": "quarantined"})
    text = f"{device.id} is quarantined: GPU 0: the GPU is lost"
    decision = DecisionRow(at=61.0, trial=None, text=text)
    view: Any = SimpleNamespace(devices=(device,), decisions=(decision,))
    (line,) = panels.decisions(view, (), 80)
    assert line.plain == "1:01  GPU 0 is quarantined: the GPU is lost"
    share = DeviceRow(**{**BUSY, "id": f"{device.id}#2", "label": "GPU 0 #2"})
    text = text.replace(device.id, share.id)
    view.devices, view.decisions = (share,), (DecisionRow(at=61.0, trial=None, text=text),)
    (line,) = panels.decisions(view, (), 80)
    assert line.plain == "1:01  GPU 0 #2 is quarantined: the GPU is lost"


def test_the_atoms_of_a_cluster_have_a_row_for_each_node() -> None:
    held = [
        {"id": f"node{n}/cpu:{slot}", "state": "held", "trial": n}
        for n in range(2)
        for slot in range(3)
    ]
    away = {"id": "far/cpu:0", "state": "quarantined", "reason": "node far was lost"}
    view: Any = SimpleNamespace(
        devices=tuple(DeviceRow(**device) for device in (*held, away)),
        trials=(),
        atoms=SimpleNamespace(held=6, free=0, draining=0, quarantined=1, total=7),
    )
    rows = [line.plain.split() for line in devices.strip(view, 60, rows=5)]
    assert [row[0] for row in rows] == ["atoms", "node1", "far", "far/cpu:0"]
    assert rows[0][1] == "node0"
    assert "".join(rows[1][1:]).count("1") == 1, "one block for a trial"
    assert all(line.cell_len <= 60 for line in devices.strip(view, 60, rows=5)[:3])
    crowded = " ".join(line.plain for line in devices.strip(view, 60, rows=2))
    assert "node1" not in crowded, "with less room they are counted as before"

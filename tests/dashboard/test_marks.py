"""Small drawings, as wide as they should be and readable without colours; words for idle atoms."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from gpusched.dashboard import panels
from gpusched.dashboard.marks import chart
from gpusched.dashboard.model import (
    AtomCounts,
    DeviceRow,
    IdleRow,
    Standing,
    TrialRow,
    idle_atoms,
    idle_shares,
)

points = st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=60)


@given(points, st.integers(0, 80), st.integers(0, 12))
@example([0.0, 5e-324], 40, 6)
def test_any_curve_can_be_drawn(curve: list[float | None], width: int, height: int) -> None:
    lines = chart([(tuple(enumerate(curve)), "")], width, height)
    assert len(lines) <= height
    assert all(line.cell_len <= max(width, 32) for line in lines)


def test_a_chart_rises_from_the_lower_left_to_the_upper_right() -> None:
    lines = [line.plain for line in chart([(tuple((x, x) for x in range(40)), "")], 20, 6)]
    assert lines[0].startswith("39.000 │ ")
    assert lines[0][-1] not in " ⠀"
    assert lines[-2].startswith(" 0.000 │")
    assert lines[-2][8] != " "
    assert lines[-2][-1] == " "
    assert lines[-1].split() == ["0", "39"]


def test_the_last_curve_is_on_top_and_one_that_runs_away_hides_nothing() -> None:
    quiet = (tuple((x, x % 7 / 7) for x in range(40)), "dim")
    loud = (((0, 0.5), (20, 1e30), (39, 0.5)), "bold")
    lines = chart([quiet, loud], 30, 6)
    assert lines[0].plain.startswith("0.8571 │")
    assert any(span.style == "bold" for line in lines for span in line.spans)


def test_a_trial_that_has_diverged_does_not_press_the_others_together() -> None:
    curves = [tuple(60.0 - n for n in range(20)), (1e6,) * 20]
    rows = [TrialRow(id=n, state="running", step=20, curve=curves[n == 3]) for n in range(4)]
    shown = panels.curves(Standing(experiment="x", trials=tuple(rows)), None, 60, 10).plain
    assert shown.splitlines()[1].startswith("60.000 │")


def test_a_whole_number_that_is_reported_keeps_its_digits() -> None:
    trial = TrialRow(id=0, state="running", metrics={"updates": 1234567, "loss": 0.5})
    shown = panels.detail(Standing(experiment="x"), trial, ()).plain.splitlines()
    assert shown[1:3] == ["updates 1234567", "loss 0.5000"]


# ---------------------------------------------------------------- words for idle atoms


def test_atoms_are_named_as_people_know_them_and_many_are_counted() -> None:
    gpus = tuple(DeviceRow(id=f"GPU-{n}", label=f"GPU {n}") for n in range(6))
    rows = (
        IdleRow(
            devices=("GPU-1",), idle_s=12.0, reason="quarantined", detail="GPU 1: held by pid 311"
        ),
        IdleRow(devices=tuple(gpu.id for gpu in gpus), idle_s=75.0, reason="a trial is starting"),
    )
    assert list(idle_atoms(Standing(experiment="x", devices=gpus, idle=rows))) == [
        "GPU 1 idle for 12 s: quarantined (held by pid 311)",
        "GPU 0, GPU 1, GPU 2, GPU 3 and 2 more idle for 1 min 15 s: a trial is starting",
    ]


def test_the_time_of_all_atoms_is_told_by_reason_the_dearest_first() -> None:
    view = Standing(
        experiment="x",
        atoms=AtomCounts(total=8),
        now_s=100.0,
        idle_atom_s={"a trial is starting": 40.0, "no step fits": 160.0, "rare": 1.0},
    )
    assert list(idle_shares(view)) == [
        "25% of the time of 8 atoms was idle, 3 min 21 s in all:",
        "   20%  no step fits",
        "    5%  a trial is starting",
    ]
    assert list(idle_shares(Standing(experiment="x", atoms=AtomCounts(total=8), now_s=100.0))) == []

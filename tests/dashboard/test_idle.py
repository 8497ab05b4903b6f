"""Words for idle atoms."""

from __future__ import annotations

from gpusched.dashboard import idle
from gpusched.dashboard.model import AtomCounts, DeviceRow, IdleRow, Standing


def test_atoms_are_named_as_people_know_them_and_many_are_counted() -> None:
    gpus = tuple(DeviceRow(id=f"GPU-{n}", label=f"GPU {n} H100") for n in range(6))
    rows = (
        IdleRow(
            devices=("GPU-1",), idle_s=12.0, reason="quarantined", detail="GPU 1: held by pid 311"
        ),
        IdleRow(devices=tuple(gpu.id for gpu in gpus), idle_s=75.0, reason="a trial is starting"),
    )
    assert list(idle.now(Standing(experiment="x", devices=gpus, idle=rows))) == [
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
    assert list(idle.spent(view)) == [
        "25% of the time of 8 atoms was idle, 3 min 21 s in all:",
        "   20%  no step fits",
        "    5%  a trial is starting",
    ]
    assert list(idle.spent(Standing(experiment="x", atoms=AtomCounts(total=8), now_s=100.0))) == []

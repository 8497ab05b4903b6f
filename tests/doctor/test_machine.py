"""``doctor`` and ``gpusched gpus``: what they find, on scripted drivers and on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pynvml
import pytest

from gpusched.cli import main
from gpusched.devices.cuda import gpu_states
from gpusched.devices.nvml import Machine
from gpusched.doctor import machine as doctor
from gpusched.doctor.machine import Check
from tests.devices.box import Box, gpu
from tests.devices.fake_nvml import GIB, forget

MakeBox = Callable[..., Box]


def run(box: Box) -> dict[str, Check]:
    checks = doctor.doctor_checks(box.home)
    for check in checks:
        assert check.state in ("ok", "warn", "fail")
        assert check.state == "ok" or check.advice, check
        msgspec.json.encode(check)
    return {check.name: check for check in checks}


def test_a_healthy_box(make_box: MakeBox) -> None:
    box = make_box(gpu(0), gpu(1))
    found = run(box)
    assert found["driver"].detail == "580.82.07, for CUDA up to 13.0"
    assert found["NVML"].detail == "2 GPUs: NVIDIA H100 80GB HBM3, NVIDIA H100 80GB HBM3"
    assert found["GPU 0 NVIDIA H100 80GB HBM3"].state == "ok"


def test_a_driver_too_old_for_torch() -> None:
    machine = Machine("550.54", 12040)
    assert doctor.driver_check(machine, ("2.13", "13.0")).state == "fail"
    assert doctor.driver_check(machine, ("2.13", "12.8")).state == "ok"
    assert doctor.driver_check(machine, None).state == "ok"


def test_what_is_wrong_with_gpus(make_box: MakeBox) -> None:
    box = make_box(
        gpu(0, throttle=pynvml.nvmlClocksEventReasonHwThermalSlowdown),
        gpu(1, mig=True),
        gpu(2, recovery=1),
        gpu(3),
        gpu(4, lost_from=0.0),
    )
    box.driver.start(box.gpus[3], 99, GIB, user="alice", command="python hers.py", ours=False)
    found = run(box)
    assert found["NVML"].detail.startswith("GPU 4 is left out: NVML: GPU is lost")
    by_gpu = {name[:5]: check for name, check in found.items() if name.startswith("GPU ")}
    assert (by_gpu["GPU 0"].state, by_gpu["GPU 0"].detail) == ("warn", "slowed by heat")
    assert "MIG has cut it into slices" in by_gpu["GPU 1"].detail
    assert by_gpu["GPU 1"].state == by_gpu["GPU 2"].state == "fail"
    assert "alice: python hers.py" in by_gpu["GPU 3"].detail
    assert by_gpu["GPU 3"].state == "warn"


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ({"init_blocks_until": 500.0}, "did not answer"),
        ({"init_code": pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH}, "was updated"),
    ],
)
def test_a_driver_in_trouble_is_a_finding(
    make_box: MakeBox, trouble: dict[str, Any], told: str
) -> None:
    box = make_box(gpu(0))
    vars(box.driver).update(trouble)
    found = run(box)
    assert told in found["driver"].detail
    assert found["driver"].state == "fail"


@pytest.mark.parametrize(
    ("free", "shm", "disk"),
    [
        (10 << 20, "fail", "fail"),
        (500 << 20, "warn", "fail"),
        (5 << 30, "ok", "warn"),
        (99 << 30, "ok", "ok"),
    ],
)
def test_space(
    monkeypatch: pytest.MonkeyPatch, free: int, shm: str, disk: str, tmp_path: Path
) -> None:
    space = SimpleNamespace(total=100 << 30, free=free)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: space)
    assert doctor.shm_check().state == shm
    assert doctor.disk_check(tmp_path / "runs" / "not" / "there").state == disk


def test_a_missing_shm_is_a_finding(tmp_path: Path) -> None:
    assert doctor.shm_check(tmp_path / "none").state == "fail"


def test_a_colleagues_gpu_is_nothing_to_mend_in_a_container_either(make_box: MakeBox) -> None:
    box = make_box(gpu(0), gpu(1), pids="host")
    box.driver.start(box.gpus[0], 99, GIB, ours=False)
    found = run(box)["GPU 0 NVIDIA H100 80GB HBM3"]
    assert (found.state, found.advice) == ("warn", "wait, or ask its owner")


# ------------------------------------------------------------ gpusched gpus


def look() -> list[Any]:
    states, _ = gpu_states()
    return states


def test_all_gpus_at_a_glance(make_box: MakeBox, capsys: pytest.CaptureFixture[str]) -> None:
    box = make_box(gpu(0), gpu(1))
    devices = box.devices("cuda:0", experiment=box.home / "runs/digits")
    devices.open()
    box.driver.start(box.gpus[0], 11, GIB)
    box.driver.start(box.gpus[1], 99, GIB, user="alice", command="python hers.py", ours=False)
    box.clock.advance(2)
    ours, hers = look()
    assert "runs/digits (pid" in ours.leased_by
    assert ours.holders == ("pid 11 (me: python train.py, 1.00 GiB)",)
    assert hers.leased_by == ""
    assert hers.busy == "held by pid 99 (alice: python hers.py, 1.00 GiB)"
    assert main(["gpus"]) == 0
    assert hers.busy in " ".join(capsys.readouterr().out.split())
    told = json.loads(json.dumps(ours.to_json()))
    assert told["memory_used_bytes"] == GIB + (4 << 20)
    assert "runs/digits" in look()[0].leased_by, "looking takes no lease away"


def test_without_a_driver_it_says_so(make_box: MakeBox, capsys: pytest.CaptureFixture[str]) -> None:
    box = make_box(gpu(0))
    box.driver.init_code = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    assert run(box)["driver"].state == "warn", "there are CPU slots"
    forget()
    assert main(["gpus"]) == 4
    assert "no NVIDIA driver here" in capsys.readouterr().err


def test_what_a_cpu_build_of_torch_means_depends_on_the_box() -> None:
    assert doctor.torch_check(("2.13.0+cpu", ""), has_gpus=True).state == "fail"
    assert doctor.torch_check(("2.13.0+cpu", ""), has_gpus=False).state == "ok"
    assert doctor.torch_check(("2.13.0", "13.0"), has_gpus=True).state == "ok"
    assert doctor.torch_check(None, has_gpus=False).state == "fail"
    assert doctor.torch_check(("2.7.1+cu128", "12.8"), has_gpus=True).state == "fail"

"""On a real GPU (``make test-gpu``): a search finds it by itself and leaves nothing on it; nccl takes a first step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpusched.devices.choose import installed_torch_cuda
from tests.e2e.sandbox import Sandbox
from tests.rig import run_python
from tests.scripts.test_gpu_check import ENDINGS

FORK = """
import importlib, os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
from gpusched.runtime import warm
for name in (*warm.NEEDED, *warm.HEAVY):
    importlib.import_module(name)
links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
opened = [os.readlink(link) for link in links if os.path.islink(link)]
if any("/dev/nvidia" in path for path in opened) or len(os.listdir("/proc/self/task")) > 1:
    sys.exit(f"importing opened {opened}, {os.listdir('/proc/self/task')}")
child = os.fork()
if child == 0:
    import torch
    assert torch.cuda.is_available()
    os._exit(int(torch.ones(7, device="cuda").sum().item()))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""Program that imports all that the warm server does, then forks."""

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _a_torch_for_gpus() -> None:
    if not (installed_torch_cuda() or ("", ""))[1]:
        pytest.skip("torch is built for CPUs only")


def test_digits_uses_gpus_by_itself_and_leaves_nothing_on_them(sandbox: Sandbox) -> None:
    result = sandbox.gpusched(
        "run", ROOT / "recipes" / "digits.yaml", "--deadline", "45s", timeout_s=180
    )
    assert result.code == 0, result.text + sandbox.log()
    view = sandbox.view()
    assert all(device["id"].startswith("GPU-") for device in view["devices"])
    assert view["atoms"]["held"] == view["atoms"]["draining"] == 0
    free = {device["id"] for device in view["devices"] if device["state"] == "free"}
    assert free
    for device in view["devices"]:  # on a box that is shared with others some may be theirs
        assert device["id"] in free or "held by pid" in device["reason"], device
    assert view["best"]["metric"] > 0.5
    for line in sandbox.gpusched("gpus", "--json").out.splitlines():
        row = json.loads(line)
        assert not row["leased_by"] or row["uuid"] not in free
        busy = row["busy"] and row["uuid"] in free
        assert not busy, "the release was confirmed, and nobody has come since"


def test_what_the_warm_server_imports_leaves_the_gpu_to_its_forks() -> None:
    done = run_python("-c", FORK, folder=ROOT)
    assert done.returncode == 7, done.stdout + done.stderr


def check(*words: str) -> list[dict[str, Any]]:
    done = run_python(ROOT / "scripts" / "gpu_check.py", *words)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_nccl_starts_and_makes_its_first_step_warm_and_cold() -> None:
    machine, *lines, _ = check("--only", "starts", "groups")
    starts = [line for line in lines if line["part"] == "starts"]
    groups = [line for line in lines if line["part"] == "groups"]
    assert [line["launch"] for line in starts] == ["warm", "cold"]
    assert len(groups) == machine["free"].bit_length() - 1
    for line in [*starts, *groups]:
        for name in ("context_s", "group_s", "step_s"):
            assert 0 < line[name]["median"] < 60


def test_every_ending_gives_the_gpu_back() -> None:
    lines = check("--only", "endings", "resize", "--rounds", "3")
    endings = {line["how"]: line for line in lines if line["part"] == "endings"}
    assert {how: line["outcomes"] for how, line in endings.items()} == ENDINGS
    assert all(line["then_device_free_s"]["max"] < 60 for line in endings.values())

"""Across the last boundary: a library in C with the types of NVIDIA's header, loaded and called by ``nvidia-ml-py``.

The fake driver of the other tests is Python and takes whatever ctypes hands it. Here a compiler has laid out the
structures and the arguments, so a wrong one shows.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.rig import run_python

HERE = Path(__file__).parent
STUB = HERE / "nvml_stub.c"
ROOT = Path(__file__).parents[2]

LOOK = """
import dataclasses, json
from gpusched.devices import helper, nvml
from gpusched.devices.release import Processes
driver = helper.Driver(helper.World(), Processes())
found = driver.machine()
seen = [helper.answer(Processes(), gpu, 0.0) for gpu in found.gpus]
said = {
    "driver": found.version,
    "cuda": found.cuda,
    "gpus": [dataclasses.asdict(g) for g in found.gpus],
    "seen": [dataclasses.asdict(one) for one in seen],
}
driver.close()
try:
    nvml.start()
    nvml.read_gpu(7)
except nvml.NvmlError as error:
    said["error"] = [error.code, str(error)]
print(json.dumps(said, default=sorted))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with ``libnvidia-ml.so.1``."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("driver")
    name = "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{name}"]
    subprocess.run([compiler, *flags, "-o", folder / name, STUB], check=True)
    return folder


def python(library: Path, *words: str, **more: str) -> str:
    path = {"LD_LIBRARY_PATH": str(library), "PYTHONPATH": str(ROOT)}
    done = run_python(*words, **path, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def said(library: Path) -> Any:
    return json.loads(python(library, "-c", LOOK))


def test_facts(said: Any) -> None:
    assert (said["driver"], said["cuda"]) == ("580.82.07", 13000)
    first, second = said["gpus"]
    assert first["uuid"] == "GPU-11111111-2222-3333-4444-555555555555"
    assert (first["name"], first["pci_bus_id"]) == ("NVIDIA H100 80GB HBM3", "00000000:18:00.0")
    assert first["memory_total_bytes"] == second["memory_total_bytes"] == 80 << 30
    assert (first["cpus"], second["cpus"]) == ([0, 1, 2, 3, 63], [4, 5, 6, 7])
    assert not first["mig"]
    assert not second["mig"]
    assert said["error"] == [2, "NVML: Invalid Argument (nvmlDeviceGetHandleByIndex)"]


def test_usage_of_a_card_that_says_all(said: Any) -> None:
    seen = said["seen"][0]
    assert (seen["memory_bytes"], seen["holders"], seen["error"]) == (4 << 20, [], "")


def test_usage_of_a_geforce(said: Any) -> None:
    """No memory figure that we go by, a process whose memory is not said, one that computes and draws."""
    seen = said["seen"][1]
    assert seen["memory_bytes"] is None
    mine, init = seen["holders"]
    assert mine["pid"] > 1
    assert (mine["memory_bytes"], mine["draws"]) == (None, False)
    assert (init["pid"], init["memory_bytes"], init["draws"]) == (1, 1 << 30, True)
    assert seen["error"] == ""


def test_vitals(said: Any) -> None:
    full, geforce = (one["vitals"] for one in said["seen"])
    both = {"temperature_c": 61.0, "power_w": 123.456, "throttle": 0x40}
    assert {key: full[key] for key in both} == {key: geforce[key] for key in both} == both
    assert (full["utilisation"], geforce["utilisation"]) == (0.37, 0.38)
    assert (full["recovery"], geforce["recovery"]) == (4, 0), "drain and reset"


PARTS = """
import json, sys
sys.path[:0] = ["scripts"]
from gpu_parts import driver
driver.GONE_WITHIN_S = 0.5
driver._CONTEXT = driver._FILL = "import sys; print('ready', flush=True); sys.stdin.read()"
device = "GPU-11111111-2222-3333-4444-555555555555"
lines = [*driver.nvml(device=device), *driver.kill(device=device, rounds=1)]
driver._FAULTS = {"none": "raise SystemExit('torch.OutOfMemoryError: CUDA out of memory.')"}
print(json.dumps([*lines, *driver.faults(device=device)]))
"""


@pytest.mark.slow
def test_the_parts_of_gpu_check_that_ask_the_driver(library: Path) -> None:
    """The GPU tests are to run at once on the day there is a GPU."""
    told = json.loads(python(library, "-c", PARTS))
    facts, warm, context, killed, fault = told
    answers = {call["call"]: call for call in facts["calls"]}
    assert "used" in answers["nvmlDeviceGetMemoryInfo"]["answer"]
    assert warm["warm_imports"].endswith("[]"), "no file of the driver is open"
    assert context["listed"] == []
    assert killed["idle_bytes"] == killed["full_bytes"] == 4 << 20
    assert {"waitpid_s", "memory_s", "listed_s"} <= set(killed)
    assert (fault["memory_fault"], fault["code"], fault["taken_for"]) == ("gpu", 1, "failed")

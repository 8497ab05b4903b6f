"""Across the last boundary: a library in C with the types of NVIDIA's header, loaded and called by ``nvidia-ml-py``.

The fake driver of the other tests is Python and takes whatever ctypes hands it. Here a compiler has laid out the
structures and the arguments, so a wrong one shows.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
STUBS = {"libnvidia-ml.so.1": HERE / "nvml_stub.c", "libcuda.so.1": HERE / "cuda_stub.c"}
ROOT = Path(__file__).parents[3]

LOOK = """
import dataclasses, json, time
from gpusched.devices import helper
from gpusched.devices.holders import Processes
from gpusched.devices.nvml import NvmlError
world = helper.ThisMachine()
helpers = [world.start(Processes()) for _ in range(2)]
def ask(place, question):
    return helper.ask_once(world, helpers[place], question, 30.0)
driver = ask(0, helper.WhichDriver())
gpus = [ask(place, helper.Facts(place)).gpu for place in range(driver.gpus)]
pairs = ("nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor")
calls = [(name, tuple(order), more) for name, more in zip(pairs, ((0,), ())) for order in (gpus, gpus[::-1])]
until, xids = time.monotonic() + 30, {}
while not xids and time.monotonic() < until:
    seen = [ask(place, helper.Look(gpu, (gpu,), 0.0)) for place, gpu in enumerate(gpus)]
    xids = {gpu.uuid: one.xids for gpu, one in zip(gpus, seen) if one.xids}
full = ask(0, helper.Look(gpus[0], gpus[:1], 0.0, {gpus[0].uuid: 1 << 20}))
said = {
    "driver": driver.version,
    "cuda": driver.cuda,
    "gpus": [dataclasses.asdict(g) for g in gpus],
    "usage": [dataclasses.asdict(one.usage[0]) for one in seen],
    "vitals": [dataclasses.asdict(one.vitals) for one in seen],
    "deaf": [one.deaf for one in seen],
    "xids": xids,
    "pairs": ask(0, helper.Numbers(tuple(calls))).numbers,
    "partial": dataclasses.asdict(full.usage[0]),
}
try:
    ask(0, helper.Facts(7))
except NvmlError as error:
    said["error"] = [error.code, str(error)]
for one in helpers:
    one.kill()
print(json.dumps(said, default=sorted))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with ``libnvidia-ml.so.1``; in a folder below it ``libcuda.so.1``, which torch must not find."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "cuda").mkdir()
    for name, stub in STUBS.items():
        target = folder / name if "nvidia" in name else folder / "cuda" / name
        flags = ["-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{name}"]
        subprocess.run([compiler, *flags, "-o", target, stub], check=True)
    return folder


def python(library: Path, *words: str, **more: str) -> str:
    path = {"LD_LIBRARY_PATH": str(library), "PYTHONPATH": str(ROOT)}
    environ = {**os.environ, **path, **more}
    done = subprocess.run(
        [sys.executable, *words], env=environ, capture_output=True, text=True, timeout=120
    )
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
    assert (first["minor"], second["minor"]) == (0, 1)
    assert first["memory_total_bytes"] == second["memory_total_bytes"] == 80 << 30
    assert (first["cpus"], second["cpus"]) == ([0, 1, 2, 3, 63], [4, 5, 6, 7])
    assert not first["mig"]
    assert not second["mig"]
    assert said["error"] == [2, "NVML: Invalid Argument (nvmlDeviceGetHandleByIndex)"]


def test_usage_of_a_card_that_says_all(said: Any) -> None:
    usage = said["usage"][0]
    assert (usage["memory_bytes"], usage["processes"], usage["error"]) == (4 << 20, [], "")
    above = said["partial"]
    assert (above["memory_bytes"], above["processes"], above["is_partial"]) == (4 << 20, None, True)


def test_usage_of_a_geforce(said: Any) -> None:
    """No memory figure that we go by, a process whose memory is not said, one that computes and draws."""
    usage = said["usage"][1]
    assert usage["memory_bytes"] is None
    mine, init = usage["processes"]
    assert mine["pid"] > 1
    assert (mine["memory_bytes"], mine["draws"]) == (None, False)
    assert init == {"pid": 1, "memory_bytes": 1 << 30, "computes": True, "draws": True}
    assert usage["error"] == ""


def test_vitals(said: Any) -> None:
    full, geforce = said["vitals"]
    both = {"temperature_c": 61.0, "power_w": 123.456, "throttle": 0x40, "prohibited": False}
    assert {key: full[key] for key in both} == {key: geforce[key] for key in both} == both
    assert (full["utilisation"], geforce["utilisation"]) == (0.37, 0.38)
    assert full["recovery"] == 4, "drain and reset"
    assert full["ecc_uncorrected"] == (1 << 40) + 10, "uncorrected, since the driver was loaded"
    assert (full["rows_pending"], full["rows_failed"]) == (True, False)
    assert geforce["recovery"] is geforce["ecc_uncorrected"] is None
    assert full["error"] == geforce["error"] == ""


def test_two_cards(said: Any) -> None:
    assert said["pairs"] == [0, 0, 50, 50], "they reach each other, across sockets"


def test_an_xid_is_heard_of_the_card_it_is_of(said: Any) -> None:
    assert said["xids"] == {"GPU-66666666-7777-8888-9999-000000000000": [79]}
    assert said["deaf"] == ["", ""]


@pytest.mark.slow
def test_torch_finds_the_gpus_that_we_name(library: Path) -> None:
    """torch counts GPUs through NVML before it touches CUDA: with our variables it finds as many as we gave."""
    first = "GPU-11111111-2222-3333-4444-555555555555"
    second = "GPU-66666666-7777-8888-9999-000000000000"
    ways = {second: 1, f"{second},{first}": 2, "1": 1, "": 0}
    count = (
        "import os, sys, torch\n"
        "for os.environ['CUDA_VISIBLE_DEVICES'] in sys.argv[1:]: print(torch.cuda._device_count_nvml())"
    )
    out = python(library, "-c", count, *ways, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert [int(line) for line in out.split()] == list(ways.values())


@pytest.mark.slow
def test_gpusched_gpus_shows_both(library: Path, tmp_path: Path) -> None:
    out = python(library, "-m", "gpusched", "gpus", "--json", XDG_STATE_HOME=str(tmp_path))
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["name"] for row in rows] == ["NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090"]
    assert "reset once the GPU is empty" in rows[0]["busy"]
    assert "pid 1 " in rows[1]["busy"]


PARTS = """
import json, sys
sys.path[:0] = ["scripts"]
from gpu_parts import driver
driver.GONE_WITHIN_S = 0.5
driver._FILL = "import sys; print('ready', flush=True); sys.stdin.read()"
device = "GPU-11111111-2222-3333-4444-555555555555"
lines = [*driver.nvml(device=device), *driver.kill(device=device, rounds=1)]
driver._FAULTS = {"none": "raise SystemExit('torch.OutOfMemoryError: CUDA out of memory.')"}
print(json.dumps([*lines, *driver.faults(device=device)]))
"""


@pytest.mark.slow
def test_the_parts_of_gpu_check_that_ask_the_driver(library: Path) -> None:
    """They are to run at once on the day there is a GPU."""
    told = json.loads(python(library, "-c", PARTS))
    facts, warm, context, killed, fault = told
    answers = {call["call"]: call for call in facts["calls"]}
    assert "used" in answers["nvmlDeviceGetMemoryInfo"]["answer"]
    assert "NVMLError" in answers["nvmlDeviceGetNumaNodeId"]["answer"]
    assert facts["attach_s"] >= 0
    assert warm["warm_imports"].endswith("[]"), "no file of the driver is open"
    assert "CUDA does not work here though NVML does: libcuda.so.1" in context["context"]
    assert killed["idle_bytes"] == killed["full_bytes"] == 4 << 20
    assert {"waitpid_s", "memory_s", "listed_s"} <= set(killed)
    assert (fault["memory_fault"], fault["code"], fault["deaf"]) == ("gpu", 1, "")


PARK = """
import json, os, sys
sys.path[:0] = ["scripts"]
from gpu_parts import driver
driver._PARKED = "import sys; print('ready', flush=True); [print(True, flush=True) for _ in sys.stdin]"
device = "GPU-11111111-2222-3333-4444-555555555555"
told = [*driver.park(device=device, sizes_gb=(0, 90))]
os.environ["PARK_FAILS"] = "2"
told += driver.park(device=device, sizes_gb=(0,))
print(json.dumps(told))
"""


def test_a_process_is_parked_as_the_driver_wants_it(library: Path) -> None:
    """``gpu_check.py park`` against a library that holds the caller to NVIDIA's documentation."""
    path = os.pathsep.join(map(str, (library, library / "cuda")))
    done, large, failed = json.loads(python(library, "-c", PARK, LD_LIBRARY_PATH=path))
    times = {"lock_s", "checkpoint_s", "restore_s", "unlock_s"}
    assert times <= set(done)
    assert (done["is_the_same"], done["left_bytes"], done["still_listed"]) == (True, 0, False)
    assert "bytes free" in large["error"], "90 GB do not fit on 80"
    assert failed["error"] == "cuCheckpointProcessRestore: CUDA_ERROR_OUT_OF_MEMORY (2)"
    assert not {"unlock_s", "is_the_same"} & set(failed)

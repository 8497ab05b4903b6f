"""CUDA tried out beside NVML: before the first launch, and when a trial fails at once (mend 3)."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from conftest import Box, begin, gpu, run_trial
from fake_driver import GIB, FakeWitness

from gpusched.devices import witness as module
from gpusched.devices.base import Examined, Quarantined
from gpusched.devices.witness import Witness
from gpusched.errors import DeviceError
from tests.rig import wait_until

MakeBox = Callable[..., Box]
MISSING = "CUDA does not work here though NVML does: system not yet initialized (error 802)"


@pytest.fixture
def witness(box: Box) -> FakeWitness:
    return FakeWitness(box.driver, takes_s=2.0)


def test_a_gpu_on_which_cuda_does_not_work_is_not_used(box: Box, witness: FakeWitness) -> None:
    witness.faults[box.gpus[0].uuid] = MISSING
    devices = box.devices(call_witness=witness)
    first, second = devices.open()
    assert first.why_not == f"GPU 0: {MISSING}"
    assert second.usable
    assert box.clock.now() >= 2.5, "its contexts are gone"
    box.clock.advance(5)
    assert devices.events == []
    run_trial(box, devices, second.id, 11)


def test_where_it_works_nowhere_the_machine_is_named(make_box: MakeBox) -> None:
    box = make_box(gpu(0))
    witness = FakeWitness(box.driver, faults={box.gpus[0].uuid: MISSING})
    with pytest.raises(DeviceError, match="error 802"):
        box.devices(call_witness=witness).open()


def examined(box: Box, name: str, after_s: float, witness: FakeWitness) -> tuple[str, list[str]]:
    devices, _ = begin(box, call_witness=witness)
    run_trial(box, devices, name, 11)
    box.clock.advance(after_s)
    witness.faults[name] = MISSING
    box.driver.end(11)
    devices.examine([name])
    box.clock.advance(10)
    (told,) = devices.told(Examined)
    return told.fault, [fault.reason for fault in devices.told(Quarantined)]


def test_a_trial_that_fails_at_once_is_not_to_blame_where_nobody_can_compute(
    box: Box, witness: FakeWitness
) -> None:
    name = box.gpus[0].uuid
    fault, reasons = examined(box, name, 5.0, witness)
    assert fault == f"GPU 0: {MISSING}"
    assert reasons == [f"GPU 0: {MISSING}"]
    assert len(witness.called) == 2


def test_one_that_has_trained_for_long_failed_by_itself(box: Box, witness: FakeWitness) -> None:
    assert examined(box, box.gpus[0].uuid, 100.0, witness) == ("", [])
    assert len(witness.called) == 1, "before the first launch alone"


def test_a_strangers_gpu_is_not_touched(box: Box, witness: FakeWitness) -> None:
    box.driver.start(box.gpus[0], 99, GIB, user="alice", command="python hers.py", ours=False)
    box.devices(call_witness=witness).open()
    assert witness.called == [(box.gpus[1].uuid,)]


def said(witness: Witness) -> Mapping[str, str]:
    found = wait_until(witness.said, "the witness")
    witness.close()
    return found


@pytest.mark.parametrize("program", [module.TORCH, module.DRIVER])
def test_on_this_machine_cuda_says_why_not(program: str) -> None:
    (text,) = said(Witness(sys.executable, ["GPU-x"], time.monotonic, program)).values()
    assert text.startswith("CUDA does not work here though NVML does: ")
    assert len(text) > 60, text


TORCH_STAND_IN = """
import os
class cuda:
    OutOfMemoryError = MemoryError
    def init(): pass
    def get_device_capability(card): return divmod(int(card), 10)
    def get_arch_list(): return os.environ["ARCHITECTURES"].split()
def device(kind, place): return os.environ["CUDA_VISIBLE_DEVICES"].split(",")[place]
class ones:
    def __init__(self, *size, device):
        if device == "82": raise MemoryError
        self.value = 63.0 if device == "87" else 64.0**3
    def __matmul__(self, other): return self
    def sum(self): return self
    def item(self): return self.value
"""


@pytest.mark.parametrize(
    ("architectures", "without_kernels"),
    [
        ("sm_80 sm_90a", {"75", "100", "120"}),
        ("sm_75 sm_120 compute_90", {"80", "86", "89", "82", "87"}),
        ("", set()),
    ],
)
def test_a_torch_without_kernels_for_the_card_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architectures: str, without_kernels: set[str]
) -> None:
    """Mend 3: kernels serve later cards of their generation, PTX all later ones. Cards are named by capability."""
    (tmp_path / "torch.py").write_text(TORCH_STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("ARCHITECTURES", architectures)
    cards = ["75", "80", "82", "86", "87", "89", "90", "100", "120"]
    found = said(Witness(sys.executable, cards, time.monotonic))
    assert {
        card for card in cards if "has no kernels for compute" in found[card]
    } == without_kernels
    if "87" not in without_kernels:
        assert "a product of two matrices came out wrong" in found["87"]
        assert {card for card in cards if found[card]} == {*without_kernels, "87"}, "82 is full"


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("raise SystemExit(3)", "ended with exit code 3"),
        ("import json; print(json.dumps(['', 'no kernels']))", "no kernels"),
        ("import time; time.sleep(60)", "did not answer within 0 s"),
        ("import sys; print('a library speaks', flush=True); sys.stdin.read()", "within 0 s"),
        ("print('{}'); print('[1, 2, 3]'); print('[\"\", \"no kernels\"]')", "no kernels"),
    ],
)
def test_however_it_ends(monkeypatch: pytest.MonkeyPatch, program: str, why: str) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.4 if "within" in why else 60.0)
    found = said(Witness(sys.executable, ["GPU-a", "GPU-b"], time.monotonic, program))
    assert why in found["GPU-b"]
    if why == "no kernels":
        assert found["GPU-a"] == ""


def test_its_end_is_not_waited_for() -> None:
    """A child of its own may have its output open for as long as it likes."""
    program = (
        "import subprocess, sys; pid = subprocess.Popen(['sleep', '600']).pid\n"
        "print([pid], flush=True); sys.stdin.read()"
    )
    text = said(Witness(sys.executable, ["GPU-a"], time.monotonic, program))["GPU-a"]
    os.kill(int(text.split()[-1]), signal.SIGKILL)  # is there still

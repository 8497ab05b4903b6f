"""A second witness beside NVML: a child that makes CUDA contexts, by the script's own torch or the driver's library.

NVML is well and CUDA is not where the fabric manager is missing (error 802), where a container has lost its devices
(NVIDIA/nvidia-docker#1730: after ``systemctl daemon-reload``), or where torch was built without kernels for the card.
Each trial would fail there within a second, and its configuration be barred for what the machine does.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpusched.devices.helper import end
from gpusched.devices.unit import Unit

LIMIT_S = 90.0
"""Importing torch from a cold disk takes most of it."""
AT_ONCE_S = 60.0
"""A trial that fails with an error of CUDA within this may not have been able to use its GPU at all."""
EXAMINE_PATIENCE_S = 5.0
"""Vitals are read every two seconds, and a reading that takes longer than 3 s is thrown away."""

TORCH = """
import json, sys
def tried(place):
    device = torch.device("cuda", place)
    major, minor = torch.cuda.get_device_capability(device)
    built = torch.cuda.get_arch_list()
    def fits(arch):
        kind, _, number = arch.partition("_")
        has = divmod(int("".join(c for c in number if c.isdigit())), 10)
        return has <= (major, minor) and (kind == "compute" or has[0] == major)
    if built and not any(map(fits, built)):
        return f"this torch has no kernels for compute capability {major}.{minor} (it has {', '.join(built)})"
    ones = torch.ones(64, 64, device=device)
    return "" if (ones @ ones).sum().item() == 64.0 ** 3 else "a product of two matrices came out wrong"
said = []
try:
    import torch
    torch.cuda.init()
except Exception as error:
    said = [str(error)] * len(sys.argv[1:])
for place in range(len(sys.argv[1:]) - len(said)):
    try:
        said.append(tried(place))
    except torch.cuda.OutOfMemoryError:
        said.append("")
    except Exception as error:
        said.append(str(error))
print(json.dumps([text.partition(chr(10))[0] for text in said]), flush=True)
sys.stdin.read()
"""
DRIVER = """
import ctypes, json, sys
kept = []
def tried(place):
    device, context = ctypes.c_int(), ctypes.c_void_p()
    kept.append(context)
    code = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), place)
    code = code or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    return code and f"no context could be made (error {code})" or ""
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    said = [tried(place) for place in range(len(sys.argv[1:]))]
except OSError as error:
    said = [str(error)] * len(sys.argv[1:])
print(json.dumps(said), flush=True)
sys.stdin.read()
"""
"""For scripts without torch."""


class Testimony(Protocol):
    """A witness at work."""

    @property
    def pid(self) -> int: ...

    def said(self) -> Mapping[str, str] | None:
        """Return what is wrong with each GPU by its UUID, empty if nothing is; None while it is at work."""
        ...

    def close(self) -> None:
        """End it. Its contexts are there until then."""
        ...


CallWitness = Callable[[Sequence[str]], Testimony]


class Witness:
    """``Testimony`` of a child process. A process sees one MIG slice only: of slices name one."""

    def __init__(
        self,
        interpreter: str,
        uuids: Sequence[str],
        now: Callable[[], float],
        program: str | None = None,
    ) -> None:
        self._uuids, self._now, self._until = tuple(uuids), now, now() + LIMIT_S
        self._printed = b""
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(uuids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        self._process = subprocess.Popen(
            [interpreter, "-c", program or TORCH, *uuids],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **seen},
            process_group=0,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self) -> Mapping[str, str] | None:
        exit_code = self._process.poll()
        texts = self._verdicts()
        if not texts and exit_code is None:
            if self._now() < self._until:
                return None
            return dict.fromkeys(self._uuids, f"CUDA did not answer within {LIMIT_S:.0f} s")
        if not texts:
            ended = f"the process that tried it ended with exit code {exit_code}"
            texts = [ended] * len(self._uuids)
        return {
            uuid: text and f"CUDA does not work here though NVML does: {text}"
            for uuid, text in zip(self._uuids, texts, strict=True)
        }

    def _verdicts(self) -> list[str]:
        """Return the text for each GPU; empty before that line has come. Libraries print lines of their own."""
        stream = self._process.stdout
        assert stream is not None
        while select.select([stream], [], [], 0)[0]:
            if not (chunk := os.read(stream.fileno(), 1 << 16)):
                break
            self._printed += chunk
        for line in self._printed.splitlines():
            with contextlib.suppress(ValueError):
                texts = json.loads(line)
                if isinstance(texts, list) and len(texts) == len(self._uuids):
                    return [str(text) for text in texts]
        return []

    def close(self) -> None:
        end(self._process)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@dataclass(slots=True, eq=False)
class Examination:
    """The question whether a trial that failed on these GPUs did so because of one of them, open ``until`` then."""

    devices: tuple[str, ...]
    units: tuple[Unit, ...]
    until: float
    call_witness: CallWitness | None
    witness: Testimony | None = None

    def fault(self, now: float) -> str | None:
        """Say why one of the GPUs is to blame; empty: none is; None: look again."""
        if self.witness is not None:
            return self._testified(self.witness)
        answers = [unit.blamed() for unit in self.units]
        if any(answers):
            return self._named(answers)
        if None in answers:
            return "NVML reported no GPU health" if now >= self.until else None
        is_early = any(now - unit.changed_at <= AT_ONCE_S for unit in self.units)
        if is_early and self.call_witness is not None:
            self.witness = self.call_witness([unit.gpu.uuid for unit in self.units])
            return None
        return ""

    def _testified(self, witness: Testimony) -> str | None:
        """Blame the machine where CUDA does not work for a program of ours either; GPUs it fails on are out."""
        said = witness.said()
        if said is None:
            return None
        self.close()
        answers = [said.get(unit.gpu.uuid, "") for unit in self.units]
        for unit, why in zip(self.units, answers, strict=True):
            unit.condemn(why)
        return self._named(answers)

    def _named(self, answers: Sequence[str | None]) -> str:
        pairs = zip(self.units, answers, strict=True)
        return "; ".join(f"{unit.gpu.label}: {why}" for unit, why in pairs if why)

    def close(self) -> None:
        if self.witness is not None:
            self.witness.close()

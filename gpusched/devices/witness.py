"""A second witness beside NVML: a child that makes CUDA contexts and multiplies, by the script's own torch.

NVML is well and CUDA is not where the fabric manager is missing (error 802), where a container has lost its devices
(NVIDIA/nvidia-docker#1730: after ``systemctl daemon-reload``), or where torch was built without kernels for the card.
Each trial would fail there within a second, and its configuration be barred for what the machine does.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

LIMIT_S = 90.0
"""Importing torch from a cold disk takes most of it."""

PROGRAM = """
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
print(json.dumps([text.partition(chr(10))[0] for text in said]))
"""


class Testimony(Protocol):
    """A witness at work."""

    def said(self) -> Mapping[str, str] | None:
        """Return what is wrong with each GPU by its UUID, empty if nothing is; None while it is at work."""
        ...

    def close(self) -> None: ...


CallWitness = Callable[[Sequence[str]], Testimony | None]
"""None: the script does not use torch."""


class Witness:
    """``Testimony`` of a child process. A process sees one MIG slice only: of slices name one."""

    def __init__(self, interpreter: str, uuids: Sequence[str], now: Callable[[], float]) -> None:
        self._uuids, self._now, self._until = tuple(uuids), now, now() + LIMIT_S
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(uuids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        self._process = subprocess.Popen(
            [interpreter, "-c", PROGRAM, *uuids],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **seen},
            process_group=0,
        )

    def said(self) -> Mapping[str, str] | None:
        if self._process.poll() is None:
            if self._now() < self._until:
                return None
            self.close()
            return dict.fromkeys(self._uuids, f"CUDA did not answer within {LIMIT_S:.0f} s")
        try:
            texts = [str(text) for text in json.loads(self._process.communicate()[0])]
        except ValueError:
            ended = f"the process that tried it ended with exit code {self._process.returncode}"
            texts = [ended] * len(self._uuids)
        return {
            uuid: text and f"CUDA does not work here though NVML does: {text}"
            for uuid, text in zip(self._uuids, texts, strict=False)
        }

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

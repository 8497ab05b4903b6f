"""A rank's GPU is the current one from ``init`` on (mend 12)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gpusched.worker.context import read_context
from gpusched.worker.group import Group
from gpusched.worker.start import select_gpu
from gpusched.worker.trial import Trial


@pytest.mark.parametrize(("kind", "built"), [("cuda", True), ("cuda", False), ("cpu", True)])
def test_a_bare_cuda_is_this_ranks_gpu(
    monkeypatch: pytest.MonkeyPatch, kind: str, built: bool
) -> None:
    selected: list[torch.device] = []
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", selected.append)
    context = replace(read_context([], {}, None), device_kind=kind, local_rank=1)
    select_gpu(Trial(context, Group(0, 1)), context)
    assert selected == ([torch.device("cuda", 1)] if kind == "cuda" and built else [])

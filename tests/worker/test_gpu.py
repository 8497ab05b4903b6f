"""A rank and its GPU, where there is none: which one it would take, and a torch that can use none."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

import gpusched
from gpusched.worker.context import read_context, take_gpu
from gpusched.worker.group import Group
from gpusched.worker.start import select_gpu
from gpusched.worker.trial import Trial
from tests.worker.fakes import Bench, run_ranks

on_cpu_torch = pytest.mark.skipif(
    torch.backends.cuda.is_built(), reason="this torch is built for CUDA"
)


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """GPUs that became the current one, on a machine of two under a torch that is built for CUDA."""
    found: list[torch.device] = []
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    return found


@pytest.mark.parametrize(("local_rank", "gpus", "taken"), [(0, 1, 0), (1, 2, 1), (1, 1, 0)])
def test_each_rank_takes_the_gpu_of_its_number(
    monkeypatch: pytest.MonkeyPatch,
    current: list[torch.device],
    local_rank: int,
    gpus: int,
    taken: int,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert take_gpu(local_rank) == torch.device("cuda", taken)
    assert current == [torch.device("cuda", taken)]


@pytest.mark.parametrize("chosen", ["0", "3,1", "GPU-8932f937", "-1"])
def test_a_script_that_chooses_its_gpus_is_refused(bench: Bench, chosen: str) -> None:
    """Such a script would train on another trial's GPU."""

    def body() -> None:
        os.environ.update(CUDA_VISIBLE_DEVICES=chosen, GPUSCHED_DEVICE="cuda")
        gpusched.init().track()

    (ended,) = run_ranks(body, 1, bench)
    assert ("set CUDA_VISIBLE_DEVICES=" in ended.error) == chosen[:1].isdecimal()


@on_cpu_torch
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_gpu_under_a_torch_for_cpus_is_explained(bench: Bench, ranks: int) -> None:
    def body() -> None:
        os.environ["GPUSCHED_DEVICE"] = "cuda"
        gpusched.init().wrap(torch.nn.Linear(1, 1))

    for ended in run_ranks(body, ranks, bench):
        assert "this trial was given a GPU, but torch" in ended.error
        assert "is built for CPUs only: install a torch that is built for CUDA" in ended.error


@pytest.mark.parametrize(("kind", "built"), [("cuda", True), ("cuda", False), ("cpu", True)])
def test_a_bare_cuda_is_this_ranks_gpu(
    monkeypatch: pytest.MonkeyPatch, current: list[torch.device], kind: str, built: bool
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    context = replace(read_context([], {}, None), device_kind=kind, local_rank=1)
    select_gpu(Trial(context, Group(0, 1)), context)
    assert current == ([torch.device("cuda", 1)] if kind == "cuda" and built else [])

"""Which GPUs ``CUDA_VISIBLE_DEVICES`` and ``devices:`` leave."""

from __future__ import annotations

import pytest

from gpusched.devices.machine import choose
from gpusched.devices.nvml import Gpu
from gpusched.errors import DeviceError

GPUS = [Gpu(f"GPU-{i}a00-beef", i, "NVIDIA H100", f"00000000:{i + 1:02X}:00.0") for i in range(4)]


@pytest.mark.parametrize(
    ("variable", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        (" 1 , 3 ", [1, 3]),
        ("GPU-1a00-beef,GPU-3", [1, 3]),
        ("gpu-1A", [1]),
    ],
)
def test_the_inherited_list_is_the_pool(variable: str | None, indices: list[int]) -> None:
    assert choose(GPUS, "cuda", variable) == [GPUS[i] for i in indices]


@pytest.mark.parametrize("variable", ["", "-1", "0,7,1", "GPU-", "0,0", "rubbish"])
def test_a_wrong_inherited_list_is_named(variable: str) -> None:
    with pytest.raises(DeviceError, match=f"^CUDA_VISIBLE_DEVICES={variable}: .*The GPUs are:"):
        choose(GPUS, "cuda", variable)


@pytest.mark.parametrize("spec", ["auto", "cuda", "CUDA", "gpu", " cuda "])
def test_all(spec: str) -> None:
    assert choose(GPUS, spec) == GPUS


@pytest.mark.parametrize(
    ("spec", "indices"),
    [
        ("cuda:0,2,3", [0, 2, 3]),
        ("cuda:1", [1]),
        ("cuda: 1, 0", [1, 0]),
        ("GPU-2a00-beef,GPU-0a", [2, 0]),
        ("cuda:GPU-2a", [2]),
    ],
)
def test_some(spec: str, indices: list[int]) -> None:
    assert choose(GPUS, spec) == [GPUS[i] for i in indices]


def test_indices_count_within_the_inherited_list_as_torch_counts() -> None:
    assert choose(GPUS, "cuda:0", "3,1") == [GPUS[3]]
    with pytest.raises(DeviceError) as raised:
        choose(GPUS, "cuda:2", "3,1")
    assert str(raised.value) == (
        "devices: cuda:2: GPU 2 was not found (inside CUDA_VISIBLE_DEVICES=3,1). The GPUs are:\n"
        "  cuda:0  GPU-3a00-beef  NVIDIA H100\n"
        "  cuda:1  GPU-1a00-beef  NVIDIA H100"
    )
    with pytest.raises(DeviceError, match="GPU-0a00-beef was not found"):
        choose(GPUS, "GPU-0a00-beef", "3,1")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("cuda:9", "GPU 9 was not found"),
        ("cuda:", "'' is neither an index nor a UUID"),
        ("cuda:0,0", "0 is named twice"),
        ("cuda:x,9", "'x' is neither an index nor a UUID; GPU 9 was not found"),
        ("GPU-", "'GPU-' is neither"),
        ("cuda:0,GPU-0a", "GPU-0a is named twice"),
        ("cuda:-1", "'-1' is neither"),
        ("MIG-1c", "MIG-1c is a MIG slice, which gpusched does not use: name whole GPUs"),
    ],
)
def test_errors_name_all_problems_and_what_there_is(spec: str, problem: str) -> None:
    with pytest.raises(DeviceError) as raised:
        choose(GPUS, spec)
    assert problem in str(raised.value)
    assert "cuda:3  GPU-3a00-beef  NVIDIA H100" in str(raised.value)


def test_an_ambiguous_beginning() -> None:
    twins = [Gpu(f"GPU-aa{i}", i, "x") for i in range(2)]
    with pytest.raises(DeviceError, match="GPU-aa is the beginning of 2 UUIDs"):
        choose(twins, "GPU-aa")

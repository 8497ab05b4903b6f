"""Shared by all tests: skipping of GPU tests where there is no GPU, and hypothesis profiles."""

from __future__ import annotations

import functools

import pytest
from hypothesis import HealthCheck, settings

# An example may be slow, or slow to make, without being wrong: the machine may be busy with something else. The short
# tests take the same examples in every run, so that what fails has been made to fail; the long ones take new ones.
EXAMPLES = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("new", EXAMPLES)
settings.register_profile("same", EXAMPLES, derandomize=True)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("new" if config.option.markexpr == "slow" else "same")


@functools.cache
def why_no_gpu() -> str:
    """Why GPU tests cannot run here; empty if they can. Asks NVML, so torch is not imported for it."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"no NVIDIA driver here: {error}"
    try:
        count = pynvml.nvmlDeviceGetCount()
    finally:
        pynvml.nvmlShutdown()
    return "" if count else "the NVIDIA driver sees no GPU"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and why_no_gpu():
            item.add_marker(pytest.mark.skip(reason=why_no_gpu()))

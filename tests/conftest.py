"""Shared by all tests: skipping of GPU tests where there is no GPU, hypothesis profiles, folders and journals."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gpusched import plugins
from gpusched.journal.log import Journal

Install = Callable[[str, str, str], None]

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


def with_libraries(*names: str, timeout_s: int = 900) -> list[pytest.MarkDecorator]:
    """Return the marks of tests with these libraries (``make test-integrations`` installs them)."""
    missing = [name for name in names if find_spec(name) is None]
    skip = pytest.mark.skipif(bool(missing), reason=f"not installed here: {missing}")
    return [pytest.mark.integrations, pytest.mark.timeout(timeout_s), skip]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and why_no_gpu():
            item.add_marker(pytest.mark.skip(reason=why_no_gpu()))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install(group, entry, source)``: a package as in site-packages, the module ``extra`` and its metadata."""

    def made(group: str, entry: str, source: str) -> None:
        (tmp_path / "extra.py").write_text(source)
        info = tmp_path / "extra-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[gpusched.{group}]\n{entry}\n")
        plugins.installed.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    yield made
    sys.modules.pop("extra", None)
    plugins.installed.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is room: syncs would be most of the time, and no test lets the power fail in earnest."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 256 << 20:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as made:
        yield Path(made)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a journal that is not there yet."""
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    """An empty one. It ends as a daemon that is killed does: what was not committed is lost."""
    journal = Journal.create(path, {})
    yield journal
    journal.abandon()

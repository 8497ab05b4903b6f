"""Modules that a warm server must not fork from (mend 10)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpusched.runtime import imports
from gpusched.runtime.imports import Imports

ROOT = Path(__file__).resolve().parents[2]
THREADED = """
import threading
done = threading.Event()
threading.Thread(target=done.wait, name="telemetry", daemon=True).start()
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "quiet_module.py").write_text("x = 1")
    (tmp_path / "threaded_module.py").write_text(THREADED)
    return tmp_path


def test_a_preload_that_starts_a_thread_is_named_with_it(modules: Path) -> None:
    left = Imports(["quiet_module", "threaded_module"], ["quiet_module", "threaded_module"])
    assert left.next() is None
    failed = left.next()
    assert failed.tainted
    assert failed.message.endswith("would not have: telemetry")
    sys.modules["threaded_module"].done.set()


def test_a_preload_that_joins_a_trial_is_refused(modules: Path) -> None:
    """Forked ranks would find themselves joined, alone, in a plain run."""
    (modules / "joining_module.py").write_text("from gpusched import trial")
    script = (
        "from gpusched.runtime.imports import Imports\n"
        "print(Imports(['joining_module'], ['joining_module']).next())"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{modules}"}
    said = subprocess.check_output([sys.executable, "-c", script], env=environment, text=True)
    assert "joins a trial" in said
    assert "tainted=True" in said


@pytest.mark.parametrize("wanted", [True, False])
def test_any_module_may_touch_cuda(
    modules: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    """Only those of ``preload`` were looked at; a server cannot be replaced for one of torch's own."""
    monkeypatch.setattr(imports, "uses_cuda", lambda: True)
    left = Imports(["quiet_module"], ["quiet_module"] if wanted else [])
    failed = left.next()
    assert "initialises CUDA" in failed.message
    assert failed.tainted is left.taint is wanted
    assert wanted or failed.message.endswith("set launch: cold")

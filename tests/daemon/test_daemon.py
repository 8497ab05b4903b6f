"""A daemon before its search begins. (With real searches: ``tests/e2e`` and ``tests/torture``.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusched.daemon.daemon import Daemon
from gpusched.daemon.start import make_experiment
from gpusched.driver.clock import Beginning
from gpusched.recipe.load import load_recipe

RECIPE = """
script: train.py
metric: m
deadline: 1m
devices: cpu
space: {lr: {uniform: [0, 1]}}
"""


def test_a_remark_of_the_executor_as_it_is_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a MIG slice the daemon ended with an AttributeError: there was nobody to tell yet."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-0c")
    source = tmp_path / "search.yaml"
    source.write_text(RECIPE)
    (tmp_path / "train.py").touch()
    paths = make_experiment(tmp_path / "runs", load_recipe(source), Beginning.now(), source)
    daemon = Daemon(paths, resuming=False)
    try:
        (remark,) = daemon.clients.view()["warnings"]
    finally:
        daemon.executor.close()
        daemon.hub.close()
        daemon.journal.close()
    assert remark.startswith("launch: cold: CUDA_VISIBLE_DEVICES names a MIG slice")
    assert capsys.readouterr().out.count(remark) == 1

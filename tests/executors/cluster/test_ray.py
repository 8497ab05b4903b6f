"""Addresses of Ray clusters, and messages where a cluster cannot be used: no cluster is needed for these."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from gpusched.errors import DeviceError, InputError
from gpusched.executors.cluster import bootstrap, ray_bridge
from gpusched.executors.cluster.bootstrap import (
    RayBootstrap,
    bootstrap_for,
    node_environment,
    wanted,
)
from gpusched.executors.cluster.line import Keys, say_over
from gpusched.folder.files import private_folder
from tests.executors.conftest import recipe
from tests.rig import wait_until


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "ssh:box1,box2", "slurm", "local"])
def test_an_address_that_cannot_be_used_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(InputError, match=r"Write auto .*, HOST:PORT of its GCS, or local:2 "):
        RayBootstrap(address, tmp_path)


RAY = """
import sys, types
util = sys.modules["ray.util"] = types.ModuleType("ray.util")
scheduling = sys.modules["ray.util.scheduling_strategies"] = types.ModuleType("scheduling")
scheduling.PlacementGroupSchedulingStrategy = None
"""


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Ray that a test writes, which a bridge imports in the place of the real one."""
    (tmp_path / "packages").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setattr(bootstrap, "END_S", 0.1)
    return tmp_path / "packages" / "ray.py"


def test_an_interpreter_without_ray_is_named_in_one_sentence(played: Path, tmp_path: Path) -> None:
    played.write_text("raise ImportError('no ray')")
    with pytest.raises(DeviceError, match=r"cannot import Ray .*pip install ray, of the") as no:
        RayBootstrap("auto", tmp_path)
    assert "\n" not in str(no.value)


def test_an_address_where_nothing_answers_is_named(played: Path, tmp_path: Path) -> None:
    played.write_text(RAY)
    with socket.socket() as silent:  # nobody else gets the port, and nobody listens
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DeviceError, match=f"{address}.*nothing answers .*is the Ray cluster"):
            RayBootstrap(address, tmp_path)


def test_a_bridge_that_ends_is_named_with_its_log(played: Path, tmp_path: Path) -> None:
    played.write_text("raise SystemExit")
    with pytest.raises(DeviceError, match=r"its driver ended .*\(see .*/cluster/ray.log\)"):
        RayBootstrap("auto", tmp_path)


def test_a_process_that_cannot_begin_is_tried_until_the_search_is_over(tmp_path: Path) -> None:
    """A node without the interpreter was asked for it every second, for as long as it was up."""
    keys = Keys(tmp_path)
    private_folder(keys.folder)
    words = ["sh", "-c", ray_bridge.KEEP, str(keys.address), "sh", "-c", "echo again; exit 1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as kept:
        assert [kept.stdout.readline() for _ in range(2)] == ["again\n"] * 2
        say_over(keys)
        wait_until(lambda: kept.poll() is not None)


# ---------------------------------------------------------------- what travels, and what is asked for


def test_the_users_own_modules_come_before_those_beside_gpusched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PYTHONPATH was replaced on every node."""
    monkeypatch.setenv("PYTHONPATH", "/data/ours:/data/theirs")
    ours = str(Path(bootstrap.__file__).parents[3])
    assert node_environment() == {"PYTHONPATH": f"/data/ours:/data/theirs:{ours}"}


def test_the_recipe_says_what_ray_reserves(tmp_path: Path) -> None:
    slots = recipe(tmp_path, devices="cpu:4", cluster="auto", max_nodes=3)
    assert wanted(slots) == {"kind": "CPU", "most": 4, "max_nodes": 3}
    named = recipe(tmp_path, devices="cuda:0,1", cluster="auto")
    with pytest.raises(InputError, match="Ray chooses the GPUs of each node"):
        bootstrap_for(named, tmp_path, print)


def test_a_node_whose_anchor_is_slow_is_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the bridge was replaced: only a node that Ray calls dead, or that is not ours any more, is."""
    offers = [{"name": name, "devices": "cpu:2"} for name in "ab"]
    answers = [
        {"offers": offers, "kept": ["a", "b"], "refused": {}},
        {"offers": offers[:1], "kept": ["a", "b"], "refused": {"b": "slow"}},
        {"offers": offers[:1], "kept": ["a"], "refused": {}},
    ]
    monkeypatch.setattr(RayBootstrap, "_join", lambda *_: None)
    monkeypatch.setattr(RayBootstrap, "_call", lambda *_: answers.pop(0))
    way = RayBootstrap("auto", tmp_path)
    found = [[offer.name for offer in way.nodes()] for _ in range(3)]
    assert found == [["a", "b"], ["a", "b"], ["a"]]

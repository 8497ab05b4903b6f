"""Addresses of Ray clusters, and messages where a cluster cannot be used: no cluster is needed for these."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpusched.errors import DeviceError, InputError
from gpusched.executors.cluster import ray
from gpusched.executors.cluster.bootstrap import NodeOffer, bootstrap_for, node_environment
from gpusched.executors.cluster.node import NodeProcess
from gpusched.executors.cluster.ray import (
    RayBootstrap,
    Reserved,
    Wanted,
    find_cluster,
    ray_nodes_here,
)
from gpusched.recipe.load import load_recipe
from gpusched.recipe.recipe import Recipe
from tests.rig import wait_until


@pytest.fixture
def listener() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_a_ray_node_of_this_machine_tells_its_cluster_and_its_interpreter() -> None:
    words = [
        "--gcs-address=192.0.2.1:6379",
        "--python_worker_command=/opt/ray/bin/python worker.py --x",
    ]
    raylet = subprocess.Popen(
        ["/opt/ray/raylet", "-c", "input()", *words],
        executable=sys.executable,
        stdin=subprocess.PIPE,
    )
    try:
        assert ray_nodes_here()["192.0.2.1:6379"] == "/opt/ray/bin/python"
    finally:
        raylet.communicate(b"\n")


@pytest.mark.skipif(os.getuid() != 0, reason="another user's process needs root")
def test_a_raylet_of_another_user_is_not_believed() -> None:
    """``auto`` ran the interpreter that any process of that name gave."""
    words = ["--gcs-address=192.0.2.2:6379", "--python_worker_command=/tmp/theirs worker.py"]
    program = ["/opt/ray/raylet", "-c", "read x", *words]
    raylet = subprocess.Popen(program, executable="/bin/sh", stdin=subprocess.PIPE, user=65534)
    try:
        wait_until(lambda: "raylet" in psutil.Process(raylet.pid).cmdline()[0])
        assert "192.0.2.2:6379" not in ray_nodes_here()
    finally:
        raylet.communicate(b"\n")


ONE = {"192.0.2.1:6379": "/opt/ray/bin/python"}
TWO = {**ONE, "192.0.2.7:6380": "/opt/other/bin/python"}


@pytest.mark.parametrize(
    ("address", "here", "found"),
    [
        ("auto", ONE, ("192.0.2.1:6379", "/opt/ray/bin/python")),
        ("192.0.2.7:6380", TWO, ("192.0.2.7:6380", "/opt/other/bin/python")),
        ("localhost:6379", TWO, ("192.0.2.1:6379", "/opt/ray/bin/python")),
        ("192.0.2.9:6379", TWO, ("192.0.2.9:6379", sys.executable)),
    ],
)
def test_a_cluster_is_found(
    monkeypatch: pytest.MonkeyPatch, address: str, here: dict[str, str], found: tuple[str, str]
) -> None:
    monkeypatch.setattr(ray, "ray_nodes_here", lambda: here)
    assert find_cluster(address) == found


def test_auto_is_the_cluster_that_a_ray_job_was_submitted_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray, "ray_nodes_here", lambda: TWO)
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.7:6380")
    assert find_cluster("auto") == ("192.0.2.7:6380", "/opt/other/bin/python")


@pytest.mark.parametrize(
    ("address", "here", "said"),
    [
        ("auto", {}, "no node of a Ray cluster runs on this machine"),
        ("auto", TWO, "nodes of 2 Ray clusters .* 192.0.2.1:6379, 192.0.2.7:6380"),
        ("ray://head:10001", ONE, "run gpusched on a node of the cluster"),
        ("head", ONE, "HOST:PORT, or auto"),
        ("ssh:box1,box2", ONE, "HOST:PORT, or auto"),
        ("slurm", ONE, "HOST:PORT, or auto"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(
    monkeypatch: pytest.MonkeyPatch, address: str, here: dict[str, str], said: str
) -> None:
    monkeypatch.setattr(ray, "ray_nodes_here", lambda: here)
    with pytest.raises(InputError, match=said):
        find_cluster(address)


def interpreter(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Have the bridge run under an interpreter without packages, but for a Ray of this version; "": none."""
    if version:
        package = folder / "packages" / "ray"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/packages exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("", r"cannot import Ray .*pip install 'gpusched\[ray\]'"),
        ("2.9.3", "Ray 2.9.3 is too old, gpusched needs 2.52 or newer"),
    ],
)
def test_an_interpreter_whose_ray_cannot_be_used_is_named_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str, version: str, said: str
) -> None:
    interpreter(tmp_path, monkeypatch, version)
    with pytest.raises(DeviceError, match=said) as refusal:
        RayBootstrap(listener, tmp_path)
    assert "\n" not in str(refusal.value)


def test_an_address_where_nothing_answers_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    interpreter(tmp_path, monkeypatch, "")
    with pytest.raises(DeviceError, match=f"nothing answers at {address} .*is the Ray cluster up"):
        RayBootstrap(address, tmp_path)


SILENT_RAY = """
import sys, time, types
__version__ = "2.60.0"
util = sys.modules["ray.util"] = types.ModuleType("ray.util")
util.placement_group_table = dict
_raylet = sys.modules["ray._raylet"] = types.ModuleType("ray._raylet")
_raylet.GcsClient = lambda address: types.SimpleNamespace(internal_kv_get=lambda *_, timeout: None)
def init(*_, **__): ...
def nodes(): time.sleep(600)
"""


def test_a_call_that_ray_does_not_answer_delays_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str
) -> None:
    """The end of a search used to wait for it, two minutes and a half."""
    interpreter(tmp_path, monkeypatch, "2.60.0")
    (tmp_path / "packages" / "ray" / "__init__.py").write_text(SILENT_RAY)
    monkeypatch.setattr(ray, "END_S", 0.1)
    bootstrap = RayBootstrap(listener, tmp_path, insecure=True)
    with ThreadPoolExecutor(1) as helper:
        call = helper.submit(bootstrap.nodes)
        time.sleep(0.1)
        bootstrap.interrupt()
        with pytest.raises(DeviceError, match="is silent: its driver ended"):
            call.result(timeout=30)
    bootstrap.close()


def test_a_bridge_that_ends_or_hangs_is_named_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str
) -> None:
    interpreter(tmp_path, monkeypatch, "")
    (tmp_path / "packages").mkdir()
    for code, said in (
        ("raise SystemExit", "its driver ended"),
        ("import time; time.sleep(60)", "no answer in 1 s"),
    ):
        (tmp_path / "packages" / "ray.py").write_text(code)
        monkeypatch.setattr(ray, "JOIN_S", 1.0)
        monkeypatch.setattr(ray, "END_S", 0.1)
        with pytest.raises(DeviceError, match=rf"{said} \(see .*/cluster/ray.log\)"):
            RayBootstrap(listener, tmp_path)


# ---------------------------------------------------------------- what travels, and what is asked for


def recipe(folder: Path, **more: Any) -> Recipe:
    (folder / "train.py").touch()
    text = {
        "script": "train.py",
        "metric": "m",
        "deadline": "1m",
        "space": {"x": {"uniform": [0, 1]}},
        **more,
    }
    (folder / "search.yaml").write_text(json.dumps(text))
    return load_recipe(folder / "search.yaml")


def test_the_users_own_modules_come_before_those_beside_gpusched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PYTHONPATH was replaced on every node."""
    monkeypatch.setenv("PYTHONPATH", "/data/ours:/data/theirs")
    ours = str(Path(ray.__file__).parents[3])
    assert node_environment() == {"PYTHONPATH": f"/data/ours:/data/theirs:{ours}"}


@pytest.mark.parametrize(
    ("devices", "wanted"),
    [
        ("auto", Wanted("", None, 3)),
        ("cuda", Wanted("GPU", None, 3)),
        ("cpu:4", Wanted("CPU", 4, 3)),
        ("cuda:0,1", None),
    ],
)
def test_the_recipe_says_what_ray_reserves(
    tmp_path: Path, devices: str, wanted: Wanted | None
) -> None:
    asked = recipe(tmp_path, devices=devices, cluster="auto", max_nodes=3)
    if wanted is not None:
        assert Wanted.of(asked) == wanted
        return
    with pytest.raises(InputError, match="Ray chooses the GPUs of each node"):
        bootstrap_for(asked, tmp_path, print)


def test_a_recipe_for_gpus_never_trains_on_cpu_slots(tmp_path: Path) -> None:
    asked = recipe(tmp_path, devices="cuda", cluster="auto")
    node = NodeProcess(tmp_path, "node0", "cpu:4")
    with pytest.raises(InputError, match=r"asks for GPUs .* this node gives CPU slots"):
        node.recipe_here(asked.resolved())


def test_a_node_whose_anchor_is_slow_is_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str
) -> None:
    """After the bridge was replaced: only a node that Ray calls dead, or that is not ours any more, is."""
    offers = {name: NodeOffer(name, "127.0.0.1", "cpu:2") for name in "ab"}
    answers = [
        Reserved([offers["a"], offers["b"]], ["a", "b"]),
        Reserved([offers["a"]], ["a", "b"]),
        Reserved([offers["a"]], ["a"]),
    ]
    monkeypatch.setattr(RayBootstrap, "_join", lambda *_: None)
    monkeypatch.setattr(RayBootstrap, "_call", lambda *_: answers.pop(0))
    bootstrap = RayBootstrap(listener, tmp_path, insecure=True)
    found = [[offer.name for offer in bootstrap.nodes()] for _ in range(3)]
    assert found == [["a", "b"], ["a", "b"], ["a"]]

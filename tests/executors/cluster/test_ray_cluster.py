"""The Ray bootstrap on real clusters: two raylets of ``ray.cluster_utils.Cluster`` on this machine.

Ray counts the GPUs that it is told of, so no GPU is needed; a scripted ``nvidia-smi`` says their UUIDs.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpusched.cli import main
from gpusched.errors import DeviceError
from gpusched.executors.cluster.ray import RayBootstrap
from tests.rig import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not find_spec("ray"), reason="ray is not installed here"),
]
TOKEN = "a-token-of-this-test-and-of-no-other"
SMI = """#!/bin/sh
for gpu in 0 1 2 3 4 5; do echo "$gpu, GPU-0000-$gpu, Scripted GPU"; done
"""
OTHER_JOB = """
import json, ray, sys
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
free = ray.available_resources().get(sys.argv[3], 0)
ref = ray.remote(**{f"num_{sys.argv[3].lower()}s": 2})(lambda: None).remote()
done, _ = ray.wait([ref], timeout=float(sys.argv[2]))
print(json.dumps({"free": free, "ran": bool(done)}))
"""
#: A process of a node: says its id and its GPUs, and stays.
STAY = ["/bin/sh", "-c", 'echo "$$ $CUDA_VISIBLE_DEVICES $GIVEN"; exec sleep 600']


class RayCluster:
    """A cluster in a process of its own, with every process that it starts known by id."""

    def __init__(self, *sizes: str, **environ: str) -> None:
        environ["RAY_AUTH_TOKEN"] = TOKEN
        self.mode = environ["RAY_AUTH_MODE"]
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ray_nodes.py")), *sizes],
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.nodes: list[dict[str, Any]] = []
        for _ in sizes:
            self._read()
        self.address: str = self.nodes[0]["address"]
        wait_until(self._answers, "the cluster to answer")

    def _answers(self) -> bool:
        host, _, port = self.address.rpartition(":")
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
            return True
        return False

    def _read(self) -> None:
        self.nodes.append(json.loads(self._process.stdout.readline()))

    def add(self, size: str) -> None:
        assert self._process.stdin is not None
        print("add", size, file=self._process.stdin, flush=True)
        self._read()

    def kill(self, node: int, name: str) -> None:
        for pid in self.nodes[node]["pids"][name]:
            os.kill(pid, signal.SIGKILL)

    def anchors(self) -> list[psutil.Process]:
        """Return the anchors of all raylets."""
        raylets = [pid for node in self.nodes for pid in node["pids"]["raylet"]]
        found = []
        for pid in raylets:
            with suppress(psutil.NoSuchProcess):
                found += [
                    child
                    for child in psutil.Process(pid).children()
                    if any("Anchor" in word for word in child.cmdline())
                ]
        return found

    def end(self) -> None:
        known = [pid for node in self.nodes for pids in node["pids"].values() for pid in pids]
        left = [psutil.Process(pid) for pid in known if psutil.pid_exists(pid)]
        left += [child for process in left for child in process.children(recursive=True)]
        self._process.communicate(timeout=PATIENCE_S)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def other_job(cluster: RayCluster, limit_s: float, kind: str = "GPU") -> dict[str, Any]:
    """Have another job ask for two devices; return how many were free, and whether it got them in time."""
    environ = {**os.environ, "RAY_AUTH_MODE": cluster.mode, "RAY_AUTH_TOKEN": TOKEN}
    words = [sys.executable, "-c", OTHER_JOB, cluster.address, str(limit_s), kind]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture
def processes() -> Iterator[list[int]]:
    """Ids of processes that a test had started on nodes, killed at its end."""
    started: list[int] = []
    yield started
    for pid in started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)


def started(bootstrap: RayBootstrap, name: str, folder: Path, processes: list[int]) -> list[str]:
    """Start a process on a node; return its words."""
    log = folder / "cluster" / f"{name}.log"
    before = log.read_text() if log.exists() else ""
    bootstrap.start(name, STAY, {"GIVEN": "given"})
    wait_until(lambda: log.exists() and log.read_text()[len(before) :].endswith("\n"))
    words = log.read_text()[len(before) :].split()
    processes.append(int(words[0]))
    return words


# ---------------------------------------------------------------- two nodes of two GPUs each, and a token


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    tools = tmp_path_factory.mktemp("tools")
    (tools / "nvidia-smi").write_text(SMI)
    (tools / "nvidia-smi").chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    made = RayCluster("1:2", "1:2", RAY_AUTH_MODE="token", PATH=path, CUDA_VISIBLE_DEVICES="5,2")
    yield made
    made.end()


@pytest.mark.usefixtures("token")
def test_what_is_reserved_is_taken_for_other_jobs_until_it_is_given_back(
    guarded: RayCluster, tmp_path: Path
) -> None:
    bootstrap = RayBootstrap(guarded.address, tmp_path / "one")
    offers = bootstrap.nodes()
    assert [offer.devices for offer in offers] == ["cuda:GPU-0000-2,GPU-0000-5"] * 2
    assert len({offer.name for offer in offers}) == 2
    assert other_job(guarded, 2.0) == {"free": 0, "ran": False}
    late = RayBootstrap(guarded.address, tmp_path / "two")
    with pytest.raises(DeviceError, match=r"no node is free: .*other jobs .* have its 2 GPUs"):
        late.nodes()
    late.close()
    bootstrap.close()
    assert other_job(guarded, PATIENCE_S) == {"free": 4, "ran": True}


@pytest.mark.usefixtures("token")
def test_a_process_outlives_its_anchor_and_its_bridge_and_a_resume_finds_the_same_nodes(
    guarded: RayCluster, tmp_path: Path, processes: list[int]
) -> None:
    first = RayBootstrap(guarded.address, tmp_path)
    offers = first.nodes()
    pid, gpus, given = started(first, offers[0].name, tmp_path, processes)
    assert (f"cuda:{gpus}", given) == (offers[0].devices, "given")
    assert b"RAY_" not in Path(f"/proc/{pid}/environ").read_bytes()
    killed = guarded.anchors()
    assert len(killed) == 2
    for anchor in killed:
        anchor.kill()
    first.leave()
    again = RayBootstrap(guarded.address, tmp_path)
    assert {(o.name, o.devices) for o in again.nodes()} == {(o.name, o.devices) for o in offers}
    assert psutil.pid_exists(int(pid)), "a process of a node died with its anchor"
    assert not {anchor.pid for anchor in guarded.anchors()} & {one.pid for one in killed}
    assert started(again, offers[1].name, tmp_path, processes)[2] == "given"
    again.close()
    wait_until(lambda: not guarded.anchors())
    assert all(psutil.pid_exists(one) for one in processes)


@pytest.mark.usefixtures("token")
def test_a_node_without_a_process_is_given_back_after_the_lease(
    guarded: RayCluster, tmp_path: Path, processes: list[int]
) -> None:
    bootstrap = RayBootstrap(guarded.address, tmp_path, lease_s=4.0)
    kept, left = bootstrap.nodes()
    started(bootstrap, kept.name, tmp_path, processes)
    bootstrap.leave()
    wait_until(lambda: len(guarded.anchors()) == 1)
    assert other_job(guarded, PATIENCE_S) == {"free": 2, "ran": True}
    os.kill(processes[0], signal.SIGKILL)
    wait_until(lambda: not guarded.anchors())


def test_a_wrong_token_and_none_are_answered_with_what_to_do(
    guarded: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for token in ("", "another-token-altogether"):
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
        with pytest.raises(DeviceError, match=r"wants its token, .*RAY_AUTH_TOKEN_PATH"):
            RayBootstrap(guarded.address, tmp_path, insecure=True)


# ---------------------------------------------------------------- two nodes without GPUs, and no token


#: Ray notices within seconds that its GCS is gone, instead of a minute.
QUICK = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}


@pytest.fixture
def _notice_losses_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def unguarded() -> Iterator[RayCluster]:
    made = RayCluster("2:0", "2:0", RAY_AUTH_MODE="disabled", **QUICK)
    yield made
    made.end()


def test_a_cluster_without_a_token_is_refused_until_that_is_accepted(
    unguarded: RayCluster, tmp_path: Path
) -> None:
    with pytest.raises(DeviceError, match=r"has no token: .* or accept it with --insecure-cluster"):
        RayBootstrap(unguarded.address, tmp_path)
    bootstrap = RayBootstrap(unguarded.address, tmp_path, insecure=True)
    assert not bootstrap.has_token
    bootstrap.leave()


def test_doctor_looks_at_every_node_and_leaves_nothing(
    unguarded: RayCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--cluster", unguarded.address, "--dir", str(tmp_path)]) == 4
    head, node, _, _, token, advice, *good = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "node"
    assert f"2 CPUs   {version('ray')}" in node
    assert token.startswith("FAIL  token: none")
    assert "--insecure-cluster" in advice
    assert len(good) >= 2
    assert all(line.startswith("ok") and "shared yes" in line for line in good[:2])
    assert not list(tmp_path.iterdir())


def test_another_version_of_ray_is_named(
    unguarded: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie = "import ray\nray.__version__ = '2.53.0'\n"
    (tmp_path / "sitecustomize.py").write_text(lie)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(DeviceError, match=r"Ray 2.53.0 cannot join .* Version mismatch"):
        RayBootstrap(unguarded.address, tmp_path, insecure=True)


@pytest.mark.usefixtures("_notice_losses_soon")
def test_nodes_join_and_are_lost_while_their_processes_live(
    unguarded: RayCluster, tmp_path: Path, processes: list[int]
) -> None:
    bootstrap = RayBootstrap(unguarded.address, tmp_path, insecure=True)
    first = bootstrap.nodes()
    assert [offer.devices for offer in first] == ["cpu:2"] * 2
    unguarded.add("3:0")
    (joined,) = wait_until(lambda: [one for one in bootstrap.nodes() if one not in first])
    assert joined.devices == "cpu:3"
    for offer in (first[0], joined):
        started(bootstrap, offer.name, tmp_path, processes)
    unguarded.kill(2, "raylet")
    wait_until(lambda: bootstrap.nodes() == first)
    assert all(psutil.pid_exists(pid) for pid in processes)
    bootstrap.close()
    wait_until(lambda: not unguarded.anchors())


TRAIN = """
import time
import gpusched

trial = gpusched.init()
trial.track()
for step in trial.steps():
    time.sleep(0.2)
    trial.report(score=trial.hparams.x * step)
"""


def search(folder: Path, address: str, steps: int, trials: int) -> subprocess.Popen[str]:
    """Begin a search of trials of ``steps`` steps, as many at a time as there are slots."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(TRAIN)
    recipe = {"script": "train.py", "metric": "score", "deadline": "3m", "max_trials": trials}
    recipe["policy"] = {"name": "fifo", "R": steps}
    recipe["space"] = {"x": {"uniform": [0, 1]}}
    (folder / "search.yaml").write_text(json.dumps(recipe))
    return gpusched(folder, "run", "search.yaml", "--cluster", address, "--insecure-cluster")


def gpusched(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gpusched", *words, "--dir", "runs"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def steps_of(folder: Path) -> dict[str, list[tuple[int, int]]]:
    """Return (incarnation, step) of each trial's reports, in the order of its file."""
    return {
        path.parent.name: [
            (row["i"], row["k"]) for row in map(json.loads, path.read_text().splitlines())
        ]
        for path in folder.glob("runs/*/trials/*/reports.jsonl")
    }


@pytest.mark.usefixtures("_notice_losses_soon")
def test_a_search_has_both_nodes_until_its_end_also_beyond_a_killed_daemon(
    unguarded: RayCluster, tmp_path: Path
) -> None:
    """Another job of the cluster that wants them waits for as long, and has them then."""
    running = search(tmp_path, unguarded.address, 60, 4)
    wait_until(lambda: len(found := steps_of(tmp_path)) == 4 and all(found.values()))
    (lock,) = tmp_path.glob("runs/*/lock")
    os.kill(json.loads(lock.read_text())["pid"], signal.SIGKILL)
    said, _ = running.communicate(timeout=PATIENCE_S)
    assert "the search begins on 4 atoms" in said
    assert other_job(unguarded, 2.0, "CPU") == {"free": 0, "ran": False}
    resumed = gpusched(tmp_path, "resume")
    said, _ = resumed.communicate(timeout=2 * PATIENCE_S)
    assert resumed.returncode == 0, said
    assert steps_of(tmp_path) == {f"{n:04}": [(1, k) for k in range(1, 61)] for n in range(4)}
    assert other_job(unguarded, PATIENCE_S, "CPU") == {"free": 4, "ran": True}
    wait_until(lambda: not unguarded.anchors())


@pytest.mark.usefixtures("_notice_losses_soon")
def test_a_search_goes_on_while_ray_dies_around_it(unguarded: RayCluster, tmp_path: Path) -> None:
    """Anchors, a raylet and the GCS are killed: no trial is lost, no step is taken twice. The cluster's last test."""
    running = search(tmp_path, unguarded.address, 60, 4)
    wait_until(lambda: len(found := steps_of(tmp_path)) == 4 and all(found.values()))
    for anchor in unguarded.anchors():
        anchor.kill()
    time.sleep(1.0)
    unguarded.kill(1, "raylet")
    time.sleep(2.0)
    unguarded.kill(0, "gcs_server")
    said, _ = running.communicate(timeout=2 * PATIENCE_S)
    assert running.returncode == 0, said
    assert steps_of(tmp_path) == {f"{n:04}": [(1, k) for k in range(1, 61)] for n in range(4)}

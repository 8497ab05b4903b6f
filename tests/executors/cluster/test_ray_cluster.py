"""The Ray bootstrap on real clusters: two raylets of ``ray.cluster_utils.Cluster`` on this machine.

Ray counts the GPUs that it is told of, so no GPU is needed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpusched.errors import DeviceError
from gpusched.executors.cluster.bootstrap import RayBootstrap
from tests.conftest import with_libraries
from tests.e2e.sandbox import PACKAGE, Sandbox
from tests.rig import PATIENCE_S, wait_until

pytestmark = with_libraries("ray", timeout_s=300)
TOKEN = "a-token-of-this-test-and-of-no-other"
OTHER_JOB = """
import json, ray, sys
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
free = ray.available_resources().get(sys.argv[3], 0)
ref = ray.remote(**{f"num_{sys.argv[3].lower()}s": 2})(lambda: None).remote()
done, _ = ray.wait([ref], timeout=float(sys.argv[2]))
named = ray.util.list_named_actors(all_namespaces=True)  # also those that Ray waits to start again
anchors = sum(one["namespace"].startswith("gpusched-") for one in named)
print(json.dumps({"free": free, "ran": bool(done), "anchors": anchors}))
"""
#: The process of a node: says its id and its devices, and stays until it is told to leave.
STAY = 'trap "exit 0" TERM; echo "$$ $1 $GIVEN"; while :; do sleep 0.2; done'


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


def other_job(cluster: RayCluster, limit_s: float) -> dict[str, Any]:
    """Have another job ask for two devices; return how many were free, whether it got them, and the anchors left."""
    environ = {**os.environ, "RAY_AUTH_MODE": cluster.mode, "RAY_AUTH_TOKEN": TOKEN}
    words = [sys.executable, "-c", OTHER_JOB, cluster.address, str(limit_s), "GPU"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")


class Staying(RayBootstrap):
    """A way to nodes whose processes only stay. Told to leave when a test is over."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._given |= {"command": ["/bin/sh", "-c", STAY], "env": {"GIVEN": "given"}}

    def words(self, node: str) -> list[str]:
        """Return what the newest process of a node has said; the shell of one that is killed says so, too."""
        log = self._shared / "cluster" / f"{node}.log"

        def said() -> list[str]:
            lines = log.read_text().splitlines() if log.exists() else []
            return [line for line in lines if line.endswith(" given")]

        wait_until(said)
        return said()[-1].split()


@pytest.fixture(autouse=True)
def _leave(tmp_path: Path) -> Iterator[None]:
    yield
    for log in tmp_path.glob("**/cluster/*.log"):
        for line in log.read_text().splitlines():
            if line.endswith(" given"):
                with suppress(ProcessLookupError):
                    os.kill(int(line.split()[0]), signal.SIGTERM)


# ---------------------------------------------------------------- two nodes of two GPUs each, and a token


@pytest.fixture(scope="module")
def guarded() -> Iterator[RayCluster]:
    made = RayCluster("1:2", "1:2", RAY_AUTH_MODE="token", CUDA_VISIBLE_DEVICES="5,2")
    yield made
    made.end()


@pytest.mark.usefixtures("token")
def test_what_is_reserved_is_taken_for_other_jobs_until_it_is_given_back(
    guarded: RayCluster, tmp_path: Path
) -> None:
    bootstrap = Staying(guarded.address, tmp_path / "one")
    offers = bootstrap.nodes()
    assert [offer.devices for offer in offers] == ["cuda:2,5"] * 2
    assert len({offer.name for offer in offers}) == 2
    assert other_job(guarded, 2.0) == {"free": 0, "ran": False, "anchors": 2}
    late = Staying(guarded.address, tmp_path / "two")
    assert late.nodes() == []
    assert {*late.refused.values()} == {"other jobs of the Ray cluster have its GPUs"}
    late.close()
    bootstrap.close()
    assert other_job(guarded, PATIENCE_S) == {"free": 4, "ran": True, "anchors": 0}


@pytest.mark.usefixtures("token")
def test_as_much_is_taken_as_is_asked_for_and_another_job_gets_the_rest(
    guarded: RayCluster, tmp_path: Path
) -> None:
    one = Staying(guarded.address, tmp_path / "one", kind="GPU", most=1, max_nodes=1)
    (offer,) = one.nodes()
    assert one.nodes() == [offer]
    two = Staying(guarded.address, tmp_path / "two")
    rest = {other.name: other.devices for other in two.nodes()}
    assert len(rest) == 2
    assert {offer.devices, rest[offer.name]} == {"cuda:2", "cuda:5"}
    for way in (one, two):
        way.close()
    assert other_job(guarded, PATIENCE_S)["ran"]


@pytest.mark.usefixtures("token")
def test_a_node_that_another_job_has_is_passed_over(guarded: RayCluster, tmp_path: Path) -> None:
    """With ``max_nodes: 1`` a search was refused beside a node that was free."""
    ways = [Staying(guarded.address, tmp_path / name, max_nodes=1) for name in ("one", "two")]
    (first,), (second,) = (way.nodes() for way in ways)
    assert first.name != second.name
    for way in ways:
        way.close()


@pytest.mark.usefixtures("token")
def test_a_node_without_the_search_s_folder_says_so(guarded: RayCluster, tmp_path: Path) -> None:
    way = Staying(guarded.address, tmp_path)
    shutil.rmtree(tmp_path / "cluster")
    assert way.nodes() == []
    (why,) = way.refused.values()
    assert why.startswith("OSError: [Errno 2] No such file or directory: ")
    assert why.endswith("all nodes must share --dir, as one user id")
    way.close()


@pytest.mark.usefixtures("token")
def test_a_process_outlives_its_anchor_and_its_bridge_and_a_resume_finds_the_same_nodes(
    guarded: RayCluster, tmp_path: Path
) -> None:
    first = Staying(guarded.address, tmp_path)
    offers = first.nodes()
    pid, devices, given = first.words(offers[0].name)
    assert (devices, given) == (offers[0].devices, "given")
    assert b"CUDA_VISIBLE_DEVICES" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert b"RAY_" not in Path(f"/proc/{pid}/environ").read_bytes()
    killed = guarded.anchors()
    assert len(killed) == 2
    for anchor in killed:
        anchor.kill()
    first.leave()
    again = Staying(guarded.address, tmp_path)
    assert {(o.name, o.devices) for o in again.nodes()} == {(o.name, o.devices) for o in offers}
    assert not {anchor.pid for anchor in guarded.anchors()} & {one.pid for one in killed}
    assert again.words(offers[0].name)[0] == pid, "a process of a node died with its anchor"
    os.kill(int(pid), signal.SIGKILL)
    wait_until(lambda: again.words(offers[0].name)[0] != pid, "the process to be started again")
    again.close()
    wait_until(lambda: not guarded.anchors())
    assert psutil.pid_exists(int(again.words(offers[0].name)[0]))


@pytest.mark.usefixtures("token")
def test_a_node_whose_process_has_left_is_given_back_and_taken_anew(
    guarded: RayCluster, tmp_path: Path
) -> None:
    """A search that was continued as soon as it was over had the node in its list, and no process there."""
    bootstrap = Staying(guarded.address, tmp_path)
    offers = _kept, left = bootstrap.nodes()
    pid = bootstrap.words(left.name)[0]
    os.kill(int(pid), signal.SIGTERM)
    wait_until(lambda: len(guarded.anchors()) == 1)
    given_back = {"free": 2, "ran": True, "anchors": 1}
    # Ray's own list of anchors comes behind the processes.
    wait_until(lambda: other_job(guarded, PATIENCE_S) == given_back)
    assert {offer.name for offer in bootstrap.nodes()} == {offer.name for offer in offers}
    wait_until(lambda: bootstrap.words(left.name)[0] != pid, "the process to be started again")
    bootstrap.close()
    wait_until(lambda: not guarded.anchors())


@pytest.mark.parametrize("token", ["", "another-token-altogether"])
def test_a_wrong_token_and_none_are_answered_with_what_to_do(
    guarded: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(DeviceError, match=r"(?i)token"):
        RayBootstrap(guarded.address, tmp_path)


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


@pytest.mark.usefixtures("_notice_losses_soon")
def test_nodes_join_and_are_lost_while_their_processes_live(
    unguarded: RayCluster, tmp_path: Path
) -> None:
    bootstrap = Staying(unguarded.address, tmp_path)
    first = bootstrap.nodes()
    assert [offer.devices for offer in first] == ["cpu:2"] * 2
    unguarded.add("3:0")
    (joined,) = wait_until(lambda: [one for one in bootstrap.nodes() if one not in first])
    assert joined.devices == "cpu:3"
    pid = int(bootstrap.words(joined.name)[0])
    anchors = unguarded.anchors()
    unguarded.kill(2, "raylet")
    wait_until(lambda: bootstrap.nodes() == first)
    assert psutil.pid_exists(pid)
    wait_until(lambda: sum(anchor.is_running() for anchor in anchors) == 2)
    bootstrap.close()
    wait_until(lambda: not unguarded.anchors())


def launches_of(box: Sandbox) -> list[list[tuple[int, int]]]:
    """Return (incarnation, step) of each trial's reports, in the order of its file."""
    numbers = [int(trial.name) for trial in box.runs.glob("*/trials/*")]
    return [[(row["i"], row["k"]) for row in box.lines(number)] for number in numbers]


@pytest.mark.usefixtures("_notice_losses_soon")
def test_a_search_continues_while_ray_dies_around_it(unguarded: RayCluster, tmp_path: Path) -> None:
    """Anchors, a raylet and the GCS are killed. The trials of the raylet's node continue elsewhere, no other is lost;
    the cluster's last test."""
    box = Sandbox(tmp_path)
    space = {"x": {"uniform": [0, 1]}, "step_s": 0.2}
    steps = {"name": "fifo", "R": 200}
    recipe = box.recipe("good.py", devices="auto", policy=steps, max_trials=4, space=space)
    places = {"PYTHONPATH": str(PACKAGE.parent), "GPUSCHED_JOURNALS": str(tmp_path)}
    running = box.start("run", recipe, "--cluster", unguarded.address, **places)
    wait_until(lambda: len(found := launches_of(box)) == 4 and all(found))
    for anchor in unguarded.anchors():
        anchor.kill()
    time.sleep(1.0)
    unguarded.kill(1, "raylet")
    wait_until(lambda: any(2 in dict(found) for found in launches_of(box)))
    unguarded.kill(0, "gcs_server")
    said = running.communicate(timeout=2 * PATIENCE_S)
    assert running.returncode == 0, said
    for found in launches_of(box):
        assert [launch for launch, _ in found] == sorted(launch for launch, _ in found)
        assert found[-1][1] == 200
    assert sum(found[-1][0] == 1 for found in launches_of(box)) == 2

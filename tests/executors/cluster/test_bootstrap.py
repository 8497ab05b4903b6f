"""Nodes by ssh, and nodes of a Slurm job: a real sshd, and a real Slurm of two nodes, on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpusched.core.commands import Launch
from gpusched.core.events import Reported, TrialExited
from gpusched.errors import DeviceError, InputError
from gpusched.executors.cluster.bootstrap import bootstrap_for
from tests.executors.cluster.bed import Bed, train
from tests.executors.contract import report_of, steps_of
from tests.rig import wait_until


def needs(*programs: str) -> pytest.MarkDecorator:
    gone = [name for name in programs if not shutil.which(name, path=PATH)]
    return pytest.mark.skipif(bool(gone), reason=f"{', '.join(gone)}: not installed here")


PATH = f"{os.environ['PATH']}:/usr/sbin"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def begin(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a server in the foreground, with a log of its own."""
    with (folder / "servers.log").open("ab") as log:
        environ = {**os.environ, "PATH": PATH}
        program = shutil.which(words[0], path=PATH)
        return subprocess.Popen([program or "", *words[1:]], stdout=log, stderr=log, env=environ)


def survives_its_process(bed: Bed, node: str) -> None:
    """Train on a node whose process is killed: another one is started, and adopts the trial."""
    trial = bed.rig.new_trial()
    bed.rig.executor.execute(Launch(trial, 1, (f"{node}/cpu:0",), train(10_000)))
    bed.rig.watch(report_of(trial, 3))
    (pid,) = [
        pid
        for pid in bed.node_pids(node)
        if psutil.Process(pid).cmdline()[1:3] == ["-m", "gpusched"]
    ]
    bed.signal([pid], signal.SIGKILL)
    last = steps_of(bed.rig.seen, trial)[-1]
    bed.rig.watch(report_of(trial, last + 50))
    steps = [event.step for event in bed.rig.seen if isinstance(event, Reported)]
    assert steps == list(range(1, len(steps) + 1)), "each once"
    assert not [event for event in bed.rig.seen if isinstance(event, TrialExited)]
    assert pid not in bed.node_pids(node)


# ---------------------------------------------------------------- ssh


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An sshd for ``box1`` and ``box2``; ``gone`` has no address."""
    folder = tmp_path_factory.mktemp("sshd")
    for key in ("host", "user"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(words, check=True)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    port = free_port()
    options = [f"-oAuthorizedKeysFile={folder}/user.pub", "-oStrictModes=no", "-oPidFile=none"]
    options += ["-oListenAddress=127.0.0.1", "-oUsePAM=no", f"-p{port}", f"-h{folder}/host"]
    server = begin(folder, "sshd", "-D", "-e", "-f/dev/null", *options)
    lines = ["Host gone", "HostName gone.invalid", "Host *", "HostName 127.0.0.1", f"Port {port}"]
    lines += [f"IdentityFile {folder}/user", "IdentitiesOnly yes"]
    lines += ["StrictHostKeyChecking no", f"UserKnownHostsFile {folder}/known"]
    (folder / "config").write_text("\n".join(lines))
    environ = pytest.MonkeyPatch()
    environ.setenv("GPUSCHED_SSH", f"ssh -F {folder}/config")
    ask = ["ssh", "-F", str(folder / "config"), "box1", "true"]
    wait_until(lambda: not subprocess.run(ask, capture_output=True, check=False).returncode)
    yield
    environ.undo()
    server.terminate()
    server.wait()


@needs("sshd", "ssh", "ssh-keygen")
@pytest.mark.usefixtures("sshd")
def test_hosts_train_and_a_host_out_of_reach_is_named(tmp_path: Path) -> None:
    bed = Bed(tmp_path, "ssh:gone,box1,box2", 60.0)
    try:
        (told,) = [text for text in bed.said if "is not used" in text]
        assert told.startswith("node gone is not used: ssh gone: ")
        assert "resolve" in told
        assert {device.id.partition("/")[0] for device in bed.executor.inventory()} == {
            "box1",
            "box2",
        }
        assert all(psutil.Process(pid).ppid() == 1 for pid in bed.node_pids("box1"))
        survives_its_process(bed, "box2")
        bed.executor.close()
        wait_until(lambda: not bed.node_pids())
    finally:
        bed.close()


@needs("sshd", "ssh", "ssh-keygen")
@pytest.mark.usefixtures("sshd")
def test_a_host_without_the_shared_folder_is_told_so(tmp_path: Path) -> None:
    bootstrap = bootstrap_for("ssh:box1", tmp_path / "elsewhere")
    with pytest.raises(DeviceError, match=r"ssh box1: .*elsewhere/cluster/box1.log"):
        bootstrap.start("box1", ["true"], {})


NOWHERE = ["ssh:", "ssh:a,a", "ssh:-oProxyCommand=x", "ssh:-oProxyCommand=x@a", "slurm", "slurm:x"]


@pytest.mark.parametrize("address", NOWHERE)
def test_an_address_without_nodes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(InputError, match=r"ssh:box1,box2|salloc or sbatch"):
        bootstrap_for(address, tmp_path)


# ---------------------------------------------------------------- Slurm

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
AuthInfo=socket={folder}/sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""
SLURM = ("munged", "slurmctld", "slurmd", "srun")


def slurm(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A job that has both nodes of a Slurm cluster."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    folder.chmod(0o755)
    (folder / "state").mkdir()
    text = CONFIG.format(
        host=socket.gethostname().partition(".")[0],
        folder=folder,
        ports=[free_port() for _ in range(3)],
    )
    (folder / "slurm.conf").write_text(text)
    environ = pytest.MonkeyPatch()
    environ.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    munge = [f"--key-file={folder}/key", f"--socket={folder}/sock", f"--pid-file={folder}/pid"]
    munge += [f"--log-file={folder}/munge.log", f"--seed-file={folder}/seed"]
    servers = [begin(folder, "munged", "--foreground", "--force", *munge)]
    wait_until((folder / "sock").exists)
    servers.append(begin(folder, "slurmctld", "-D"))
    servers += [begin(folder, "slurmd", "-D", "-N", node) for node in ("n0", "n1")]

    def is_up() -> bool:
        words = ["sinfo", "--noheader", "--format=%D %t"]
        said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
        return said.split() == ["2", "idle"]

    wait_until(is_up)
    number = slurm("sbatch", "-N2", "--parsable", "-o/dev/null", "--wrap", "sleep 600").strip()
    wait_until(lambda: slurm("squeue", "-h", "-tR", "-o%N", f"-j{number}").strip())
    yield number
    slurm("scancel", number)
    wait_until(lambda: not slurm("squeue", "-h").strip())
    for server in reversed(servers):
        server.terminate()
        server.wait()
    environ.undo()


@needs(*SLURM)
@pytest.mark.skipif(os.getuid() != 0, reason="slurmd needs root")
def test_the_nodes_of_a_job_train_by_a_step_on_each(tmp_path: Path, job: str) -> None:
    bed = Bed(tmp_path, f"slurm:{job}", 60.0)
    try:
        assert {device.id.partition("/")[0] for device in bed.executor.inventory()} == {"n0", "n1"}
        survives_its_process(bed, "n1")
        training = set(bed.all_pids("n1")) - set(bed.node_pids("n1"))
        assert training
        assert not any(b"SLURM_" in Path(f"/proc/{pid}/environ").read_bytes() for pid in training)
        bed.executor.close()
        assert len(slurm("squeue", "-h", "-s").splitlines()) == 1, (
            "the job's own step alone is left"
        )
    finally:
        bed.close()


@needs(*SLURM)
@pytest.mark.skipif(os.getuid() != 0, reason="slurmd needs root")
def test_a_job_that_is_over_is_named(tmp_path: Path, job: str) -> None:
    with pytest.raises(DeviceError, match=r"Slurm's job 9999 does not run|Invalid job id"):
        bootstrap_for("slurm:9999", tmp_path)
    assert bootstrap_for(f"slurm:{job}", tmp_path).nodes()


@needs(*SLURM)
@pytest.mark.skipif(os.getuid() != 0, reason="slurmd needs root")
@pytest.mark.usefixtures("job")
def test_of_an_array_the_task_with_the_arrays_own_number_has_its_node_alone(tmp_path: Path) -> None:
    """Slurm answers for all tasks when asked for that number."""
    words = ["sbatch", "--array=0-1", "-N1", "--parsable", "-o/dev/null"]
    array = slurm(*words, "--wrap", "sleep 600").strip()
    try:
        wait_until(lambda: len(slurm("squeue", "-h", "-tR", "-o%N", f"-j{array}").split()) == 2)
        assert len(bootstrap_for(f"slurm:{array}", tmp_path).nodes()) == 1
    finally:
        slurm("scancel", array)

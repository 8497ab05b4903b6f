"""Bootstraps find the nodes of a cluster and start one ordinary process on each; the rest is the cluster executor's.

    local:2        two nodes of this machine, of CPU slots that share its cores
    local:2x4      the same, of four slots each
    local:1@HOST   a node of this machine; the daemon listens at this address of it, where others may join by hand
    ssh:A,me@B     hosts as ssh knows them, with all their devices; GPUSCHED_SSH: the command, where not ``ssh`` alone
    slurm          the allocation that this process runs in (salloc, sbatch), with the devices that Slurm gave the job;
                   slurm:JOB: another one
    HOST:PORT      a Ray cluster (``ray.py``); auto: the one of this machine

No word of a bootstrap proves that a process has ended: a node is lost when its own line is silent.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from gpusched.errors import DeviceError, InputError
from gpusched.folder.files import private_folder

_LOCAL = re.compile(r"local:([1-9][0-9]?)(?:x([1-9][0-9]{0,3}))?(?:@(.+))?")
_PATIENCE_S = 30.0
"""Time that nodes which were told to leave have to tidy up, on a slow disk too; a killed one leaves its folder."""


CALL_S = 30.0
CONNECT_S = 10
_DETACHED = 'umask 077; log=$1; shift; exec setsid -f "$@" </dev/null >>"$log" 2>&1'
"""Starts a process outside ssh's process tree, with nothing of its connection."""
_KEPT = """
unset $(env | sed -n 's/^\\(SLURM_[A-Z0-9_]*\\)=.*/\\1/p')
while :; do
    "$@"; code=$?
    [ $code -eq 0 ] || [ $code -eq 2 ] && exit $code
    sleep 1
done
"""
"""Starts a node's process, and again until it has left (0), or another one is there (2): with the end of a step Slurm
kills all that it started, trials too. Some trainers would take their ranks for tasks of the step by its variables."""


class NodeOffer(Struct, frozen=True):
    """A machine that may be used. ``address``: the host by which the daemon and other nodes reach it.

    ``devices``: those that its process may use, as a recipe names them.
    """

    name: str
    address: str
    devices: str


class Bootstrap(Protocol):
    """A way to the nodes of a cluster. Calls may take seconds; they come from one thread at a time."""

    def nodes(self) -> list[NodeOffer]:
        """List the nodes there are; more may be there at a later call. Raises GpuschedError where none can be had."""
        ...

    def start(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        """Start a process on this node, outside the bootstrap's own process tree; ``env`` is added to its environment.

        Called again where the node is silent: the process itself sees to it that there is one at a time.
        Raises GpuschedError.
        """
        ...

    def interrupt(self) -> None:
        """End the call that is under way soon, as one that failed; called from another thread."""
        ...

    def close(self) -> None:
        """Give everything back. The nodes have been told to leave."""
        ...


def bootstrap_for(address: str, shared: Path, *, insecure: bool = False) -> Bootstrap:
    """Return the way to the cluster at ``address``. ``shared``: the experiment's folder, the same on every node.

    ``insecure``: accept a Ray cluster without a token.

    Raises InputError for an address of no known form, GpuschedError where the cluster cannot be used.
    """
    kind, _, rest = address.partition(":")
    if found := _LOCAL.fullmatch(address):
        nodes, host = int(found[1]), found[3] or "127.0.0.1"
        cpus = int(found[2]) if found[2] else max(1, len(os.sched_getaffinity(0)) // nodes)
        return LocalBootstrap(
            [NodeOffer(f"node{n}", host, f"cpu:{cpus}") for n in range(nodes)], shared
        )
    if kind == "local":
        raise InputError(
            f"cluster: {address!r}: write local:2 for two nodes of this machine, local:2x4 for four slots"
        )
    if kind in ("ssh", "slurm"):
        return SshBootstrap(rest, shared) if kind == "ssh" else SlurmBootstrap(rest, shared)
    from gpusched.executors.cluster.ray import RayBootstrap

    return RayBootstrap(address, shared, insecure=insecure)


class LocalBootstrap:
    """Nodes as processes of this machine, each with a log in the shared folder."""

    def __init__(self, offers: list[NodeOffer], shared: Path) -> None:
        self._offers = offers
        self._logs = shared / "cluster"
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def nodes(self) -> list[NodeOffer]:
        return self._offers

    def start(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        if name in self._started and self._started[name].poll() is None:
            return
        log = private_folder(self._logs) / f"{name}.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with os.fdopen(os.open(log, flags, 0o600), "ab") as out:
            self._started[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **env},
                cwd="/",
                start_new_session=True,
            )

    def interrupt(self) -> None:
        """Do nothing: no call takes long."""

    def close(self) -> None:
        for process in self._started.values():
            for end in (process.terminate, process.kill):
                try:
                    process.wait(_PATIENCE_S)
                except subprocess.TimeoutExpired:
                    end()
            process.wait()


class SshBootstrap:
    """Hosts by ssh. Raises InputError for a list that cannot be read, DeviceError without ssh."""

    def __init__(self, hosts: str, shared: Path) -> None:
        self._logs = shared / "cluster"
        self._command = shlex.split(os.environ.get("GPUSCHED_SSH", "ssh"))
        self._call: subprocess.Popen[str] | None = None
        self._offers: dict[str, tuple[str, NodeOffer]] = {}
        for host in hosts.split(","):
            name = host.rpartition("@")[2]
            if not re.fullmatch(r"(\w\S*@)?\w[\w.-]*", host) or name in self._offers:
                raise InputError(f"cluster: ssh:{hosts}: write each host once, as in ssh:box1,box2")
            known = dict(line.partition(" ")[::2] for line in self._ssh("-G", host).splitlines())
            self._offers[name] = (host, NodeOffer(name, known.get("hostname", name), "auto"))

    def nodes(self) -> list[NodeOffer]:
        return [offer for _, offer in self._offers.values()]

    def start(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        given = ["env", *(f"{key}={value}" for key, value in env.items())]
        words = ["sh", "-c", _DETACHED, "sh", str(self._logs / f"{name}.log"), *given, *argv]
        host, _ = self._offers[name]
        options = f"-oBatchMode=yes -oConnectTimeout={CONNECT_S} -oLogLevel=ERROR".split()
        self._ssh(*options, host, shlex.join(words))

    def interrupt(self) -> None:
        if (call := self._call) is not None:
            call.kill()

    def close(self) -> None:
        """Do nothing: the hosts were taken from nobody."""

    def _ssh(self, *words: str) -> str:
        self._call = _begin(*self._command, *words)
        try:
            return _answer(self._call)
        except DeviceError as error:
            host = words[-1] if words[0] == "-G" else words[-2]
            raise DeviceError(f"ssh {host}: {error}") from None


class SlurmBootstrap(LocalBootstrap):
    """Nodes of a running job, by a step on each; ``job``: its id, empty for the one that this process is part of.

    A step lives as long as its ``srun``, a process of this machine. Raises DeviceError.
    """

    def __init__(self, job: str, shared: Path) -> None:
        job = job or os.environ.get("SLURM_JOB_ID", "")
        if not job.isdecimal():
            raise InputError(
                "cluster: slurm: this shell has no allocation of Slurm; run gpusched within salloc or sbatch, or name "
                "a running job as in slurm:1234"
            )
        nodes_of = ("squeue", "--noheader", "--states=R", "--format=%A %N", f"--jobs={job}")
        told = dict(
            line.strip().partition(" ")[::2] for line in _answer(_begin(*nodes_of)).splitlines()
        )
        names = told.get(job)  # one task of an array has the array's number, and all are listed
        if not names:
            raise DeviceError(f"Slurm's job {job} does not run (squeue --jobs={job} shows it)")
        addresses = _answer(_begin("scontrol", "--oneliner", "show", "node", names))
        found = re.findall(r"NodeName=(\S+).*? NodeAddr=(\S+)", addresses)
        super().__init__([NodeOffer(name, address, "auto") for name, address in found], shared)
        self._job = job

    def start(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        step = ["srun", f"--jobid={self._job}", "--nodes=1", "--ntasks=1", f"--nodelist={name}"]
        step += ["--overlap", "--mem=0", "--cpu-bind=none"]  # all that the job has there
        super().start(name, [*step, "sh", "-c", _KEPT, "sh", *argv], env)


def _begin(*words: str) -> subprocess.Popen[str]:
    """Start a program. Raises DeviceError if the program is not installed."""
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise DeviceError(f"{words[0]} cannot be run here: {error.strerror}") from None


def _answer(process: subprocess.Popen[str]) -> str:
    """Return the output of a program at its end. Raises DeviceError where the program failed."""
    with process:
        try:
            said, complaint = process.communicate(timeout=CALL_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise DeviceError(f"no answer in {CALL_S:.0f} s") from None
    if process.returncode:
        raise DeviceError(" ".join(complaint.split()) or f"exit code {process.returncode}")
    return said

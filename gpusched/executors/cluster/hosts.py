"""Nodes reached by ssh, and the nodes of a Slurm allocation.

    ssh:box1,me@box2   hosts as ssh knows them; GPUSCHED_SSH: the command, where it is not ``ssh`` alone
    slurm              the allocation that this process runs in (salloc, sbatch); slurm:JOB: another one

A host is used with all devices that it has, a node of an allocation with those that Slurm gave the job.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

from gpusched.errors import DeviceError, InputError
from gpusched.executors.cluster.bootstrap import LocalBootstrap, NodeOffer

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

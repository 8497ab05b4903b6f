"""The one script of the tests of the live executor. Which scenario a trial plays is one of its hyperparameters.

Not a test. One script serves all of them, so that one warm server does too.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

FOLDER = Path(os.environ["GPUSCHED_DIR"], "trials", f"{int(os.environ['GPUSCHED_TRIAL']):04d}")
HPARAMS = json.loads((FOLDER / "hparams.json").read_text())["hparams"]
RANK = int(os.environ["RANK"])


def note(name: str, content: object = "") -> None:
    """Leave something for the test to find."""
    aside = FOLDER / f".note.{os.getpid()}"
    aside.write_text(json.dumps(content))
    aside.replace(FOLDER / name)


def train() -> None:
    """Report ``steps`` steps (of a real DDP step each, with ``ddp``); fail at ``fails_at``."""
    import gpusched

    trial = gpusched.init()
    if HPARAMS.get("ddp"):
        import torch

        net = trial.wrap(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        trial.track(net=net, optimizer=optimizer)
    else:
        trial.track(counter=Counter())
    for step in trial.steps(HPARAMS["steps"]):
        if HPARAMS.get("ddp"):
            optimizer.zero_grad()
            net(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
        if step + 1 == HPARAMS.get("fails_at"):
            raise ValueError(f"wrong on rank {RANK} at step {step + 1}")
        time.sleep(HPARAMS.get("pause_s", 0))
        trial.report(accuracy=0.1 * step)


class Counter:
    """A state to save without torch's models."""

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


def inspect_rank() -> None:
    """Write down what a rank can see of how it was started."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE")
    import random
    import threading

    print("to stdout")
    print("to stderr", file=sys.stderr)
    unclosed = (FOLDER / f"unclosed-{RANK}").open("w")
    unclosed.write("flushed at exit")
    note(
        f"seen-{RANK}",
        {
            "cwd": str(Path.cwd()),
            "env": {name: os.environ.get(name) for name in (*names, *HPARAMS.get("names", ()))},
            "cpus": sorted(os.sched_getaffinity(0)),
            "session": os.getsid(0) == os.getpid(),
            "stdin": sys.stdin.read(),
            "sigterm": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
            "random": random.random(),
            "threads": threading.active_count(),
            "title": Path("/proc/self/cmdline").read_bytes().strip(b"\0").decode(),
            "open": open_files(),
            "file_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "torch_threads": sys.modules["torch"].get_num_threads()
            if "torch" in sys.modules
            else 1,
            "cuda": "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized(),
        },
    )


def open_files() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(entry.readlink()))
    return sorted(found)


def orphans() -> None:
    """Leave processes behind that do all they can to stay: double fork, new session, no streams, SIGTERM ignored."""
    for index in range(HPARAMS["count"]):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if index % 2:
                    os.execv(sys.executable, [sys.executable, "-S", "-c", IGNORE_AND_SLEEP])
                os.closerange(0, 64)
                note(f"orphan-{index}", os.getpid())
                wait_for_ever()
            os._exit(0)
    while len(list(FOLDER.glob("orphan-*"))) < (HPARAMS["count"] + 1) // 2:
        time.sleep(0.005)
    if HPARAMS.get("stay"):
        note("ready")
        time.sleep(600)


IGNORE_AND_SLEEP = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


def stubborn() -> None:
    """Ignore SIGTERM, with a child that does as well."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-S", "-c", IGNORE_AND_SLEEP])
    note(f"ready-{RANK}", os.getpid())
    wait_for_ever()


def graceful() -> None:
    """Leave tidily on SIGTERM."""

    def on_term(*_: object) -> None:
        note("tidied")
        sys.exit(0)

    signal.signal(signal.SIGTERM, on_term)
    note(f"ready-{RANK}", os.getpid())
    wait_for_ever()


def abort_at_exit() -> None:
    """Say the last word on rank 0, then die of SIGABRT on all ranks."""
    if RANK == 0:
        say_last_word()
        note("done")
    while not (FOLDER / "done").exists():
        time.sleep(0.005)
    os.abort()


def linger_after_last_word() -> None:
    """Rank 0 says its last word; nobody leaves for ``tidy_s``, or before rank 0 gets SIGTERM and a moment more."""
    signal.signal(signal.SIGTERM, lambda *_: (note("told", True), signal.pause()))
    if RANK == 0:
        say_last_word()
    time.sleep(HPARAMS.get("tidy_s", 600))
    note(f"tidied-{RANK}", True)


def say_last_word() -> None:
    name = f"logs/{os.environ['GPUSCHED_INCARNATION']}/last-word.json"
    note(name, {"why": "yielded", "step": 4, "saved_step": 4})


def speak_nonsense() -> None:
    """Talk to the daemon by hand."""
    import socket

    line = socket.socket(socket.AF_UNIX)
    here = os.open(os.environ["GPUSCHED_DIR"], os.O_RDONLY)
    line.connect(f"/proc/self/fd/{here}/daemon.sock")
    hello = {
        "kind": "rank",
        "trial": int(os.environ["GPUSCHED_TRIAL"]),
        "incarnation": 1,
    }
    for frame in (hello, *HPARAMS["frames"]):
        line.sendall((frame if isinstance(frame, str) else json.dumps(frame)).encode() + b"\n")
    note("answer", line.recv(4096).decode())


def stuck_rank() -> None:
    """Rank ``stuck`` never comes to the report that the others wait in; with ``stops`` it is stopped instead."""
    import gpusched

    trial = gpusched.init()
    others = {FOLDER / f"reports-{n}" for n in range(int(os.environ["WORLD_SIZE"]))}
    others -= {FOLDER / f"reports-{HPARAMS['stuck']}"}
    for step in trial.steps():
        if step == 1 and HPARAMS["stuck"] == RANK:
            while not all(other.exists() for other in others):
                time.sleep(0.005)
            time.sleep(0.5)  # they are in the report by then: rank 0 waits for an answer to it
            note("stuck", os.getpid())
            if HPARAMS.get("stops"):
                os.kill(os.getpid(), signal.SIGSTOP)
            wait_for_ever()
        if step == 1:
            note(f"reports-{RANK}")
        trial.report(accuracy=float(step))


def wait_for_ever() -> None:
    while True:
        time.sleep(600)


def hostile() -> None:
    """A tree that does not want to go, chosen by ``seed``: every trick on its own and together."""
    import random

    rng = random.Random(HPARAMS["seed"])
    if rng.random() < 0.5:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(rng.choice([1, 2, 4, 64])):
        if os.fork() == 0:
            be_hostile(rng.choice(["orphan", "ignore", "stopped", "blocked", "forks", "clean"]))
    note("ready", os.getpid())
    if rng.random() < 0.2:
        os._exit(rng.choice([0, 1]))  # the leader goes first
    if rng.random() < 0.2:
        os.kill(os.getpid(), signal.SIGSTOP)
    wait_for_ever()


def be_hostile(how: str) -> None:
    if how == "orphan":
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif how == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "blocked":
        _reading, writing = os.pipe()
        while True:
            os.write(writing, b"x" * 65536)  # both ends are its own: it blocks for ever
    elif how == "forks":
        for _ in range(20):  # a family that outruns whoever counts it
            if os.fork():
                os._exit(0)
            time.sleep(0.01)
    elif how == "clean":
        os.execve(sys.executable, [sys.executable, "-S", "-c", IGNORE_AND_SLEEP], {})
    wait_for_ever()


def flood() -> None:
    """Print ``mib`` MiB of numbered lines as fast as it goes."""
    block = 1 << 20
    for number in range(HPARAMS["mib"]):
        line = f"block {number:6d} ".encode()
        os.write(1, line * (block // len(line) - 1) + b"end of the block\n")
    note("flooded", HPARAMS["mib"])


def segments() -> None:
    """Make shared memory the ways libraries do, say its names, and die or wait to be killed."""
    from multiprocessing import resource_tracker, shared_memory

    segment = shared_memory.SharedMemory(create=True, size=1 << 16)
    resource_tracker.unregister(f"/{segment.name}", "shared_memory")  # as if it was killed too
    torch_like = Path(f"/dev/shm/torch_{os.getpid()}_{os.getpid()}_7")
    torch_like.write_bytes(b"x" * 4096)
    chosen = Path(f"/dev/shm/gpusched-test-{os.getpid()}")
    chosen.write_bytes(b"x")
    note("segments", [segment.name, torch_like.name, chosen.name])
    if HPARAMS.get("dies"):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def finish() -> None:
    """Do nothing and end well."""


globals()[HPARAMS["scenario"]]()

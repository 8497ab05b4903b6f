"""Nonsense, floods, slow readers and half-open lines at the socket of a working daemon (reliability T13)."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import wait_until
from tests.torture.bed import Bed, MakeBed, count, percentile, times


class Attacker:
    """Opens lines and says what nobody should say; keeps some of them open."""

    def __init__(self, bed: Bed, seed: int) -> None:
        self.bed = bed
        self.rng = random.Random(seed)
        self.frames = 0
        self.kept: list[socket.socket] = []
        self._folder = os.open(bed.paths.root, os.O_PATH | os.O_DIRECTORY)

    def line(self) -> socket.socket:
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(0.5)
        try:
            line.connect(f"/proc/self/fd/{self._folder}/daemon.sock")
        except OSError:
            line.close()
            raise
        return line

    def close(self) -> None:
        for line in self.kept:
            line.close()
        self.kept.clear()
        os.close(self._folder)

    def attack(self, frames: int) -> None:
        """At least so many frames, over many lines."""
        until = self.frames + frames
        while self.frames < until:
            kind = self.rng.choice([self.stranger, self.impostor, self.client, self.half_open])
            with contextlib.suppress(OSError):
                kind()

    def send(self, line: socket.socket, frames: Iterator[bytes]) -> None:
        for data in frames:
            self.frames += 1
            line.sendall(data)

    def stranger(self) -> None:
        with self.line() as line:
            self.send(line, (self.nonsense() for _ in range(20)))

    def impostor(self) -> None:
        """Says it is a rank or a shim, of a trial that is not there, or of an incarnation that is over."""
        hello = {
            "kind": self.rng.choice(["rank", "shim"]),
            "trial": self.rng.choice([0, 1, 99, -1, 2**70, "0", None, 1.5]),
            "incarnation": self.rng.choice([0, 99, -5, 2**65, [], {}]),
            "pid": self.rng.choice([1, os.getpid(), -1, "x"]),
            "start_time": self.rng.choice([0, 1, None]),
        }
        with self.line() as line:
            self.send(line, iter([json.dumps(hello).encode() + b"\n"]))
            self.send(line, (self.nonsense() for _ in range(20)))

    def client(self) -> None:
        """Asks for what there is not, and does not read the answers."""
        with self.line() as line:
            questions = [
                {"verb": self.rng.choice(["view", "explain", "nothing", "follow", 7, None])},
                {"verb": "explain", "trial": self.rng.choice([-1, 10**30, "x", None, 0.5, True])},
                {"verb": "pause", "trial": self.rng.choice([-1, 10**30, "x", None])},
                {"tell": "x" * self.rng.choice([1, 10_000])},
            ]
            questions = [{"kind": "ask", **question} for question in questions]
            self.send(
                line,
                (json.dumps(self.rng.choice(questions)).encode() + b"\n" for _ in range(20)),
            )
            if self.rng.random() < 0.1:
                self.keep(line)

    def half_open(self) -> None:
        """Begins a frame and stays, or closes one direction."""
        with self.line() as line:
            self.send(line, iter([b'{"kind": "cli']))
            if self.rng.random() < 0.5:
                line.shutdown(socket.SHUT_WR)
            self.keep(line)

    def keep(self, line: socket.socket) -> None:
        self.kept.append(socket.socket(fileno=os.dup(line.fileno())))
        while len(self.kept) > 50:
            self.kept.pop(0).close()

    def nonsense(self) -> bytes:
        rng = self.rng
        return rng.choice(
            [
                lambda: rng.randbytes(rng.choice([1, 10, 1000])) + b"\n",
                lambda: b"[" * rng.choice([10, 3000, 60_000]) + b"\n",
                lambda: b'{"kind":"report","i":1,"k":1,"n":' + b"9" * 5000 + b"}\n",
                lambda: b'{"kind":"report","i":1,"n":1,"k":1e999,"m":{"score": NaN}}\n',
                lambda: b"x" * rng.choice([70_000, 200_000]),
                lambda: b"\n" * 50,
                lambda: b"\0\0\0\xff\n",
                lambda: b'{"kind":"saved","step":-1,"save_s":"x","size_bytes":{}}\n',
                lambda: b'{"kind":"exited","record":{"outcome":"finished"}}\n',
                lambda: '{"kind": "\ud800"}\n'.encode("utf-8", "surrogatepass"),
            ]
        )()


def memory_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def ask_as_a_good_client(bed: Bed) -> float:
    began = time.monotonic()
    assert bed.ask("view") is not None
    return time.monotonic() - began


def bombard(make_bed: MakeBed, frames: int, seed: int) -> None:
    print(f"seed {seed}")
    bed = make_bed(devices="cpu:2", policy={"name": "fifo", "R": 100_000}, max_trials=2)
    bed.begin(reports=6)
    pid = bed.daemon.pid if bed.daemon is not None else 0
    memory, descriptors = memory_kib(pid), count(f"/proc/{pid}/fd")
    attacker = Attacker(bed, seed)
    waits, began = [], time.monotonic()
    while attacker.frames < frames:
        before = bed.reports()
        attacker.attack(min(500, frames))
        waits.append(ask_as_a_good_client(bed))
        wait_until(lambda b=before: bed.reports() > b, "trials to train on")
    took_s = time.monotonic() - began
    attacker.close()
    wait_until(lambda: count(f"/proc/{pid}/fd") <= descriptors + 4, "lines to be closed")
    grown = memory_kib(pid) - memory
    print(
        f"{attacker.frames} frames in {took_s:.0f} s; a good client waited at most {max(waits) * 1000:.0f} ms "
        f"(p99 {percentile(waits, 0.99) * 1000:.0f}); the daemon grew by {grown} KiB"
    )
    assert grown < 50 * 1024
    assert "Traceback" not in bed.log()
    again = bed.finish()
    assert {trial.incarnation for trial in again.state.trials.values()} == {1}


def test_a_thousand_frames_of_nonsense(make_bed: MakeBed) -> None:
    bombard(make_bed, 1000, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_frames_of_nonsense(make_bed: MakeBed) -> None:
    bombard(make_bed, times(100_000), seed=2)

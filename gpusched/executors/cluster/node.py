"""The process of one node: this machine's local executor behind the line to the daemon.

``python -m gpusched.executors.cluster.node SHARED --name NAME``. ``SHARED`` is the experiment's folder, which all nodes
share. What must be on this machine's own disk lies in a folder of the node (``line.home_of``): socket, epoch, logs; the
folder of trials, ``worker.json`` and the notes of written paths are links to the shared ones there, so that a trial
finds all in ``GPUSCHED_DIR``.

A lost line is to a node what the daemon's death is on one machine: the executor is closed, trials go on, the newest
daemon is dialled (``cluster.json``), and another executor adopts what is left.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gpusched.core.decisions import Launch
from gpusched.core.events import Event, Reported
from gpusched.errors import GpuschedError, InputError
from gpusched.executors.base import Setting
from gpusched.executors.cluster import frames
from gpusched.executors.cluster.line import Keys, dial, home_of, is_over
from gpusched.executors.hub import Hub
from gpusched.executors.local.executor import TorchrunExecutor
from gpusched.executors.local.settings import devices_of
from gpusched.folder.files import private_folder
from gpusched.folder.lock import Epoch, Lock, read_fence
from gpusched.folder.paths import ExperimentPaths
from gpusched.processes.claim import Hunt
from gpusched.processes.identity import incarnations_left
from gpusched.protocol import Report
from gpusched.recipe.recipe import Recipe

BEAT_S = 1.0
SILENT_S = float(os.environ.get("GPUSCHED_NODE_LOST_S", "3")) * 3
"""Silence after which a line is given up. Longer than the daemon's limit: a new line costs a new warm server."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 0.5
CANNOT_PAUSE_S = 5.0
"""Time before a node that could run no trial tries again."""
LEAVE_AFTER_S = 900.0
"""Time without any daemon after which a node's process ends; its trials have left before."""
HUNT_S = 30.0
BACKLOG_BYTES = 1 << 30
"""Reports that a daemon has missed, while it reads them; more would end the line, and all of its trials with it."""
LINKS = ("trials", "worker.json", "written")


class Node:
    """This machine as a node. ``devices``: those it may use, as a recipe names them.

    Raises InputError where a process of this node is there already.
    """

    def __init__(self, shared: Path, name: str, devices: str = "auto") -> None:
        self.shared = ExperimentPaths(shared)
        self.name = name
        self.devices = devices
        self.keys = Keys(shared)
        self.process = secrets.token_hex(8)
        self.paths = ExperimentPaths(home_of(shared, name))
        try:
            self._lock = Lock.take(self.paths.lock)
        except InputError:
            raise InputError(
                f"node {name} takes part in {shared.name} already: another process of this machine is that node; give "
                f"this one a name of its own (--name), or end that one"
            ) from None
        self.is_over = False
        private_folder(self.shared.written)
        for link in LINKS:
            with suppress(FileExistsError):
                (self.paths.root / link).symlink_to(shared / link)

    def run(self) -> None:
        """Serve one daemon after the other, until one says that the search is over."""
        pause_s, heard_s = FIRST_PAUSE_S, time.monotonic()
        while not self.is_over and time.monotonic() - heard_s < LEAVE_AFTER_S:
            line = dial(self.keys)
            if line is None:
                if is_over(self.keys):
                    self.is_over = True
                    break
                time.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
                continue
            began_s, session = time.monotonic(), Session(self, line)
            session.run()
            heard_s, pause_s = time.monotonic(), FIRST_PAUSE_S
            if session.why_not:
                print(session.why_not, flush=True)
                self._rest(CANNOT_PAUSE_S)
            elif heard_s - began_s < BEAT_S:  # hung up on at once: a daemon of another version, say
                self._rest(LONGEST_PAUSE_S)
        if self.is_over and not incarnations_left(self.paths.root):
            shutil.rmtree(self.paths.root, ignore_errors=True)

    def _rest(self, pause_s: float) -> None:
        """Wait before another try, but not beyond the end of the search."""
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s and not is_over(self.keys):
            time.sleep(LONGEST_PAUSE_S)

    def recipe_here(self, resolved: dict[str, Any]) -> Recipe:
        """Return the recipe with the devices of this node. Raises GpuschedError where it cannot run here."""
        recipe = Recipe.from_resolved(resolved)
        if not (script := recipe.cwd / recipe.script).is_file():
            raise InputError(
                f"{script} is not there: put the script into a folder that all nodes share"
            )
        if isinstance(recipe.devices, str) and recipe.devices.startswith("cpu"):
            return recipe  # so many slots on each node
        return replace(recipe, devices=self.devices)


class Session:
    """The life of one line: a local executor from the welcome on, closed when the line is."""

    def __init__(self, node: Node, line: Any) -> None:
        self._node = node
        self._began_s = time.monotonic()
        self._hub = Hub(node.paths.socket)
        self._peer = self._hub.adopt(line)
        self._peer.be_client(BACKLOG_BYTES)
        self._peer.hear(frames.to_node, self._said)
        self._executor: TorchrunExecutor | None = None
        self._seqs: dict[int, int] = {}
        self._heard_s = self._beat_s = 0.0
        #: Why this node can run no trial; empty where it can.
        self.why_not = ""

    def now(self) -> float:
        """Seconds since the line was made: the daemon stamps events with its own clock."""
        return time.monotonic() - self._began_s

    def run(self) -> None:
        """Serve until the line is lost, or silent."""
        self._peer.send(frames.NodeHello(self._node.name, self._node.process))
        try:
            while not self._peer.closed and self.now() - self._heard_s < SILENT_S:
                self._turn()
        except GpuschedError as error:
            self.why_not = str(error)
            self._peer.send(frames.Cannot(self.why_not))
        finally:
            if self._executor is not None:
                self._executor.close()
            self._hub.close()

    def _turn(self) -> None:
        if self._executor is None:
            self._hub.turn(BEAT_S)
            return
        events = self._executor.poll(self._beat_s + BEAT_S)
        self._tell(events)
        if self.now() >= self._beat_s + BEAT_S:
            self._beat_s = self.now()
            self._peer.send(frames.Beat(list(self._executor.readings())))

    # ------------------------------------------------------------------ what the daemon says

    def _said(self, frame: Any) -> None:
        self._heard_s = self.now()
        if isinstance(frame, frames.Welcome):
            self._open(frame)
        elif isinstance(frame, frames.Cannot):
            self.why_not = frame.why
            self._peer.close()
        elif isinstance(frame, frames.Bye):
            self._node.is_over = True
            self._peer.close()
        elif self._executor is not None:
            self._obey(self._executor, frame)

    def _obey(self, executor: TorchrunExecutor, frame: Any) -> None:
        match frame:
            case frames.Reconcile():
                self._reconcile(executor, frame)
            case frames.Do():
                command = frame.read()
                if isinstance(command, Launch):
                    self._seqs[command.trial] = frame.seq
                    if self._is_fenced(command):
                        return
                executor.execute(command)
            case frames.Expect(trial=trial, launch=launch, interval_s=interval_s):
                executor.expect(trial, launch, interval_s)
            case frames.Ack(trial=trial, incarnation=incarnation, seq=seq):
                report = Report(incarnation, seq, 0)
                executor.acknowledge(Reported(at=0.0, trial=trial, report=report, metric=None))
            case frames.Readmit(device=device):
                executor.readmit(device, partial(self._answer, device))
            case frames.LetGo(device=device):
                try:
                    executor.let_go(device)
                except GpuschedError as error:
                    self._say(str(error))
            case _:
                pass  # a beat

    def _is_fenced(self, command: Launch) -> bool:
        """Whether this node was given up after the launch was asked for: it slept meanwhile."""
        return command.incarnation <= read_fence(self._node.paths.trial(command.trial).fence)

    def _answer(self, device: str, why: str) -> None:
        self._peer.send(frames.Answered(device, why))

    def _say(self, text: str) -> None:
        self._peer.send(frames.Said(text))

    def _open(self, welcome: frames.Welcome) -> None:
        """Make the executor, open the devices, and show that this node writes where the daemon reads."""
        node = self._node
        recipe = node.recipe_here(welcome.recipe)
        proof = self._prove()
        setting = Setting(
            paths=node.paths,
            recipe=recipe,
            hub=self._hub,
            clock=self.now,
            epoch=Epoch(node.paths.root, 0).number,
            say=self._say,
            seq_of=lambda trial: self._seqs.get(trial, 0),
            node=node.name,
        )
        self._executor = TorchrunExecutor(setting, devices_of(recipe, node.paths.root, ()))
        self._peer.send(frames.Joined(list(self._executor.inventory()), proof))

    def _prove(self) -> str:
        """Write, link and rename in the shared folder, as trials will. Raises GpuschedError where that cannot be."""
        proof, path = secrets.token_hex(8), self._node.keys.proof(self._node.name)
        aside, linked = path.with_suffix(".tmp"), path.with_suffix(".link")
        step = "written"
        try:
            aside.write_text(proof)
            step = "linked"
            linked.unlink(missing_ok=True)
            linked.hardlink_to(aside)
            linked.unlink()
            step = "renamed"
            aside.replace(path)
            step = "written"
            probe = self._node.shared.trials / f".probe-{self._node.name}"
            probe.write_text(proof)
            probe.unlink()
        except OSError as error:
            raise InputError(
                f"{self._node.shared.root}: files cannot be {step} here ({error.strerror}): all nodes need to write in "
                f"the experiment's folder; look at how it is mounted, or choose another with --dir"
            ) from None
        return proof

    def _reconcile(self, executor: TorchrunExecutor, frame: frames.Reconcile) -> None:
        """End what should not be here, find out about what should, and have devices proven clean."""
        live = {(one.trial, one.incarnation) for one in frame.live}
        for trial, incarnation in incarnations_left(self._node.paths.root) - live:
            _, left = Hunt(self._node.paths, trial, incarnation).end(HUNT_S)
            if left:
                raise GpuschedError(f"{left} of trial {trial} cannot be killed")
            self._say(f"ended what was left of trial {trial}, launch {incarnation}")
        for one in frame.live:
            self._seqs[one.trial] = one.last_seq
        events = executor.reconcile(frame.live)
        for device, reason in frame.kept_out.items():
            executor.keep_out(device, reason)
        self._tell(events)
        self._peer.send(frames.Reconciled())

    def _tell(self, events: Sequence[Event]) -> None:
        for frame in frames.Happened.of(events):
            self._peer.send(frame)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of a node's process."""
    parser = argparse.ArgumentParser(prog="python -m gpusched.executors.cluster.node")
    parser.add_argument("shared", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--devices", default="auto")
    args = parser.parse_args(argv)
    os.umask(0o077)
    try:
        Node(args.shared, args.name, args.devices).run()
    except GpuschedError as error:
        print(f"{time.strftime('%F %T')} {error}", flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

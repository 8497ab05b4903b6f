"""The cluster's executor: a local executor on each node, behind one line each; commands are routed by device.

    command ──▶ the node that its devices name ──line──▶ the node's local executor (``node.py``)
    events  ◀── restamped with this daemon's clock ◀── the same line

* Devices are called ``node/device``, and a node is an island: a trial is on one node.
* The trials of a node that is given up (``members.py``) are lost. A fence is raised for each of them first, so that no
  process of theirs writes any more (``folder/lock.py``); while that fails, the trial is not told of, as it would be
  launched beside one that may still write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from gpusched.core.commands import Command, ConfirmRelease, KeepBest, Kill, Launch, Save, Yield
from gpusched.core.events import CheckpointSaved, Event, Reported, TrialExited
from gpusched.devices.base import Device, Reading
from gpusched.executors.base import LiveTrial
from gpusched.executors.cluster.bootstrap import Bootstrap, bootstrap_for
from gpusched.executors.cluster.line import Ack, Happened
from gpusched.executors.cluster.members import BEAT_S, Members
from gpusched.executors.cluster.nodes import JoinedNode, NodeTrial, node_of
from gpusched.executors.live import LOST_LAUNCH_S, LiveExecutor, Setting
from gpusched.folder.files import private_folder
from gpusched.folder.lock import write_fence
from gpusched.folder.reports import reports_after


class ClusterExecutor(LiveExecutor):
    """See ``LiveExecutor``. ``bootstrap``: the way to the nodes; closed with the executor."""

    def __init__(self, setting: Setting, bootstrap: Bootstrap) -> None:
        super().__init__(setting)
        self.members = Members(
            setting,
            bootstrap,
            self._timers,
            emit=self._events.append,
            heard=self._heard,
            lost=self._lost,
        )
        self._listed: tuple[Device, ...] | None = None
        #: Of each trial, the node that it was last launched on.
        self._homes: dict[int, JoinedNode] = {}
        #: Incarnations of nodes that were given up whose fence could not be raised yet.
        self._unfenced: list[tuple[JoinedNode, NodeTrial]] = []

    def inventory(self) -> tuple[Device, ...]:
        if self._listed is None:
            self._listed = self.members.open(self._wait)
        return self._listed

    def execute(self, command: Command) -> None:
        match command:
            case Launch():
                self._launch(command)
            case Yield() | Save() | Kill():
                if (node := self._home(command.trial, command.incarnation)) is not None:
                    node.ask(command)
            case ConfirmRelease(devices):
                for name in {node_of(device): None for device in devices}:
                    node = self.members.nodes[name]
                    if node.state != "lost":
                        node.release(device for device in devices if node_of(device) == name)
            case KeepBest():
                self._keep_best(command)
            case _:
                pass  # a sampler is the driver's

    def acknowledge(self, report: Reported) -> None:
        node = self._home(report.trial, report.incarnation)
        if node is not None:
            node.send(Ack(report.trial, report.incarnation, report.seq))

    def reconcile(self, live: Sequence[LiveTrial]) -> Sequence[Event]:
        """Tell each node which trials should live there, and wait for its answer; without an answer they are lost."""
        for node in self.members.nodes.values():
            node.trials = {}
        for one in live:
            node = self._homes[one.trial] = self.members.node(node_of(one.devices[0]))
            node.trials[one.trial] = NodeTrial(one)
        self.members.reconcile(self._wait)
        return self._told()

    def close(self) -> None:
        """Let go: the nodes' processes end, trials live on as long as without a daemon, and machines are given back."""
        self.members.close()

    # ------------------------------------------------------------------ for the daemon

    def keep_out(self, device: str, reason: str) -> None:
        self.members.node(node_of(device)).kept_out[device] = reason

    def readings(self) -> Sequence[Reading]:
        return [reading for node in self.members.nodes.values() for reading in node.readings]

    # ------------------------------------------------------------------ trials

    def _home(self, trial: int, incarnation: int) -> JoinedNode | None:
        """Return the node on which this incarnation is."""
        node = self._homes.get(trial)
        found = node.trials.get(trial) if node is not None else None
        return node if found is not None and found.live.incarnation == incarnation else None

    def _launch(self, command: Launch) -> None:
        if self._home(command.trial, command.incarnation) is not None:
            return
        node = self._homes[command.trial] = self.members.nodes[node_of(command.devices[0])]
        paths = self._paths.trial(command.trial)
        why = f"node {node.name} was lost" if node.state == "lost" else ""
        try:  # nodes look at the fence before anything is written
            private_folder(paths.root)
            write_fence(paths.fence, 0)
        except OSError as error:
            why = f"{error.filename or paths.root} cannot be written ({error.strerror})"
        if why:
            about = command.trial, command.incarnation, why, True
            self._timers.after(LOST_LAUNCH_S, partial(self._end_as_lost, *about))
        else:
            node.launch(command, self._setting.seq_of(command.trial))

    def _end_as_lost(self, trial: int, incarnation: int, error: str, unbegun: bool) -> None:
        self._events.append(
            TrialExited(
                at=self.now(),
                trial=trial,
                incarnation=incarnation,
                outcome="lost",
                error=error,
                unbegun=unbegun,
            )
        )

    # ------------------------------------------------------------------ nodes

    def _heard(self, node: JoinedNode, frame: Happened) -> None:
        if node.state == "lost":
            return
        if (event := node.take(frame, self.now())) is not None:
            if isinstance(event, TrialExited):
                del node.trials[event.trial]
            self._events.append(event)

    def _lost(self, node: JoinedNode) -> None:
        """Give up the trials of a node."""
        is_trying = bool(self._unfenced)
        self._unfenced += [(node, trial) for trial in node.trials.values()]
        node.trials = {}
        if not is_trying:
            self._fence()

    def _fence(self) -> None:
        """Raise the fence of each lost incarnation, and tell of the end behind it; again and again until all stand.

        A node that is back does not replace a fence: a line that comes late could still be acted on.
        """
        for node, trial in self._unfenced[:]:
            live, is_unbegun = trial.live, trial.unsent is not None
            fence, why = self._paths.trial(live.trial).fence, f"node {node.name} was lost"
            try:
                write_fence(fence, live.incarnation)
            except OSError as error:
                self.members.complain(
                    f"trial {live.trial} waits: node {node.name} may still write to it, as {fence} cannot be written "
                    f"({error.strerror}); trying again"
                )
                continue
            self._unfenced.remove((node, trial))
            self._events += self._last_words(live)
            self._end_as_lost(live.trial, live.incarnation, why, is_unbegun)
        if self._unfenced:
            self._timers.after(BEAT_S, self._fence)

    def _last_words(self, live: LiveTrial) -> Iterator[Event]:
        """Yield what the files of an incarnation say and its node has not: reports, and a newer checkpoint."""
        paths, now = self._paths.trial(live.trial), self.now()
        for report in reports_after(paths.reports, live.last_seq):
            if report.incarnation == live.incarnation:
                metric = report.metric(self._setting.recipe.metric)
                yield Reported(at=now, trial=live.trial, report=report, metric=metric)
        step = paths.newest_checkpoint()
        if step > live.saved_step:
            yield CheckpointSaved(
                at=now, trial=live.trial, incarnation=live.incarnation, step=step, save_s=0.0
            )


def make(setting: Setting) -> ClusterExecutor:
    """Make the executor for the cluster that the recipe names. Raises GpuschedError."""
    return ClusterExecutor(setting, bootstrap_for(setting.recipe, setting.paths.root, setting.say))

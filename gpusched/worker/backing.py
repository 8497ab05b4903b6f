"""Everything that stands behind a rank: its line to the daemon, its reports, its checkpoints, the ranks before it.

Under gpusched rank 0 alone speaks to the daemon and watches the script's files. In a plain run reports are printed, and
there is a folder for checkpoints where ``GPUSCHED_CHECKPOINTS`` names one.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gpusched.folder.lock import Fence
from gpusched.folder.reports import ReportLog
from gpusched.protocol import GO, Go, Metric, Remark, Report
from gpusched.worker.channel import Channel
from gpusched.worker.checkpoint import Restorable
from gpusched.worker.context import Context
from gpusched.worker.endings import say
from gpusched.worker.files import Files
from gpusched.worker.group import Call, Group
from gpusched.worker.handover import Successor
from gpusched.worker.leaving import NEVER, Leaving
from gpusched.worker.onlooker import Onlooker
from gpusched.worker.reports import Reporter, clean_metrics, shown
from gpusched.worker.saving import Saver
from gpusched.worker.training import Training


class Backing:
    """Parts that a trial's rank has, each None where it has none."""

    def __init__(self, context: Context, group: Group, training: Training) -> None:
        self._context, self._group, self._training = context, group, training
        self._channel: Channel | None = None
        self._reporter: Reporter | None = None
        self.files: Files | None = None
        self.saver: Saver | None = None
        self.successor: Successor | None = None
        self.onlooker: Onlooker | None = None
        word, keep, capture = None, 2, training.capture
        if context.paths is not None and context.experiment is not None:
            paths, number = context.paths, context.incarnation
            fence = Fence(context.fence, number)
            if context.rank == 0:
                root, leave = context.experiment.root, paths.leave(number)
                self._channel = Channel(root, context.trial, number, leave)
                claims, notes_reads = context.experiment.written, context.is_rehearsal
                self.files = Files(root, claims, paths.own, context.trial, notes_reads=notes_reads)
                atexit.register(self._tell_shared_files)
                if context.waits is not None:
                    self.files.look_on()
                word = paths.last_word(number)
            if context.waits is not None:
                self.successor = Successor(context.waits, group, self._channel, context.trial)
            if self._channel is not None:
                log = partial(ReportLog, paths.reports, number, context.known_seq, say)
                self._reporter = Reporter(log, self._channel, self.successor, fence)
            folder, more = paths.checkpoints, (context.trial, fence)
            self.saver = Saver(group, folder, keep, self._channel, context.seed, capture, *more)
            if context.is_rehearsal:
                seen, power = paths.seen(number, context.rank), context.settings.lr_power
                self.onlooker = Onlooker(seen, training, context.world_size, power)
        elif context.checkpoints is not None:
            self.saver = Saver(group, context.checkpoints, keep, None, context.seed, capture)
        self.leaving = Leaving(group, training, word, self.saver, self._reporter)

    def connect(self, take_gpu: Callable[[], object]) -> None:
        """Tell the daemon that all ranks have joined; a prestart is not due yet, and waits before ``take_gpu``."""
        if self.successor is None:
            if self._channel is not None:
                self._channel.connect()
        elif self._context.device_kind == "cuda":
            self.successor.guard_gpu(take_gpu)

    def restore(self) -> Restorable | None:
        """Return the state to go on from; a prestart waits for the ranks before it. May raise SystemExit."""
        found: Restorable | None = None
        stale: list[str] = []
        if self.successor is not None:
            found = self.successor.wait()
            stale = self.files.stale() if self.files is not None else []
            if self._group.share(Call.RESTORE, bool(stale))[0]:
                self.successor.confirm()
                self._leave_to_begin_again(found or self._newest(), stale)
        return found or self._newest()

    def _newest(self) -> Restorable | None:
        return self.saver.newest() if self.saver is not None else None

    def _leave_to_begin_again(self, found: Restorable | None, stale: list[str]) -> None:
        """Leave, to be launched again from the same checkpoint: this prestart has read an older state than that."""
        if stale:
            self.remark(
                f"begins again: it was set up while the ranks before it still trained, and looked at {stale[0]} before "
                f"they wrote it for the last time. Keep that state in trial.track, trial.state or "
                f"trial.checkpoint_dir, or say `prestart: false` in the recipe"
            )
        step = self.leaving.reported_step = found.step if found is not None else None
        self.leaving.say("yielded", step)
        raise SystemExit(0)

    def report(self, step: int, step_time_s: float, metrics: Mapping[str, Any]) -> Go:
        """Report on rank 0; return on every rank what rank 0 was told, and take its step."""
        shared = self._tell_shared_files()
        if self.onlooker is not None:
            self.onlooker.reported(step, metrics, shared)
        go: Go = "continue"
        clean: dict[str, Metric] = {}
        if self._context.rank == 0:
            clean = clean_metrics(metrics, self._context.settings.metric)
            report = Report(0, 0, step, step_time_s, clean)  # numbered by the trial's file
            if self._reporter is None:
                go = self._print(report)
            else:
                go = self._reporter.report(report)
                if go == "save" and self.saver is not None and self.saver.is_writing:
                    go = "continue"  # the disk is behind: the next best model is saved, not every one
        code, said = self._group.share(Call.REPORT, GO.index(go), step)
        self._training.reported(int(said))
        self.leaving.scored(self._score(clean))
        return GO[int(code)]

    def _print(self, report: Report) -> Go:
        """Show a report where no daemon takes it; answer as a search would that ends at ``max_steps``."""
        print(shown(report), flush=True)
        most = self._context.settings.max_steps
        if most is not None and report.step >= most and not self._training.is_looping:
            return "leave" if self.saver is None else "yield"
        is_worth_saving = self.saver is not None and self.saver.is_worth_saving()
        return "save" if is_worth_saving else "continue"

    def _score(self, metrics: Mapping[str, Metric]) -> float:
        """The metric that the recipe searches by, turned so that more is better; the worst where it is not finite."""
        settings = self._context.settings
        value = metrics.get(settings.metric or "")
        if not isinstance(value, int | float):
            return NEVER
        return float(value) if settings.mode == "max" else -float(value)

    def _tell_shared_files(self) -> list[tuple[str, bool]]:
        """Tell which paths this trial has written that another one has too."""
        found = self.files.collisions() if self.files is not None and self.files.written else []
        for line, _ in found:
            self.remark(line)
        return found

    def remark(self, text: str) -> None:
        """Tell whoever looks at the trial's log, and whoever looks at the search."""
        say(text)
        if self._channel is not None:
            self._channel.tell(Remark(text[:2000]))

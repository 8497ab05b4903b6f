"""The backing of a rank: its line to the daemon, its reports and checkpoints, and its ways out of the script.

All ranks do the same; rank 0 alone speaks to the daemon and touches the disk. A trial that cannot save does not leave.
In a plain run reports are printed and nothing is saved.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpusched import failpoints
from gpusched.folder.lock import Fence
from gpusched.folder.reports import ReportLog
from gpusched.protocol import GO, Go, Remark, Report, Why
from gpusched.worker import endings
from gpusched.worker.channel import Channel, clean_metrics, shown
from gpusched.worker.context import Context
from gpusched.worker.endings import leave_word, say, write_error_file
from gpusched.worker.group import Call, Group, RanksDisagree
from gpusched.worker.saving import FILES_SHARE, Saver, Where
from gpusched.worker.training import Training

REPORTS_WAITED = 2
"""After so many reports it is said what keeps a trial from doing what it was asked for."""

END_PATIENCE_S = 10.0
"""How long a rank 0 that is done waits for the others to come to their end, before it saves without them."""


class Backing:
    """One rank's reports, saves and ways out. ``saver`` is None where there is no folder to save in."""

    def __init__(self, context: Context, group: Group, training: Training) -> None:
        self._context, self._group, self._training = context, group, training
        self._pid = os.getpid()
        self._fence = Fence(context.fence, context.incarnation) if context.fence else None
        self.channel: Channel | None = None
        self._log: ReportLog | None = None
        self._word: Path | None = None
        self.saver: Saver | None = None
        #: Whether the last word is said.
        self.has_left = False
        self._asked: Go = "continue"
        #: Reports since then, and what was remarked.
        self._waited = 0
        self._remarked: set[str] = set()
        #: The script asks ``should_yield`` and leaves by itself.
        self.in_charge = False
        #: The script writes checkpoints itself (``checkpoint_dir``): none is made without its files.
        self.writes_files = False
        #: The last step whose files are committed, or on their way there; and one that the disk refused.
        self._files_step = self._refused_step = -1
        #: Time that the script last took to write its files, and when it had.
        self._files_s = self._files_at_s = 0.0
        #: ``should_yield`` was answered "yes" before the script has saved.
        self._is_promised = False
        if context.paths is None or context.experiment is None:
            return
        paths, number = context.paths, context.incarnation
        if context.rank == 0:
            root = context.experiment.root
            self.channel = Channel(root, context.trial, number, paths.leave(number))
            self._log = ReportLog(paths.reports, number, context.known_seq, say)
            self._word = paths.last_word(number)
        self.saver = Saver(
            group, paths.checkpoints, self.channel, context.seed, training.capture, self._fence
        )
        atexit.register(self._end)

    def remark(self, text: str, about: str = "") -> None:
        """Tell whoever looks at the trial's log or at the search, once ``about`` the same matter. Rank 0 speaks."""
        if (about or text) in self._remarked:
            return
        self._remarked.add(about or text)
        if self._group.rank == 0:
            say(text)
        if self.channel is not None:
            self.channel.tell(Remark(text[:2000]))

    # ------------------------------------------------------------------ reports

    def report(self, step: int, began_s: float, metrics: Mapping[str, Any]) -> None:
        """Report on rank 0, take its step on every rank, and do what rank 0 was told. May raise SystemExit.

        Raises:
            TypeError: A metric is not a number.
            ValueError: The report is too large, or lacks the recipe's metric.
        """
        go: Go = "continue"
        if self._context.rank == 0:
            clean = clean_metrics(metrics, self._context.settings.metric)  # waits for a GPU
            took_s = round((time.monotonic() - began_s) / (step - self._training.step), 6)
            report = Report(0, 0, step, took_s, clean, self._training.whole_length(step))
            go = self._send(report)  # numbered by the trial's file
        if self._context.world_size > 1:
            code, step = map(int, self._group.share(Call.REPORT, GO.index(go), step))
            go = GO[code]
        self._training.reported(step)
        self._waited = self._waited + 1 if self._asked in ("save", "yield") else 0
        if self._waited == REPORTS_WAITED and (why := self._why_it_waits()):
            self.remark(why)
        if go != "continue":
            self._act(go)

    def _send(self, report: Report) -> Go:
        """Write and send a report; return the daemon's answer, ``continue`` without a daemon. A plain run prints it."""
        if self.channel is None or self._log is None or (saver := self.saver) is None:
            if not self._training.has_reported:
                say("outside a search nothing is saved: save the model yourself")
            print(shown(report), flush=True)
            most, is_looping = self._context.settings.max_steps, self._training.is_looping
            return "leave" if most and report.step >= most and not is_looping else "continue"
        if self._fence is not None and self._fence.wait():
            return "leave"
        endings.commit_before_sigterm(saver.finish)
        self._log.append(report)
        failpoints.reach("report.written")
        go = self.channel.report(report)
        failpoints.reach("report.answered")
        if go == "hold" and self.writes_files:  # files are written or left out, not held
            since_s = time.monotonic() - self._files_at_s
            go = "save" if self._files_s <= FILES_SHARE * since_s else "continue"
        if go == "save" and saver.is_writing:
            return "continue"  # the disk is behind: the next best model is saved, not every one
        return "continue" if go == "hold" and not saver.may_hold() else go

    # ------------------------------------------------------------------ leaving

    def _why_it_waits(self) -> str:
        """Say what keeps the trial from what it was asked for some reports ago; empty: nothing that it should not."""
        asked = "the search has asked this trial to leave, which waits until"
        if self.writes_files:
            why = f"{asked} trial.checkpoint_dir() has saved a step: ask trial.should_save() after each report"
            return why if self._asked == "yield" else ""
        if self.in_charge:
            return f"{asked} the script looks: ask trial.should_yield() after each report, and end where it is True"
        return (
            "the search has asked this trial to save or to leave, which waits for the end of the body of "
            "trial.steps(), as that reports several times: report once in the body, or give its data to trial.loader "
            "or trial.prepare, with which a trial may leave in the middle of an epoch"
        )

    def _act(self, go: Go) -> None:
        """Do what the scheduler says, now or (inside ``steps()``) at the end of the body. May raise SystemExit."""
        is_save = go in ("hold", "save")
        if self._asked == "yield" and is_save:
            return
        script_saves = self.writes_files or (self.in_charge and not self._training.tracked)
        is_for_script = script_saves and go in ("save", "yield")
        training, most = self._training, self._context.settings.max_steps
        # Over an endless loader every report is in the middle of an epoch, and the body's last.
        is_last = training.has_one_report_each or (most is not None and training.step >= most)
        at_boundary = training.is_looping and (not training.mid_epoch or (is_last and not is_save))
        if is_for_script or at_boundary or (self.in_charge and not is_save):
            self._asked = go
        elif self._carry_out(go, self._where_in_body()):
            raise SystemExit(0)

    def _carry_out(self, go: Go, where: Where | None = None) -> bool:
        """Do what was asked for; return whether the trial leaves. One whose checkpoint the disk refuses trains on.

        ``where``: the step and the iteration that the checkpoint goes on with; without it those of the training.
        """
        saver, where = self.saver, where or (self._training.step, self._training.iteration)
        if go in ("hold", "save"):
            if saver is not None:
                (saver.hold if go == "hold" else saver.save_behind)(where)
            return False
        if go == "leave":
            self._say_goodbye()
            return True
        if go == "yield" and saver is not None and saver.save(where) and self._say_goodbye():
            return True
        self._asked = "continue"
        return False

    def at_end_of_body(self, *, is_over: bool) -> bool:
        """Do what was asked for at this step; return whether the loop is to end without the trial's being over.

        ``is_over``: this was the last iteration. What the search asked for is then done by the script's own end.

        Raises:
            SystemExit: The trial leaves, and the script is not in charge.
        """
        if not self.has_left:
            asked, self._asked = self._asked, "continue"
            if is_over or (self.writes_files and asked == "save"):
                return False
            if asked in ("hold", "save", "yield") and self._training.has_changed:
                self.remark(
                    "the model is trained on after trial.report(..) in the body of trial.steps(): what is saved is the "
                    "model at the body's end, and another than the one that was scored. Report after training"
                )
            is_of_files = self.writes_files and asked == "yield"
            if not (self._leave_with_files() if is_of_files else self._carry_out(asked)):
                return False
        if not self.in_charge:
            raise SystemExit(0)
        return True

    def should_save(self) -> bool:
        """Tell whether a checkpoint of this step is wanted that the script has not written yet."""
        self.writes_files = True
        step = self._training.step
        is_wanted = self._asked in ("save", "yield") or step == self._training.length
        return self.saver is not None and is_wanted and self._files_step != step

    def when_asked(self) -> bool:
        """Answer whether to leave; save first, unless the script does that itself."""
        self.in_charge = True
        if self.has_left or self._is_promised:
            return True
        script_saves = self.writes_files or not self._training.tracked
        if script_saves and self._asked == "yield" and self.saver is not None:
            step = self._training.step
            if self._files_step == step:
                return self._leave_with_files()
            if self._refused_step != step:
                self._is_promised = True
            return self._is_promised
        return self._asked in ("leave", "yield") and self._carry_out(
            self._asked, self._where_in_body()
        )

    def _where_in_body(self) -> Where:
        """Return where a checkpoint goes on that is made in the body of ``trial.steps`` after its report."""
        training = self._training
        is_done = not training.mid_epoch or (
            training.iteration > 0 and training.has_one_report_each
        )
        return training.step, training.iteration + (training.is_looping and is_done)

    @contextmanager
    def files(self) -> Iterator[Path]:
        """Give the script a folder, and commit a checkpoint with it when the script has written to it."""
        self.writes_files = True
        saver = self.saver
        folder = saver.open_folder() if saver is not None else None
        if saver is None or folder is None:
            with TemporaryDirectory(prefix="gpusched-") as aside:
                yield Path(aside)
            self._refused_step = self._training.step
            return
        began_s = time.monotonic()
        yield folder
        saver.close_folder(folder, is_all=not self._training.tracked)
        self._files_at_s = time.monotonic()
        self._files_s = self._files_at_s - began_s
        saver.save_behind(self._where_in_body(), folder)
        self._files_step = self._training.step
        if self._asked == "save":
            self._asked = "continue"
        leaves_here = self._is_promised or not (self.in_charge or self._training.is_looping)
        if self._asked != "yield" or not leaves_here:
            return
        if self._leave_with_files():
            if not self.in_charge:
                raise SystemExit(0)
        elif self._is_promised:
            raise OSError(f"the checkpoint of step {self._files_step} could not be written")

    def save_final(self) -> None:
        """Save the last state of a script that comes to its own end."""
        saver = self.saver
        if saver is None or not self._training.tracked or self.writes_files:
            return
        if saver.begun_step != self._training.step or not saver.settle():
            saver.save((self._training.step, self._training.iteration))

    def _leave_with_files(self) -> bool:
        """Leave if the files of this step are committed; until then the trial trains on, still asked to leave."""
        saver, has_files = self.saver, self._files_step == self._training.step
        if saver is not None and has_files and saver.settle() and self._say_goodbye():
            return True
        self._asked = "yield"
        return False

    def _say_goodbye(self) -> bool:
        """Leave the last word; return whether the disk has it, on all ranks. All ranks call it."""
        saved_step = None
        if self.saver is not None:
            self.saver.finish()  # the checkpoint being written, or held, may be the best model there is
            if self.saver.saved_step == self._training.step:
                saved_step = self.saver.saved_step
        is_said = self._say("yielded", saved_step)
        self.has_left = bool(self._group.share(Call.YIELD, is_said)[0])
        return self.has_left

    def _say(self, why: Why, saved_step: int | None) -> bool:
        """Leave the last word, once and on rank 0. False if the disk refuses."""
        if self._word is None or self.has_left:
            return True
        step = self._training.step if self._training.has_reported else None
        return leave_word(self._word, why, step, saved_step)

    # ------------------------------------------------------------------ end of the interpreter

    def _end(self) -> None:
        saver = self.saver
        if saver is None or os.getpid() != self._pid:
            return
        try:
            saver.finish()
            if not self.has_left and not endings.has_failed():
                self._save_at_the_end(saver)
        finally:
            is_promised = self._is_promised and not endings.has_failed()
            if endings.is_known_good() or is_promised:
                self._say("yielded" if is_promised else "finished", saver.saved_step)

    def _save_at_the_end(self, saver: Saver) -> None:
        """Save the model as it was last reported, of a script that is over by itself, if no checkpoint has it yet.

        The script must be over on all ranks, or this one has made fewer calls than they.
        """
        step, training = self._training.step, self._training
        save = training.has_reported and saver.saved_step != step and not self.writes_files
        if save and training.has_changed:
            say(f"step {step} is not saved: the model was trained on after its last report")
            save = False
        try:
            self._group.patience_s = min(self._group.patience_s, END_PATIENCE_S)
            save = bool(self._group.share(Call.END, save)[0])
        except Exception as error:
            if isinstance(error, RanksDisagree) and error.calls:
                why = f"RanksDisagree: {error}"
                endings.mark(good=False)
                write_error_file(why, why)
                say(why)
                return
            saver.work_alone()  # another rank takes its time to end, or the process groups are down
        if save:
            try:
                saver.save((training.step, training.iteration))
            except Exception as error:  # sharded parameters, say, whose process group is gone
                say(f"the last state (step {step}) cannot be saved: {error}")

"""Leaving, and saving on the way: on the scheduler's word, or at the script's own end.

All ranks do the same; rank 0 alone touches the disk. A trial that cannot save does not leave.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from gpusched.protocol import Go
from gpusched.worker import endings
from gpusched.worker.endings import Why, leave_word, say, watch_endings, write_error_file
from gpusched.worker.group import Call, Group, RanksDisagree
from gpusched.worker.reports import Reporter
from gpusched.worker.saving import Saver
from gpusched.worker.training import Training

NEVER = float("-inf")


class Leaving:
    """Ways out of a script. ``saver`` and ``reporter`` are None where nobody listens."""

    def __init__(
        self,
        group: Group,
        training: Training,
        word: Path | None,
        saver: Saver | None,
        reporter: Reporter | None,
    ) -> None:
        self._group = group
        self._training = training
        self._word = word
        self._said: Why | None = None
        #: The step reported last, None before the first; and what the end of the interpreter means.
        self.reported_step: int | None = None
        self._at_exit: Why = "finished"
        self._saver = saver
        self._reporter = reporter
        self._pid = os.getpid()
        self._asked: Go = "continue"
        #: The best score of this incarnation, the step it was reported at, and what its model was then.
        self._best = NEVER
        self._best_step = -1
        self._best_version = 0
        #: The script asks ``should_yield`` and leaves by itself.
        self.in_charge = False
        #: The script writes checkpoints itself (``checkpoint_dir``): none is made without its files.
        self.writes_files = False
        #: Something of the script is in its checkpoints, or the script has said that it has nothing to save.
        self.has_state = False
        #: The last step whose files are committed, or on their way there; and one that the disk refused.
        self._files_step = self._refused_step = -1
        #: ``should_yield`` was answered "yes" before the script has saved.
        self._is_promised = False
        if word is not None:
            watch_endings()
        if saver is not None:
            atexit.register(self._end)

    @property
    def has_left(self) -> bool:
        """Whether the last word is said."""
        return self._said is not None

    def scored(self, score: float) -> None:
        """Remember the step just reported, and whether it is the best of this incarnation; more is better."""
        self.reported_step = self._training.step
        if score > self._best:
            self._best, self._best_step = score, self._training.step
            self._best_version = self._training.version

    def act(self, go: Go) -> None:
        """Do what the scheduler says, now or (inside ``steps()``) at the end of the body. May raise SystemExit."""
        if go == "continue" or (self._asked == "yield" and go == "save"):
            return
        script_saves = self.writes_files or (self.in_charge and not self._training.tracked)
        if script_saves and go in ("save", "yield"):
            self._asked = go
            return
        at_boundary = self._training.is_looping and not self._training.mid_epoch
        if at_boundary or (self.in_charge and go != "save"):
            self._asked = go
        elif go == "save":
            self._save_behind()
        elif go == "leave" or self._save_to_leave():
            self._say_goodbye()
            raise SystemExit(0)

    def at_end_of_body(self) -> bool:
        """Do what was asked for at this step; whether to leave the loop."""
        if self.has_left:
            return True
        asked, self._asked = self._asked, "continue"
        if self.writes_files and asked in ("save", "yield"):
            return asked == "yield" and self._leave_with_files()
        if asked == "save":
            self._save_behind()
        elif asked == "leave" or (asked == "yield" and self._save_to_leave()):
            self._say_goodbye()
            return True
        return False

    def should_save(self) -> bool:
        """Tell whether a checkpoint of this step is wanted that the script has not written yet."""
        self.writes_files = True
        return self._asked in ("save", "yield") and self._files_step != self._training.step

    def when_asked(self) -> bool:
        """Answer whether to leave; save first, unless the script does that itself."""
        self.in_charge = True
        if self.has_left or self._is_promised:
            return True
        script_saves = self.writes_files or not self._training.tracked
        if script_saves and self._asked == "yield" and self._saver is not None:
            step = self._training.step
            if self._files_step == step:
                return self._leave_with_files()
            if self._refused_step != step:
                self._is_promised = True
                self._at_exit = "yielded"
            return self._is_promised
        if self._asked == "leave" or (self._asked == "yield" and self._save_to_leave()):
            self._say_goodbye()
            return True
        return False

    @contextmanager
    def files(self) -> Iterator[Path]:
        """Give the script a folder, and commit a checkpoint with it when the script has written to it."""
        self.writes_files = True
        saver = self._saver
        folder: Path | None = None
        if saver is not None:
            self._count()
            folder = saver.open_folder()
        if saver is None or folder is None:
            with TemporaryDirectory(prefix="gpusched-") as aside:
                yield Path(aside)
            self._refused_step = self._training.step
            return
        yield folder
        self._group.exchange(Call.FILES)  # every rank has written its files
        step, iteration = self._training.where
        where = step, iteration + (self._training.is_looping and not self._training.mid_epoch)
        if self._asked != "yield":
            saver.save_behind(where, folder)
            self._files_step = step
            self._asked = "continue" if self._asked == "save" else self._asked
        elif saver.save(where, script_folder=folder):
            self._files_step = step
            if self._is_promised or not (self.in_charge or self._training.is_looping):
                left = self._leave_with_files()
                if left and not self.in_charge:
                    raise SystemExit(0)
        else:
            self._refused_step = step
            if self._is_promised:
                raise OSError(f"the checkpoint of step {step} could not be written")

    def save_final(self) -> None:
        """Save the last state of a script that comes to its own end."""
        saver = self._saver
        if saver is None or not self._training.tracked or self.writes_files:
            return
        self._count()
        if saver.begun_step != self._training.step or not saver.settle():
            saver.save(self._training.where)

    # ------------------------------------------------------------------ inside

    def _count(self) -> None:
        """Wait until this incarnation counts; one that does not may save nothing."""
        if self._reporter is not None:
            self._reporter.settle()

    def _warn_once(self) -> None:
        """Say, before the first empty checkpoint, that a later launch has nothing to go on from."""
        if not self.has_state and self._group.rank == 0:
            say(self._training.usage.stateless(self._training.step, resumed=False))
        self.has_state = True

    def _save_behind(self) -> None:
        self._warn_once()
        if self._saver is not None:
            self._saver.save_behind(self._training.where)

    def _save_to_leave(self) -> bool:
        """Save, twice if need be, and say so. False: the disk refuses one of them, so the trial goes on."""
        saver = self._saver
        self._warn_once()
        if saver is not None:
            where = self._training.where
            is_saved = saver.save(where, hand_over=True) or saver.save(where)
            if is_saved and self._group.share(Call.YIELD, self._say_goodbye())[0]:
                return True
        self._asked = "continue"
        return False

    def _leave_with_files(self) -> bool:
        """Leave if the files of this step are committed; until then the trial goes on, and is still asked to leave."""
        saver = self._saver
        is_committed = (
            self._files_step == self._training.step and saver is not None and saver.settle()
        )
        if is_committed and self._group.share(Call.YIELD, self._say_goodbye())[0]:
            return True
        self._asked = "yield"
        return False

    def _say_goodbye(self) -> bool:
        if self._saver is not None:
            self._saver.wait()  # the checkpoint being written may be the best model there is
        saved = self._saver is not None and self._saver.saved_step == self._training.step
        return self.say("yielded", self._training.step if saved else None)

    def say(self, why: Why, saved_step: int | None) -> bool:
        """Say the last word, once. False if the disk refuses."""
        if self._said is None and self._word is not None:
            self._count()
            if not leave_word(self._word, why, self.reported_step, saved_step):
                return False
        self._said = self._said or why
        return True

    def _end(self) -> None:
        saver = self._saver
        if saver is None or os.getpid() != self._pid or endings.has_failed():
            return
        try:
            if not self.has_left:
                self._save_at_the_end(saver)
        finally:
            if not endings.has_failed():
                self.say(self._at_exit, saver.saved_step)

    def _save_at_the_end(self, saver: Saver) -> None:
        """Save the last state of a script that is over by itself, if it is the best and no checkpoint has it yet.

        The script must be over on all ranks, or this one has made fewer calls than they.
        """
        self._count()
        save = self._has_unsaved_best(saver)
        try:
            save = self._group.end(save=save)
        except RanksDisagree as disagreement:
            if disagreement.calls:
                why = f"RanksDisagree: {disagreement}"
                endings.mark_failed()
                write_error_file(why, why)
                say(why)
            return
        except Exception:
            if not save:
                return
            saver.work_alone()
        if save:
            try:
                saver.save(self._training.where)
            except Exception as error:  # sharded parameters, say, whose process group is gone
                say(f"the last state (step {self._training.step}) cannot be saved: {error}")

    def _has_unsaved_best(self, saver: Saver) -> bool:
        """Tell whether the script's last report is its best, of the model as it is now, and has no checkpoint."""
        step = self._training.step
        if self._best_step != step:
            return False
        saver.wait()
        if saver.saved_step == step:
            return False
        if self.writes_files:
            say(
                f"step {step} is the best so far and has no checkpoint: ask trial.should_save() after each "
                f"trial.report(..), and save inside trial.checkpoint_dir()"
            )
            return False
        if self._training.version != self._best_version:
            say(f"step {step} is not saved: the model was changed after its last trial.report(..)")
            return False
        return True

"""Checkpoints: when a trial is asked for one, and which becomes the best model."""

from __future__ import annotations

from dataclasses import replace

from gpusched.core.commands import Command, Save
from gpusched.core.state import State
from gpusched.core.trial import NEVER, RUNNING, BestCheckpoint, TrialRecord


class Saves:
    """Asks trials of one search for checkpoints, by ``commands``."""

    def __init__(self, state: State, commands: list[Command]) -> None:
        self._state = state
        self._commands = commands

    def ask_for_best(self, trial: TrialRecord) -> None:
        """Have a step saved that is the new best, unless saving eats too much training time.

        A trial that leaves saves in any case. Otherwise a search in which every step is a new best would do nothing but
        save: so not more often than ``best_every_s``, and not more than ``save_share`` of the trial's time. In between
        the trial puts a copy aside, which it commits after a while, or when it ends: it is asked for one only if
        none holds a better one.
        """
        state, rules = self._state, self._state.rules
        if trial.after is not None:
            if not trial.after.save:
                trial.after = replace(trial.after, save=True)
                self._commands.append(Save(trial.id, trial.incarnation))
            return
        has_just_saved = state.now - trial.saved_at < trial.save_s / rules.save_share
        has_just_asked = state.now - state.best_asked_at < rules.best_every_s
        if not has_just_saved and (state.best is None or not has_just_asked):
            state.best_asked_at = state.save_asked_at[trial.id] = state.now
            self._commands.append(Save(trial.id, trial.incarnation))
        elif trial.score > state.held_score:
            state.held_by, state.held_score = trial.id, trial.score
            self._commands.append(Save(trial.id, trial.incarnation, hold=True))

    def ask_if_due(self, trial: TrialRecord, every_s: float) -> None:
        """Have a running trial saved that has trained for ``every_s`` without it: a machine may die.

        A trial that was asked and has committed nothing (its disk refused) is asked again after as long: it may still
        be writing.
        """
        state = self._state
        pause_s = max(every_s, trial.save_s / state.rules.save_share)
        unsaved_s = state.now - max(trial.saved_at, trial.up_at or 0.0)
        unasked_s = state.now - state.save_asked_at.get(trial.id, NEVER)
        is_due = min(unsaved_s, unasked_s) >= pause_s
        if is_due and trial.state is RUNNING and not trial.doom:
            state.save_asked_at[trial.id] = state.now
            self._commands.append(Save(trial.id, trial.incarnation))

    def committed(self, trial: TrialRecord, step: int, save_s: float) -> None:
        """Note that a checkpoint of ``step`` is on disk: it may be the best model there is."""
        state = self._state
        trial.saved_step, trial.saved_at, trial.save_s = step, state.now, save_s
        state.longest_save_s = max(state.longest_save_s, save_s)
        metric = next((value for at, value in reversed(trial.curve) if at == step), None)
        if metric is None or metric != metric:
            return
        score = metric * state.rules.sign
        if state.best is None or score > state.best.score:
            atoms = trial.trained_atoms
            state.best = BestCheckpoint(trial.id, step, score, metric, atoms, state.now)
            self._commands.append(state.best.command)

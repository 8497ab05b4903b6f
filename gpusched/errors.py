"""Every error a user can see, each with its exit code.

A message says where, what, and what to do. ``main`` prints it and leaves with the class's code; a traceback is shown
only with ``--debug``. Exit codes (stable): 0 done; 1 internal; 2 the user's input; 3 no trial succeeded; 4 devices;
5 damaged state; 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence


class GpuschedError(Exception):
    """Base of all errors that are shown to a user as one message. ``exit_code``: another than the class's."""

    exit_code = 1

    def __init__(self, message: str, *, exit_code: int | None = None) -> None:
        super().__init__(message)
        if exit_code is not None:
            self.exit_code = exit_code


class InputError(GpuschedError):
    """Something the user wrote or typed is wrong."""

    exit_code = 2


class RecipeError(InputError):
    """One or more problems of a recipe, all of them at once.

    ``problems`` are complete lines (``digits.yaml:7: space.lr: ...``).
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class NoTrialSucceeded(GpuschedError):
    """Failure of every trial; the search has no model."""

    exit_code = 3


class DeviceError(GpuschedError):
    """Devices are missing, busy or broken."""

    exit_code = 4


class DamagedState(GpuschedError):
    """The experiment's folder cannot be trusted: damaged, or written by another version."""

    exit_code = 5


class Fenced(GpuschedError):
    """A newer daemon has taken the experiment over while this one slept; this daemon must touch nothing any more."""

    def __init__(self, mine: int, newest: int) -> None:
        super().__init__(f"daemon {newest} has taken over; this one, daemon {mine}, leaves")

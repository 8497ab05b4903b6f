"""Other people's tools: one run a trial in TensorBoard, MLflow or W&B, live or afterwards.

A logger runs in a child process that reads the journal beside the daemon, so that it can neither slow nor break
a search. ``log_to: [tensorboard, {mlflow: {uri: ..}}, {mine.py:MyLogger: {..}}]``: options are keyword arguments of a
class derived from ``Logger``. Packages offer loggers by entry points in the group ``gpusched.loggers``.

* ``follow``: from the journal to a logger, each point once, and the daemon's end of the processes
* ``tools``: TensorBoard, MLflow and W&B, imported in the child alone
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from gpusched import plugins
from gpusched.errors import InputError

GROUP = "gpusched.loggers"
#: Loggers by name in a recipe, which is that of the package they need: the class in ``tools``.
_OWN = {"tensorboard": "TensorBoard", "mlflow": "Mlflow", "wandb": "Wandb"}


@dataclass(frozen=True, slots=True)
class Search:
    """The experiment whose trials are logged. ``began_s``: seconds since 1970; ``mode``: max or min."""

    name: str
    folder: Path
    metric: str
    mode: str
    began_s: float

    def run_name(self, trial: int) -> str:
        """Name a trial among the runs of every experiment."""
        return f"{self.folder.name}/{trial:04d}"


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a trial. ``at_s``: seconds since 1970.

    ``values``: the reported numbers, those that are not finite too, ``gpusched/atoms`` and ``gpusched/step_time_s``.
    """

    step: int
    at_s: float
    values: Mapping[str, float]


class Logger(ABC):
    """A tool that shows one run a trial.

    A method may raise: the logger is then made anew after a while, and ``begin`` says what the tool has already, so
    that each point is there once whatever happened between.
    """

    def __init__(self, search: Search) -> None:
        self.search = search

    @abstractmethod
    def begin(self, trial: int, hparams: Mapping[str, object]) -> int:
        """Open the run of a trial, or the one that is there; return the last step in the tool, -1 for a new run."""

    @abstractmethod
    def write(self, trial: int, points: Sequence[Point]) -> None:
        """Hand points over to the run of a trial; their steps rise."""

    @abstractmethod
    def end(self, trial: int, state: str, best: float | None) -> None:
        """Tell a trial's state at the search's end (``completed``, ``stopped``, ..) and its best metric, if any."""

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of the tool; nothing comes after."""


def names() -> list[str]:
    """Return the names of all loggers, those of installed packages last."""
    return [*_OWN, *plugins.installed(GROUP)]


def load(name: str) -> type[Logger]:
    """Return the class of a logger.

    Raises KeyError for an unknown name, InputError for a class that cannot be used or whose package is missing.
    """
    if name not in _OWN:
        return plugins.load(name, GROUP, Logger)
    if find_spec(name) is None:
        raise InputError(f"{name} is not installed; install it: pip install {name}")
    found: type[Logger] = getattr(import_module("gpusched.loggers.tools"), _OWN[name])
    return found

"""Place of this process: which trial, which rank of how many, with which hyperparameters and settings.

Read from the environment (``docs/contracts.md``) and from files; nothing here starts, joins or imports anything. Three
ways to be run, told apart by the environment alone: ``GPUSCHED_DIR`` is set (gpusched), ``RANK`` is set (plain
torchrun), neither (alone).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusched.errors import DamagedState
from gpusched.folder.paths import ExperimentPaths, TrialPaths
from gpusched.text import flat
from gpusched.worker.hparams import HParams, from_command_line, merged

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Settings:
    """Part of the recipe that a worker needs (``worker.json``). The defaults hold without a recipe."""

    metric: str | None = None
    seed: int = 0
    batch: str = "per_atom"
    lr_power: float = -1.0
    max_steps: int | None = None
    #: Whether the recipe leaves trials several sizes.
    is_resized: bool = True
    #: Hyperparameters that the recipe's ``args`` pass to the script.
    passed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Identity of this rank. ``paths`` is None where no experiment stands behind it."""

    rank: int
    local_rank: int
    world_size: int
    hparams: HParams
    seed: int
    settings: Settings
    #: Hyperparameters that the recipe's space has drawn for this trial, by their dotted names.
    drawn: Mapping[str, object] = field(default_factory=dict)
    trial: int = 0
    incarnation: int = 0
    device_kind: str | None = None
    experiment: ExperimentPaths | None = None
    paths: TrialPaths | None = None
    #: Of the last report that the daemon has, where the trial's own file has fewer.
    known_seq: int = 0
    #: On a node of a cluster: the trial's fence (``folder/lock.py``).
    fence: Path | None = None
    #: In a rehearsal the launch from which on trials that are moved train in vain (``onlooker.py``); 0: no rehearsal.
    still_from: int = 0
    #: This process was started by a rank, and is not a rank itself.
    is_helper: bool = False

    @property
    def unread(self) -> list[str]:
        """Names of hyperparameters that were drawn, and that the script has neither read nor been passed."""
        passed = tuple(f"{name}." for name in self.settings.passed)  # a choice may be of maps
        return self.hparams.unread(n for n in self.drawn if not f"{n}.".startswith(passed))


def read_context(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    defaults: Mapping[str, object] | None = None,
) -> Context:
    """Find out where this process stands.

    Raises:
        InputError: The command line is wrong.
        DamagedState: A file of the experiment is missing or cannot be read.
    """
    if environment.get("GPUSCHED_DIR"):
        return _scheduled(environment, defaults)
    return _unscheduled(arguments, environment, defaults)


def _scheduled(environment: Mapping[str, str], defaults: Mapping[str, object] | None) -> Context:
    experiment = ExperimentPaths(Path(environment["GPUSCHED_DIR"]))
    trial = int(environment["GPUSCHED_TRIAL"])
    paths = experiment.trial(trial)
    drawn = _read(paths.hparams)
    world_size = int(environment.get("WORLD_SIZE") or 1)
    settings = Settings(**_read(experiment.worker))
    still_from = int(environment.get("GPUSCHED_REHEARSAL", 0))
    return Context(
        trial=trial,
        incarnation=int(environment["GPUSCHED_INCARNATION"]),
        rank=int(environment.get("RANK") or 0),
        local_rank=int(environment.get("LOCAL_RANK") or 0),
        world_size=world_size,
        device_kind=environment.get("GPUSCHED_DEVICE") or None,
        experiment=experiment,
        paths=paths,
        hparams=HParams(merged(defaults or {}, drawn.get("hparams", {}))),
        drawn=dict(flat(drawn.get("hparams", {}))),
        # In a rehearsal, trials that are compared are seeded alike.
        seed=settings.seed if still_from else int(drawn.get("seed", settings.seed)),
        settings=settings,
        known_seq=int(drawn.get("seq", 0)),
        fence=paths.fence if environment.get("GPUSCHED_NODE") else None,
        still_from=still_from,
    )


def _unscheduled(
    arguments: Sequence[str], environment: Mapping[str, str], defaults: Mapping[str, object] | None
) -> Context:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--max-steps", type=int)  # for what a recipe would say
    own, rest = parser.parse_known_args(arguments)
    hparams = from_command_line(rest, defaults)
    seed = hparams.get("seed")
    world_size = int(environment.get("WORLD_SIZE") or 1) if environment.get("RANK") else 1
    return Context(
        rank=int(environment.get("RANK") or 0),
        local_rank=int(environment.get("LOCAL_RANK") or 0),
        world_size=world_size,
        hparams=HParams(hparams),
        seed=seed if isinstance(seed, int) else 0,
        settings=Settings(max_steps=own.max_steps or None),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DamagedState(f"{path}: cannot be read: {error}") from error
    return values


# ---------------------------------------------------------------- this rank's GPU
# Not called before the rank's own environment is in place: CUDA reads it once.


def refuse_own_choice() -> None:
    """Raise RuntimeError where the script has chosen GPUs, by numbers: the search gives each rank its own, by UUIDs."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if os.environ.get("GPUSCHED_DEVICE") == "cuda" and chosen[:1].isdecimal():
        raise RuntimeError(
            f"this script has set CUDA_VISIBLE_DEVICES={chosen}, which gpusched sets for each rank: the trial would "
            f"train on another trial's GPU. Remove the line that does so; the recipe's key devices chooses GPUs"
        )


def require_cuda() -> None:
    """Raise RuntimeError where this torch can use no GPU whatever the machine has."""
    import torch

    if not torch.backends.cuda.is_built():
        raise RuntimeError(
            f"this trial was given a GPU, but torch {torch.__version__} is built for CPUs only: install a torch that "
            f"is built for CUDA (https://pytorch.org/get-started/locally), or set devices: cpu"
        )


def take_gpu(local_rank: int) -> torch.device:
    """Return the GPU of this rank, made the current one: from here on the process has a context on it.

    Raises RuntimeError where torch finds no GPU.
    """
    import torch

    refuse_own_choice()
    require_cuda()
    torch.cuda.init()
    device = torch.device("cuda", local_rank % max(1, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device

"""Uses of ``gpusched`` that would train a model wrongly: found at a report, named with the line to change.

A model that trains wrongly must not be ranked in silence. ``Usage`` remembers the calls of a script; at its first
report, when it is set up, the calls that are missing are found, and the ranks' parameters are compared; at later ones
the steps of schedulers are counted, and state that no checkpoint holds is looked for (``forgotten.py``). Ranks that
make different calls are found by ``group.py``, wrong arguments by the function that is called; ``endings.py`` adds
the script's line to an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gpusched.worker.context import Context
from gpusched.worker.endings import say
from gpusched.worker.forgotten import AtWork, live, owned
from gpusched.worker.group import Call, Group, script_line
from gpusched.worker.learning_rate import Schedule, bare_optimizer, counts_atoms

if TYPE_CHECKING:
    from gpusched.worker.training import Training

_SAMPLES = 2048
_FAR = 1e-3
"""Parameters of ranks that trained together differ by rounding at most; those of unrelated ranks by a step or more."""


class Usage:
    """Calls that a script has made, and what is missing among them.

    What is missing is an error where the launch goes on from a checkpoint that lacks something, or on other ranks than
    it was written by; elsewhere it is told, once.
    """

    def __init__(self, context: Context, group: Group, remark: Callable[[str], None]) -> None:
        """Check the script of one rank; ``remark`` tells the search, ``say`` the trial's log alone."""
        self._context, self._group, self._remark = context, group, remark
        self.at_work = AtWork()
        self._told: set[str] = set()
        self.wrapped = False
        #: ``trial.track`` was called, perhaps with nothing to save.
        self.tracks = False
        #: Its first call that only a script which trains makes: ("trial.wrap()", "train.py:12").
        self._trains: tuple[str, str] | None = None
        #: A global batch that the ranks cannot share evenly: (size, where).
        self._uneven: tuple[int, str] | None = None
        #: Steps that tracked schedulers had taken at the last report, by name.
        self._stepped: dict[str, int] = {}
        self._optimizer_steps = 0

    def at_first_report(self, training: Training, step: int, *, writes_files: bool) -> None:
        """Check what was set up, before step ``step + 1`` is reported. All ranks call it.

        Raises:
            RuntimeError: The script would train a wrong model.
        """
        if self._context.scheduled and not training.tracked and not writes_files:
            wrong = self.untracked()
            if wrong is None and step > 0 and not self.tracks:
                wrong = self.stateless(step, resumed=True)
            if wrong is not None:
                raise RuntimeError(wrong)
        if (apart := unwrapped(self._group, training.tracked.values())) is not None:
            raise RuntimeError(apart)
        if self._group.rank == 0 and (uneven := self.uneven(self._group.world_size)):
            say(uneven)

    def at_every_report(self, training: Training, *, writes_files: bool) -> None:
        """Check how the script has trained since the last report.

        Raises:
            RuntimeError: The script would train a wrong model.
        """
        written_by = training.written_by
        if not training.keeps_global_batch and (complaint := self.step_scheduler(training.tracked)):
            is_resized = written_by not in (None, self._group.world_size)
            self._refuse_or_tell("schedule", complaint, is_resized, say)
        if self._context.scheduled and not writes_files:
            self.at_work.look_at_copies(training.tracked)
            self.at_work.look_for_averages(training.tracked)
            if (lacks := training.lacks or training.forgotten()) is not None:
                self._refuse_or_tell("state", lacks, written_by is not None, self._remark)

    def _refuse_or_tell(
        self, about: str, wrong: str, is_error: bool, tell: Callable[[str], None]
    ) -> None:
        if is_error:
            raise RuntimeError(wrong)
        if self._group.rank == 0 and about not in self._told:
            tell(wrong)
        self._told.add(about)

    def made(self, call: str) -> None:
        """Note that ``wrap``, ``loader`` or ``scale_lr`` was called."""
        place, line = script_line()
        self.wrapped = self.wrapped or call == "wrap"
        if self._trains is None:
            self._trains = (f"trial.{call}()", f"{place}:{line}")

    def loads(self, global_batch: int, world_size: int, *, exact: bool) -> None:
        """Note that a training loader was made."""
        if exact and global_batch % world_size and self._uneven is None:
            place, line = script_line()
            self._uneven = (global_batch, f"{place}:{line}")

    def untracked(self) -> str | None:
        """Return the error for a script that trains and has tracked nothing; None for other scripts."""
        place, line = script_line()
        hint = "add trial.track(model=model, opt=opt) before the loop"
        if self._trains is not None:
            call, where = self._trains
            how = f"this script trains a model ({call} at {where})"
        else:
            optimizer = _optimizer_at_work()
            if optimizer is None:
                return None
            how = f"this script trains a model (it steps {type(optimizer).__name__})"
        return (
            f"{how} but never calls trial.track(...), so nothing of it could be resumed: "
            f"{hint} that reports at {place}:{line}"
        )

    def stateless(self, step: int, *, resumed: bool) -> str:
        """Return the message for a script that saves, or goes on from, a checkpoint with nothing of its own in it."""
        fix = (
            "track what it learns (trial.track(model=model); gpusched.pickled(clf) for an object without state_dict; "
            "trial.state for plain values; trial.checkpoint_dir() for files), or say with trial.track() that the step "
            "is all there is"
        )
        if resumed:
            return (
                f"this launch goes on at step {step}, but the script restores nothing, so it begins with an untrained "
                f"model that would be ranked as one of step {step}: {fix}"
            )
        return f"the checkpoint of step {step} holds nothing of this script, which could not go on from it: {fix}"

    def uneven(self, world_size: int) -> str | None:
        """Return the warning for a global batch that does not divide; None where all shares are equal."""
        if self._uneven is None:
            return None
        batch, where = self._uneven
        better = max(1, round(batch / world_size)) * world_size
        what = f"{where}: trial.loader(batch_size={batch}) does not divide by {world_size} ranks"
        if self.wrapped:
            return (
                f"{what}: their shares differ by a sample, and gradients are weighted so that the result is the same; "
                f"batch_size={better} would waste nothing"
            )
        return (
            f"{what}, and the model is not wrapped by trial.wrap(model), so gradients are not weighted "
            f"and the result depends on the number of ranks: use trial.wrap, or batch_size={better}"
        )

    def step_scheduler(self, tracked: Mapping[str, Any]) -> str | None:
        """Return the complaint about a tracked scheduler that was stepped several times since the last report.

        Such a schedule counts optimizer steps, of which a launch on more atoms has fewer in an epoch.
        """
        taken, self._optimizer_steps = self._optimizer_steps, 0
        for name, before in self._stepped.items():
            value = tracked[name]
            steps = value.last_epoch - before
            self._stepped[name] = value.last_epoch
            if steps > 1 and 2 * steps >= taken:
                return (
                    f"trial.track({name}=...): this {type(value).__name__} is stepped {steps} times between two "
                    f"reports, once for each step of the optimizer, and an epoch has other numbers of steps on other "
                    f"numbers of atoms: its rates would be wrong after a resize. Write {name} = trial.schedule({name}) "
                    f"before trial.track, or `batch: global` in the recipe, or one size (`sizes: [1]`)"
                )
        return None

    def watch(self, tracked: Mapping[str, Any]) -> None:
        """Count the steps of tracked schedulers, and of one's optimizer, from here."""
        for name, value in tracked.items():
            if isinstance(value, Schedule) or counts_atoms(value):
                continue
            if hasattr(value, "last_epoch") and hasattr(value, "optimizer"):
                if not self._stepped:
                    bare_optimizer(value.optimizer).register_step_post_hook(self._optimizer_stepped)
                self._stepped[name] = value.last_epoch

    def _optimizer_stepped(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        self._optimizer_steps += 1


def unwrapped(group: Group, tracked: Iterable[Any]) -> str | None:
    """Return the error for ranks that train apart: other parameters, or the same work twice. All ranks call it.

    A few thousand parameters of the tracked models are compared. Sharded models are left out.
    """
    torch = sys.modules.get("torch")
    if torch is None or group.world_size == 1:
        return None
    tracked = list(tracked)
    samples = _samples(torch, tracked)
    rows = group.gather_bytes(Call.REPORT, samples.numpy().tobytes())
    fix = (
        "wrap the model (model = trial.wrap(model), or DistributedDataParallel), or let trials have one rank: "
        "`sizes: [1]` in the recipe"
    )
    first = rows[0]
    for rank, other in enumerate(rows[1:], 1):
        if len(other) != len(first):
            return f"ranks 0 and {rank} track models of different shapes: {fix}"
        if other and (apart := _distance(torch, first, other)) > _FAR:
            return (
                f"ranks 0 and {rank} have trained apart (their parameters differ by {apart:.2g} of the largest), "
                f"and the model of rank 0 alone would be ranked: {fix}"
            )
    if not torch.distributed.is_initialized() and _optimizer_at_work() is not None:
        return (
            f"the {group.world_size} ranks of this trial do the same work, each for itself: {fix}"
        )
    return None


def _distance(torch: Any, first: bytes, other: bytes) -> float:
    """Return the largest difference of two ranks' parameters, as a share of the largest parameter."""
    one, two = (torch.frombuffer(bytearray(row), dtype=torch.float64) for row in (first, other))
    largest = float(torch.maximum(one.abs().max(), two.abs().max()))
    return float((one - two).abs().max()) / largest if largest else 0.0


def _samples(torch: Any, tracked: Iterable[Any]) -> Any:
    from gpusched.worker import sharded, state

    models = [each for each in tracked if isinstance(each, torch.nn.Module)]
    whole = [model for model in models if not sharded.is_sharded(model)]
    trained = [each for model in whole for each in model.parameters() if each.requires_grad]
    return state.sampled(trained, _SAMPLES, 8)


def _optimizer_at_work() -> Any:
    """Return an optimizer that has been stepped, in a script that made it without gpusched; None if not found."""
    return next(filter(_was_stepped, live("torch.optim", "Optimizer")), None)


def _was_stepped(optimizer: Any) -> bool:
    return bool(optimizer.state) or any(each.grad is not None for each in owned(optimizer))

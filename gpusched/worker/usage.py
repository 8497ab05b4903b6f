"""Uses of ``gpusched`` that would train a model wrongly: found at a report, named with the line to change.

What is certain is refused: ranks that train apart, state of the tracked objects that a checkpoint lacks at a resume.
What is only likely is told on screen, once. What a script keeps in its own variables is proved by a rehearsal. Ranks
that make different calls are found by ``group.py``, wrong arguments by the function that is called; ``endings.py`` adds
the script's line to an error.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gpusched.worker.context import Context
from gpusched.worker.endings import say
from gpusched.worker.group import Call, Group, script_line
from gpusched.worker.learning_rate import Schedule, bare_optimizer, counts_atoms, owned

if TYPE_CHECKING:
    from gpusched.worker.training import Training

_SAMPLES = 2048
_FAR = 1e-6
"""Parameters of ranks that trained together are equal, but for the last bits."""
_SAVE = (
    "track what it learns (trial.track(model=model); gpusched.pickled(clf) for an object without state_dict; "
    "trial.state for plain values; trial.checkpoint_dir() for files), or say with trial.track() that the step is all "
    "there is"
)


class Usage:
    """Calls that a script has made, and what is missing among them.

    What is missing is an error where the launch continues from a checkpoint that lacks it, or on other ranks than it
    was written by; elsewhere it is told, once.
    """

    def __init__(self, context: Context, group: Group, remark: Callable[[str], None]) -> None:
        """Check the script of one rank; ``remark`` tells the search."""
        self._context, self._group, self._remark = context, group, remark
        self._is_scheduled = context.scheduled
        self._told: set[str] = set()
        #: Optimizers that have stepped, tracked or not.
        self._at_work: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_watching = False
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
        #: Tracked schedulers by name; their positions at the last report; those that stepped after a report and before
        #: the next training, in this launch, and in the one that wrote the checkpoint.
        self._schedulers: dict[str, Any] = {}
        self._positions: dict[str, int] = {}
        self.late: set[str] = set()
        self._was_late: set[str] = set()
        #: Whether the optimizer of such a scheduler has stepped since the last report.
        self._has_stepped = False
        self._reports = 0

    def watch_optimizers(self) -> None:
        """Notice every optimizer that steps from here on, by torch's own hook; once torch is imported."""
        if self._is_watching or "torch" not in sys.modules:
            return
        self._is_watching = True
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(lambda optimizer, *_: self._at_work.add(optimizer))

    def at_report(self, training: Training, *, writes_files: bool) -> None:
        """Check what was set up, at the first report, and how the script has trained since the last one. All ranks.

        Raises:
            RuntimeError: The script would train a wrong model.
        """
        self.watch_optimizers()
        saves = bool(training.tracked) or writes_files
        self._reports += 1
        if self._is_scheduled and not saves and not self.tracks:
            self._check_saves_nothing(training.step)
        looks_again = self._reports & (self._reports - 1) == 0  # at 1, 2, 4, 8, ..
        if looks_again and self._group.world_size > 1:
            apart = apart_ranks(self._group, training.tracked.values())
            if apart is not None:
                raise RuntimeError(apart)
        if self._reports == 1 and (unread := self._context.unread):
            self._refuse_or_tell("unread", _unread(unread), is_error=False)
        if self._reports == 1 and (stale := training.stale_length()):
            self._refuse_or_tell("length", stale, is_error=False)
        uneven = self.uneven(self._group.world_size) if self._reports == 1 else None
        if uneven is not None and self._group.rank == 0:
            say(uneven)
        if not training.tracked:
            return
        written_by = training.written_by
        if self._schedulers:
            self._check_late(training)
        if (
            self._stepped
            and not training.keeps_global_batch
            and (complaint := self.step_scheduler(training.tracked))
        ):
            is_resized = written_by not in (None, self._group.world_size)
            self._refuse_or_tell("schedule", complaint, is_error=is_resized)
        if looks_again and self._is_scheduled and not writes_files:
            for about, lost, is_certain in self.lost(training.tracked):
                self._refuse_or_tell(about, lost, is_error=is_certain and written_by is not None)

    def _check_late(self, training: Training) -> None:
        """Find a scheduler that the script steps after its report, in a loop of its own, which leaves at the report.

        One that is stepped at the top of the loop is right: it is stepped there after a pause too.
        """
        lagging = self._was_late - self.late if self._reports == 1 and self._has_stepped else set()
        for name in sorted(lagging or (set() if training.is_looping else self.late)):
            self._refuse_or_tell(
                "late",
                f"trial.track({name}=...): this {type(self._schedulers[name]).__name__} is stepped after trial.report "
                f"and before the next training; at the end of the loop's body each launch loses a step of it: step it "
                f"before trial.report, or loop over trial.steps()",
                is_error=bool(lagging),
            )
        self._positions = {name: each.last_epoch for name, each in self._schedulers.items()}
        self._has_stepped = False

    def _check_saves_nothing(self, step: int) -> None:
        """Refuse a script that trains and tracks nothing; tell of one of which nothing is known.

        Raises:
            RuntimeError: It trains by torch, or continues from a step without having restored anything.
        """
        wrong = self.untracked()
        if wrong is None and step > 0 and self._reports == 1:
            wrong = self.stateless(step)
        if wrong is not None:
            raise RuntimeError(wrong)
        empty = f"nothing of this script is saved, so its checkpoints are empty and hold no model: {_SAVE}"
        self._refuse_or_tell("nothing", empty, is_error=False)

    def _refuse_or_tell(self, about: str, wrong: str, *, is_error: bool) -> None:
        if is_error:
            raise RuntimeError(wrong)
        if self._group.rank == 0 and about not in self._told:
            self._remark(wrong)
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
        if self._trains is not None:
            call, where = self._trains
            how = f"this script trains a model ({call} at {where})"
        elif (optimizer := next(filter(_has_trained, self._at_work), None)) is not None:
            how = f"this script trains a model (it steps {type(optimizer).__name__})"
        else:
            return None
        return (
            f"{how} but never calls trial.track(...), so nothing of it could be resumed: "
            f"add trial.track(model=model, opt=opt) before the loop that reports at {place}:{line}"
        )

    def stateless(self, step: int) -> str:
        """Return the error for a script that continues from a checkpoint with nothing of its own in it."""
        return (
            f"this launch continues at step {step}, but the script restores nothing, so it begins with an untrained "
            f"model that would be ranked as one of step {step}: {_SAVE}"
        )

    def lost(self, tracked: Mapping[str, Any]) -> Iterable[tuple[str, str, bool]]:
        """Yield what trains and no checkpoint holds: a word for it, the message, and whether that is certain.

        A tracked object of the script's own may hold anything, so nothing is certain then, nor told.
        """
        values = [value for value in tracked.values() if not _is_plain_state(value)]
        if not values or not all(map(_is_known, values)):
            return
        held = {id(bare_optimizer(value)) for value in values}
        models = [value for value in values if hasattr(value, "named_parameters")]
        known = {id(each) for model in models for each in model.parameters()}
        scheduled = {id(bare_optimizer(getattr(value, "optimizer", None))) for value in values}
        for optimizer in list(self._at_work):
            name = type(optimizer).__name__
            moved = [id(each) in known for each in owned(optimizer)]
            if id(optimizer) not in held:
                yield (
                    "optimizer",
                    _lost(
                        f"this script steps an optimizer ({name}) that trial.track does not have"
                    ),
                    any(moved) and any(optimizer.state.values()),
                )
            elif not all(moved):
                yield (
                    "parameters",
                    _lost(
                        f"the tracked optimizer ({name}) moves parameters of a model that trial.track does not have"
                    ),
                    not any(_is_plain_state(value) and value for value in tracked.values()),
                )
            elif _has_scheduler(optimizer) and id(optimizer) not in scheduled:
                yield (
                    "scheduler",
                    _lost(
                        f"the tracked optimizer ({name}) has a scheduler of its rate that trial.track does not have"
                    ),
                    False,
                )

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
                self._stepped[name] = self._positions[name] = value.last_epoch
                self._schedulers[name] = value

    def _optimizer_stepped(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        self._optimizer_steps += 1
        if not self._has_stepped:
            self._has_stepped = True
            self.late = {
                name
                for name, each in self._schedulers.items()
                if each.last_epoch > self._positions[name]
            }

    def continue_from(self, late: list[str] | None) -> None:
        """Take the names of the schedulers that were late in the launch that wrote the checkpoint."""
        self._was_late = set(late or ())


def apart_ranks(group: Group, tracked: Iterable[Any]) -> str | None:
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


def _unread(names: list[str]) -> str:
    return (
        f"the script has not read {', '.join(names)} by its first report, so trials that differ in nothing else train "
        f"the same: read trial.hparams, or pass it to the script: args: "
        f'["--{names[0]}=${{{names[0]}}}"] in the recipe'
    )


def _lost(what: str) -> str:
    return (
        f"{what}: it would begin afresh at every launch, while the rest continues. Track all that training changes: "
        f"trial.track(model=model, opt=opt, sched=sched), by one name each"
    )


def _is_plain_state(value: Any) -> bool:
    return isinstance(value, dict)


def _is_known(value: Any) -> bool:
    """Tell whether the state of a tracked object is torch's own: a model, an optimizer, a scheduler, a scaler."""
    import torch

    kinds = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
    if isinstance(value, torch.nn.Module):
        return type(value).get_extra_state is torch.nn.Module.get_extra_state
    return isinstance(value, (*kinds, Schedule, torch.amp.GradScaler))


def _has_trained(optimizer: Any) -> bool:
    return bool(optimizer.state) or any(each.grad is not None for each in owned(optimizer))


def _has_scheduler(optimizer: Any) -> bool:
    return bool(getattr(getattr(optimizer, "step", None), "_wrapped_by_lr_sched", False))

"""Uses of ``gpusched`` that would train a model wrongly: found at a report, named with the line to change.

What is certain is refused: ranks that train apart, state of the tracked objects that a checkpoint lacks at a resume.
What is only likely is told on screen, once. What a script keeps in its own variables is proved by a rehearsal. Ranks
that make different calls are found by ``group.py``, wrong arguments by the function that is called; ``endings.py`` adds
the script's line to an error.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpusched.worker import imports
from gpusched.worker.context import Context
from gpusched.worker.group import Call, Group, script_line
from gpusched.worker.learning_rate import Schedule, bare_optimizer, counts_atoms, owned
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
    """Calls that a script has made to its trial, and calls that are missing.

    What is missing is an error where the launch continues from a checkpoint that lacks it, or on other ranks than it
    was written by; elsewhere it is told, once.
    """

    def __init__(
        self, context: Context, group: Group, training: Training, remark: Callable[[str], None]
    ) -> None:
        """Check the script of one rank; ``remark`` tells the search."""
        self._context, self._group, self._training = context, group, training
        self._remark = remark
        self._is_scheduled = context.scheduled
        self._told: set[str] = set()
        #: Optimizers that have stepped, tracked or not; steps of each since the last report, by its id.
        self._at_work: weakref.WeakSet[Any] = weakref.WeakSet()
        self._taken: Counter[int] = Counter()
        self._is_watching = False
        #: ``trial.track`` was called, perhaps with nothing to save.
        self.tracks = False
        #: Tracked schedulers by name, and their positions at the last report.
        self._schedulers: dict[str, Any] = {}
        self._positions: dict[str, int] = {}
        self._reports = self._passes = 0
        #: Models that a trainer owns and nothing here tracks.
        self.compared: list[Any] = []

    def watch_optimizers(self) -> None:
        """Notice every optimizer that steps from here on, by torch's own hook; once torch is imported."""
        if self._is_watching or "torch" not in sys.modules:
            return
        self._is_watching = True
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self._stepped)

    def watch(self, tracked: Mapping[str, Any]) -> None:
        """Note the schedulers among what is tracked; those that ``trial.schedule`` counts are right."""
        for name, value in tracked.items():
            is_scheduler = hasattr(value, "last_epoch") and hasattr(value, "optimizer")
            if is_scheduler and not isinstance(value, Schedule) and not counts_atoms(value):
                self._schedulers[name], self._positions[name] = value, value.last_epoch

    def _stepped(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        self._at_work.add(optimizer)
        if self._training.clock.frozen:
            return
        if not self._taken:
            places = self._positions
            self._training.late = {
                name for name, each in self._schedulers.items() if each.last_epoch > places[name]
            }
        self._taken[id(optimizer)] += 1

    def at_report(self, *, writes_files: bool) -> None:
        """Check what was set up, at the first report, and how the script has trained since the last one. All ranks.

        Raises:
            RuntimeError: The script would train a wrong model.
        """
        self.watch_optimizers()
        training = self._training
        saves = bool(training.tracked) or writes_files
        self._reports += 1
        if self._is_scheduled and not saves and not self.tracks:
            self._check_saves_nothing(training.step)
        looks_again = self._reports & (self._reports - 1) == 0  # at 1, 2, 4, 8, ..
        if looks_again and self._group.world_size > 1:
            apart = apart_ranks(self._group, [*training.tracked.values(), *self.compared])
            if apart is not None:
                raise RuntimeError(apart)
        if self._reports == 1 and (unread := self._context.unread):
            self.tell("unread", _unread(unread))
        if self._reports == 1 and (self._context.trial, self._context.incarnation) == (0, 1):
            script = getattr(sys.modules.get("__main__"), "__file__", None)
            if (slow := imports.advice(script)) is not None:
                self.tell("imports", slow)
        if self._reports == 1 and (stale := training.stale_length()):
            self.tell("length", stale)
        if self._schedulers:
            self._check_late()
            self._check_steps()
        self._positions = {name: each.last_epoch for name, each in self._schedulers.items()}
        self._taken.clear()
        if looks_again and self._is_scheduled and not writes_files:
            for about, lost, is_certain in self._lost():
                is_error = is_certain and training.written_by is not None
                self._refuse_or_tell(about, lost, is_error=is_error)

    def check_epochs(self) -> None:
        """Find a loop of epochs that reports less often, without saying so, and would repeat epochs at a resume.

        Several passes over the data for each report may be right, as in PPO: it is told, no more. What a launch does
        before its first report may be a preparation, so the later ones count.
        """
        loaders = self._training.loaders[:1]
        before, self._passes = self._passes, sum(one.passes_trained for one in loaders)
        if self._reports > 1 and self._passes - before > 1:
            self.tell(
                "epochs",
                "this script trains on its data several times for a report, and trial.track(...) returns the number of "
                "reports: a loop over epochs would repeat some after a pause. Say how many are done: "
                "trial.report(step=epoch + 1, ...)",
            )

    def _refuse_or_tell(self, about: str, wrong: str, *, is_error: bool) -> None:
        if is_error:
            raise RuntimeError(wrong)
        self.tell(about, wrong)

    def tell(self, about: str, wrong: str) -> None:
        """Tell of what is likely wrong, once."""
        if self._group.rank == 0 and about not in self._told:
            self._remark(wrong)
        self._told.add(about)

    def _check_saves_nothing(self, step: int) -> None:
        """Refuse a script that trains and tracks nothing; tell of one of which nothing is known.

        Raises:
            RuntimeError: It trains by torch, or continues from a step without having restored anything.
        """
        optimizer = next(filter(_has_trained, self._at_work), None)
        if optimizer is not None:
            place, line = script_line()
            add = "add trial.track(model=model, opt=opt) before the loop"
            if self._training.is_looping:
                add = "write trial.steps(.., model=model, opt=opt) for the loop"
            raise RuntimeError(
                f"this script trains a model (it steps {type(optimizer).__name__}) and saves nothing of it, so nothing "
                f"could be resumed: {add} that reports at {place}:{line}"
            )
        if step > 0 and self._reports == 1:
            raise RuntimeError(
                f"this launch continues at step {step}, but the script restores nothing, so it begins with an "
                f"untrained model that would be ranked as one of step {step}: {_SAVE}"
            )
        empty = f"nothing of this script is saved, so its checkpoints are empty and hold no model: {_SAVE}"
        self.tell("nothing", empty)

    def _check_late(self) -> None:
        """Find a scheduler that the script steps after its report, in a loop of its own, which leaves at the report.

        One that is stepped at the top of the loop is right: it is stepped there after a pause too.
        """
        training = self._training
        lagging = training.was_late - training.late if self._reports == 1 and self._taken else set()
        for name in sorted(lagging or (set() if training.is_looping else training.late)):
            self._refuse_or_tell(
                "late",
                f"trial.track({name}=...): this {type(self._schedulers[name]).__name__} is stepped after trial.report "
                f"and before the next training; at the end of the loop's body each launch loses a step of it: step it "
                f"before trial.report, or loop over trial.steps()",
                is_error=bool(lagging),
            )

    def _check_steps(self) -> None:
        """Find a scheduler that is stepped with its optimizer: a launch on more atoms has fewer steps in an epoch."""
        training = self._training
        if training.keeps_global_batch:
            return
        for name, value in self._schedulers.items():
            steps = value.last_epoch - self._positions[name]
            if steps < 2 or 2 * steps < self._taken[id(bare_optimizer(value.optimizer))]:
                continue
            self._refuse_or_tell(
                "schedule",
                f"trial.track({name}=...): this {type(value).__name__} is stepped {steps} times between two reports, "
                f"once for each step of the optimizer, and an epoch has other numbers of steps on other numbers of "
                f"atoms: its rates would be wrong after a resize. Write {name} = trial.schedule({name}) before "
                f"trial.track, or `batch: global` in the recipe, or one size (`sizes: [1]`)",
                is_error=training.written_by not in (None, self._group.world_size),
            )

    def _lost(self) -> Iterable[tuple[str, str, bool]]:
        """Yield what trains and no checkpoint holds: a word for it, the message, and whether that is certain.

        A tracked object of the script's own may hold anything, so nothing is certain then, nor told.
        """
        tracked = self._training.tracked.values()
        values = [value for value in tracked if not isinstance(value, dict)]
        if not values or not all(map(_is_known, values)):
            return
        held = {id(bare_optimizer(value)) for value in values}
        models = [value for value in values if hasattr(value, "named_parameters")]
        known = {id(each) for model in models for each in model.parameters()}
        for optimizer in list(self._at_work):
            name = type(optimizer).__name__
            moved = [id(each) in known for each in owned(optimizer)]
            if id(optimizer) not in held:
                what = f"this script steps an optimizer ({name}) that trial.track does not have"
                yield "optimizer", _lost(what), any(moved) and any(optimizer.state.values())
            elif not all(moved):
                what = f"the tracked optimizer ({name}) moves parameters of a model that trial.track does not have"
                has_state = any(isinstance(value, dict) and value for value in tracked)
                yield "parameters", _lost(what), not has_state


def apart_ranks(group: Group, tracked: Iterable[Any]) -> str | None:
    """Return the error for ranks whose parameters differ: they train apart. All ranks call it.

    A few thousand parameters of the tracked models are compared. Sharded models are left out.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
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


def _is_known(value: Any) -> bool:
    """Tell whether the state of a tracked object is torch's own: a model, an optimizer, a scheduler, a scaler."""
    import torch

    if isinstance(value, torch.nn.Module):
        return type(value).get_extra_state is torch.nn.Module.get_extra_state
    kinds = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
    return isinstance(value, (*kinds, Schedule))


def _has_trained(optimizer: Any) -> bool:
    return bool(optimizer.state) or any(each.grad is not None for each in owned(optimizer))

"""How a script uses ``gpusched``: what it has made, where, and what is missing; one message, with the line to change.

Asked once, at the first report: a script is set up then. Ranks that make different calls are found by ``group.py``,
wrong arguments by whoever is called; ``errorfile.py`` adds the script's line to what they raise.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from gpusched.worker.group import script_line


class Usage:
    """What a script has made with its trial."""

    def __init__(self) -> None:
        self.wrapped = False
        #: Its first call that only a script which trains makes: ("trial.wrap()", "train.py:12").
        self._trains: tuple[str, str] | None = None
        #: A global batch that the ranks cannot share evenly: (size, where).
        self._uneven: tuple[int, str] | None = None

    def made(self, call: str) -> None:
        """``wrap``, ``loader`` or ``scale_lr`` was called."""
        place, line = script_line()
        self.wrapped = self.wrapped or call == "wrap"
        if self._trains is None:
            self._trains = (f"trial.{call}()", f"{place}:{line}")

    def loads(self, global_batch: int, world_size: int, *, exact: bool) -> None:
        """A training loader was made."""
        if exact and global_batch % world_size and self._uneven is None:
            place, line = script_line()
            self._uneven = (global_batch, f"{place}:{line}")

    def untracked(self) -> str | None:
        """What to tell a script that trains and has tracked nothing."""
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

    def uneven(self, world_size: int) -> str | None:
        """What to tell a script whose global batch does not divide; None where nothing is amiss."""
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


def _optimizer_at_work() -> Any:
    """An optimizer that has been stepped, in a script that made it without gpusched; None if there is none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.optim.Optimizer) and _was_stepped(thing):
            return thing
    return None


def _was_stepped(optimizer: Any) -> bool:
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return bool(optimizer.state) or any(p.grad is not None for p in parameters)

"""Trial 0 in every stage a trial can be in, on two devices; nothing else runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpusched.core.commands import Yield
from gpusched.core.decisions import Complete, Pause, Resize, Start, Stop
from tests.helpers import Script


def starting(**rules: Any) -> Script:
    """Launched on d0, not up."""
    return Script(devices=2, **rules).wants(Start(1)).start().drop()


def up(**rules: Any) -> Script:
    """A trial whose ranks run and have reported no step yet."""
    return starting(**rules).wait(1.0).up(0)


def running(**rules: Any) -> Script:
    """Has reported step 1, and a checkpoint of it is on disk."""
    script = starting(**rules).wait(1.0).up(0).wait(1.0).report(0, 0.5).drop()
    return script.saved(0, 1).drop()


def resizing(**rules: Any) -> Script:
    """Yields at step 2, to go on with d0 and d1."""
    return running(**rules).decides(Resize(0, 2)).wait(1.0).report(0, 0.4).drop()


def waiting(**rules: Any) -> Script:
    """Has left for that; d0 is not released yet."""
    return resizing(**rules).exited(0, saved=2).drop()


def pausing(**rules: Any) -> Script:
    return running(**rules).decides(Pause(0)).wait(1.0).report(0, 0.4).drop()


def stopping(**rules: Any) -> Script:
    script = running(**rules).decides(Stop(0)).wait(1.0).report(0, 0.4)
    return script.expect(Yield(0, 1, save=False))


def completing(**rules: Any) -> Script:
    script = running(**rules).decides(Complete(0)).wait(1.0).report(0, 0.4)
    return script.expect(Yield(0, 1, save=False))


def killed_while_starting(**rules: Any) -> Script:
    return starting(**rules).asked("pause", 0).drop()


def paused(**rules: Any) -> Script:
    """Paused at step 2; trial 1 keeps the experiment alive on d1, or it would be over."""
    script = pausing(**rules).wants(Start(1)).exited(0, saved=2).drop()
    return script.released("d0")


def completed(**rules: Any) -> Script:
    return completing(**rules).wants(Start(1)).exited(0).drop().released("d0")


def stopped(**rules: Any) -> Script:
    return stopping(**rules).wants(Start(1)).exited(0).drop().released("d0")


def failed(**rules: Any) -> Script:
    """Its script has failed, and again as it continued."""
    script, error = running(**rules), "ValueError: no\nline two"
    script.exited(0, "failed", error=error).drop().released("d0").drop()
    return script.wants(Start(1)).exited(0, "failed", error=error).drop().released("d0")


STAGES: dict[str, Callable[..., Script]] = {
    stage.__name__: stage
    for stage in (
        starting,
        up,
        running,
        resizing,
        waiting,
        pausing,
        stopping,
        completing,
        killed_while_starting,
        paused,
        completed,
        stopped,
        failed,
    )
}

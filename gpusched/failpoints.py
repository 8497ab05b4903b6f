"""Named instants at which a process of ours can be made to die: for the tests of what a death leaves behind.

``GPUSCHED_FAILPOINT=name[:count][:action]``: at the count-th pass (the first by default) of the point ``name`` the
process is killed (action ``kill``, SIGKILL, the default) or stopped (``stop``, SIGSTOP). There is one before and one
after each step that another process, or the next daemon, may find done or not done. ``NAMES`` has them all.

Without the variable a point is a call of an empty function. It is read once, when this module is imported, so it is the
daemon's alone: what starts trials does not pass variables of ours on. A module that a recipe preloads may arm one for
shims and ranks, as the torture's does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

VARIABLE = "GPUSCHED_FAILPOINT"

DAEMON = (
    "epoch.before",
    "epoch.file",
    "epoch.after",
    "resume.replayed",
    "resume.reconciled",
    "journal.before",
    "journal.inserted",
    "journal.synced",
    "journal.marked",
    *(
        f"{command}.{when}"
        for command in ("Launch", "Yield", "Save", "Kill", "ConfirmRelease", "KeepBest", "SetTimer")
        for when in ("before", "after")
    ),
    "Finish.before",
    "best.built",
    "best.renamed",
    "best.pointed",
    "final.before",
    "final.after",
    "final.removed",
)
"""Points that a daemon passes."""

SUGGESTING = ("Suggest.before", "Suggest.after")
"""Points that a daemon passes whose sampler has a memory."""

SALVAGE = ("salvage.built", "salvage.aside", "salvage.after")

WORKER = (
    "claim.before",
    "claim.after",
    "exit.before",
    "exit.written",
    "exit.told",
    "report.written",
    "report.answered",
    "handover.told",
    "checkpoint.staged",
    "checkpoint.renamed",
    "lastword.before",
    "lastword.after",
)
"""Points that a shim or a rank passes."""

NAMES = (*DAEMON, *SUGGESTING, *SALVAGE, *WORKER)
_ACTIONS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def _nothing(_name: str) -> None:
    """Not armed."""


def arm(text: str) -> Callable[[str], None]:
    """Read what ``reach`` is to do from the variable's value. Raises ValueError for an unknown name or action."""
    name, _, rest = text.partition(":")
    count, _, action = rest.partition(":")
    if name not in NAMES:
        raise ValueError(f"{VARIABLE}: unknown failpoint {name!r}")
    if (action or "kill") not in _ACTIONS or not (count or "1").isdigit():
        raise ValueError(f"{VARIABLE}: {text!r} is not name[:count][:kill|stop]")
    number = _ACTIONS[action or "kill"]
    left = int(count or 1)

    def armed(reached: str) -> None:
        nonlocal left
        if reached == name:
            left -= 1
            if left == 0:
                signal.pidfd_send_signal(os.pidfd_open(os.getpid()), number)

    return armed


reach: Callable[[str], None] = arm(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else _nothing
"""Pass the point of this name."""

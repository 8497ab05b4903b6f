"""Named instants at which a process of ours can be made to die: for the tests of what a death leaves behind.

``GPUSCHED_FAILPOINT=name[:count]``: at the count-th pass (the first by default) of the point ``name`` the process is
killed. There is one before and one after each step that another process, or the next daemon, may find done or not done.

Without the variable a point is a call of ``str``. It is read once, when this module is imported, so it is the
daemon's alone: what starts trials does not pass variables of ours on. A module that a recipe preloads may arm one for
shims and ranks, as the torture's does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

VARIABLE = "GPUSCHED_FAILPOINT"


def arm(text: str) -> Callable[[str], object]:
    """Read what ``reach`` is to do from the variable's value. Raises ValueError where that is malformed."""
    name, _, count = text.partition(":")
    left = int(count or 1)

    def armed(reached: str) -> None:
        nonlocal left
        if reached == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return armed


reach: Callable[[str], object] = arm(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else str
"""Pass the point of this name."""

"""The live dashboard of a search: one function that has a terminal for a while, and leaves it as it was.

Ctrl-C is the caller's: ``on_interrupt`` does what Ctrl-C means and returns a sentence about that; without it, Ctrl-C
detaches.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpusched.dashboard.feed import Frames, Logs, LogTail, Source
from gpusched.folder.paths import ExperimentPaths

if TYPE_CHECKING:
    from gpusched.dashboard.app import Act, Why


def is_possible() -> bool:
    """Tell whether this process has a terminal that can show a screen, and is not in its background."""
    is_utf = (sys.stdout.encoding or "").lower().startswith("utf")
    if not is_utf or os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
        return False
    try:
        streams = [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)]
        return all(map(os.isatty, streams)) and os.tcgetpgrp(streams[1]) == os.getpgrp()
    except (AttributeError, OSError, ValueError):
        return False


def watch(
    frames: Frames,
    *,
    folder: Path | None = None,
    on_interrupt: Callable[[], str] | None = None,
    sources: Mapping[str, Source] | None = None,
    act: Act | None = None,
) -> Why:
    """Show an experiment until it is over, its daemon is lost for good, or the person detaches (q).

    ``frames``: gives out views, see ``Frames``. ``folder``: the search's, for the logs of its trials and
    of its daemon. ``sources``: content of the tab ``trial``, a story. ``act``: asks
    the daemon for something. For the main thread, where ``is_possible``; the terminal and the signal handlers are
    afterwards as before. Raises what ``frames`` raises.
    """
    from gpusched.dashboard.app import Dashboard

    known = dict(sources or {})
    if folder is not None:
        told = LogTail(ExperimentPaths(folder).log)
        known |= {"log": Logs(folder), "decisions": lambda _trial: told.lines()}
    app = Dashboard(frames, sources=known, on_interrupt=on_interrupt, act=act)
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    numbers += [signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        ended = app.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if app.failure is not None:
        raise app.failure
    return ended or "terminated"

"""Stay with a search: the dashboard on a terminal, plain lines (or JSON lines) elsewhere.

Shared by ``run``, ``resume`` and ``watch``. In ``run`` and ``resume`` Ctrl-C means the search (first: stop in good
order; second: terminate; third: kill), in ``watch`` it only detaches. A closed terminal ends nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusched.cli import common, look
from gpusched.daemon import session
from gpusched.daemon.session import Client, DaemonGone, DaemonSilent
from gpusched.dashboard import lines as plain
from gpusched.dashboard.feed import Frames, Logs, LogTail, Source
from gpusched.dashboard.model import Standing, from_json
from gpusched.errors import GpuschedError
from gpusched.folder import find
from gpusched.folder.paths import ExperimentPaths
from gpusched.protocol import Lines, Shown

if TYPE_CHECKING:
    from gpusched.dashboard.app import Act, Why

#: How long those who follow wait for one answer before they look at the lock again.
LOOK_S = 5.0

#: Trials that stay on the terminal when the dashboard has gone with the end of the search.
LAST_SHOWN = 10

#: First processes of containers that end with the process that they have started.
INITS = ("docker-init", "podman-init", "tini", "dumb-init", "catatonit")

LADDER = (
    ("stop", "stopping: every trial leaves at its next step (Ctrl-C again: now)"),
    ("cancel", "terminating the trials (Ctrl-C again: kill)"),
    ("kill", "killing"),
)


class Interrupts:
    """Meaning of each Ctrl-C for the search; called once for each."""

    def __init__(self, paths: ExperimentPaths) -> None:
        self._paths = paths
        self.count = 0

    def __call__(self) -> str:
        verb, words = LADDER[min(self.count, len(LADDER) - 1)]
        self.count += 1
        client = Client.connect(self._paths.socket, LOOK_S)
        if client is not None:
            with client, contextlib.suppress(DaemonGone, DaemonSilent):
                client.ask(verb)
        return words


def begin(args: argparse.Namespace, paths: ExperimentPaths, daemon_pid: int, verb: str) -> int:
    """Attach to a search that this command has started, or with ``--detach`` leave it to its daemon."""
    name = paths.root.name
    if args.detach and may_leave():
        started = {"experiment": name, "folder": str(paths.root), "daemon_pid": daemon_pid}
        return common.tell(args, started, f"{name} {verb} in the background; {find.ways(paths)}")
    if not args.json and not has_screen():
        print(f"{name}: {paths.root}", flush=True)
    if not may_leave():  # ``docker stop`` is for the search
        signal.signal(signal.SIGTERM, lambda number, _: os.kill(daemon_pid, number))
    return attach(paths, as_json=args.json, owns=True)


def attach(paths: ExperimentPaths, *, as_json: bool, owns: bool) -> int:
    """Stay until the search is over or the user detaches; return the exit code. ``owns``: Ctrl-C is for the search."""
    interrupts = Interrupts(paths) if owns else None
    stream = Stream(paths)
    stays = False
    try:
        if as_json or not has_screen():
            stays = _follow(stream, as_json, interrupts)
        else:
            act = partial(session.ask, paths)
            why = show(stream.views, sources=tabs(paths), on_interrupt=interrupts, act=act)
            stays = why not in ("detached", "terminated")
            if owns and not stays and not may_leave():
                common.note("the container, and the search with it, would end with this command")
                if why == "terminated":
                    signal.raise_signal(signal.SIGTERM)
                stays = _follow(Stream(paths), as_json, interrupts)
    except BrokenPipeError:  # ``tee`` ends with the first Ctrl-C
        if owns:
            common.note(f"nothing reads the output any more; {find.ways(paths)}")
        raise
    except KeyboardInterrupt:  # before the handler of Ctrl-C was set
        if interrupts is not None:
            interrupts()
            stays = _follow(stream, as_json, interrupts)
    if not stays and find.has_daemon(paths):
        if not as_json:
            common.note(f"detached; {paths.root.name} continues. {find.ways(paths)}")
        return 0
    return conclude(paths, as_json=as_json, interrupts=interrupts)


def may_leave() -> bool:
    """Tell whether the daemon outlives this process: not in a container that ends with it, as its first process or as
    the one that the first, an ``init``, has started.
    """
    init = ""
    with contextlib.suppress(OSError):  # hidden from others than its user
        init = Path("/proc/1/comm").read_text().strip()
    return os.getpid() != 1 and not (os.getppid() == 1 and init in INITS)


def tabs(paths: ExperimentPaths) -> dict[str, Source]:
    """Return what the tabs of the dashboard show: the trial's story and logs, and the log of the daemon."""
    told = LogTail(paths.log)
    return {
        "trial": lambda trial: [] if trial is None else session.explanation(paths, trial)["lines"],
        "log": Logs(paths.root),
        "decisions": lambda _trial: told.lines(),
    }


def has_screen() -> bool:
    """Tell whether this process has a terminal that can show a screen, and is not in its background."""
    is_utf = (sys.stdout.encoding or "").lower().startswith("utf")
    # xterm-color: a cell of Jupyter, whose ``!`` is a terminal that draws no screen.
    if not is_utf or os.environ.get("TERM", "dumb") in ("", "dumb", "unknown", "xterm-color"):
        return False
    try:
        streams = [stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)]
        return all(map(os.isatty, streams)) and os.tcgetpgrp(streams[1]) == os.getpgrp()
    except (AttributeError, OSError, ValueError):
        return False


def show(
    frames: Frames,
    *,
    sources: Mapping[str, Source],
    on_interrupt: Callable[[], str] | None,
    act: Act | None = None,
) -> Why:
    """Show the dashboard until the search is over, its daemon is lost for good, or the person detaches (q).

    Arguments are those of ``Dashboard``. For the main thread, where ``has_screen``; terminal and signal handlers are
    afterwards as before. Raises what ``frames`` raises.
    """
    from gpusched.dashboard.app import Dashboard

    app = Dashboard(frames, sources=sources, on_interrupt=on_interrupt, act=act)
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


class Stream:
    """The frames that a daemon sends to a watcher. ``over``: the search has ended."""

    def __init__(self, paths: ExperimentPaths) -> None:
        self._paths = paths
        self.over = False

    def views(self) -> Iterator[dict[str, Any] | None]:
        """Yield views as JSON for as long as the daemon sends them; None while it does not answer."""
        for frame in self._frames("watch", silence_s=2.0):
            if frame is None:
                yield None
            elif isinstance(frame, Shown):
                yield frame.view
        is_there = find.has_daemon(self._paths) and not self.over
        yield None if is_there else session.view(self._paths)

    def lines(self) -> Iterator[Lines | None]:
        """Yield frames with a line or an event; None now and then, so that the caller can look at pressed keys.

        Where a daemon ends without a word, continue with the next one, until the search is over or has no daemon.
        """
        while True:
            for frame in self._frames("follow", silence_s=0.3):
                if frame is None or isinstance(frame, Lines):
                    yield frame
            if self.over or not find.has_daemon(self._paths):
                return
            # The daemon is about to end, has just begun, or waits for its disk.
            yield None
            time.sleep(0.05)

    def _frames(self, verb: str, silence_s: float) -> Iterator[Shown | Lines | None]:
        client = Client.connect(self._paths.socket, LOOK_S)
        if client is None:
            self.over = not find.has_daemon(self._paths)
            return
        self.over = False  # a search that was over may have been resumed
        with client:
            try:
                client.ask(verb)
            except (DaemonGone, DaemonSilent):
                return
            client.set_timeout(silence_s)
            while not self.over:
                try:
                    frame = client.receive()
                except TimeoutError:
                    yield None
                    continue
                if frame is None:
                    return
                self.over = isinstance(frame, Shown) and frame.over
                if isinstance(frame, Shown | Lines):
                    yield frame


def _follow(stream: Stream, as_json: bool, interrupts: Callable[[], str] | None) -> bool:
    """Print a line an event until the search is over; return False if the person detached before."""
    pressed: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
    try:
        for frame in stream.lines():
            while pressed:
                pressed.pop()
                if interrupts is None:
                    return False
                common.note(interrupts())
            if frame is None:
                continue
            for news in frame.records:
                common.print_json(news) if as_json else print(plain.line(news))
            sys.stdout.flush()
    finally:
        signal.signal(signal.SIGINT, previous)
    return True


def tell_the_end(view: Standing) -> None:
    """Print the summary; on a terminal, which has shown the dashboard, behind the best trials of its last frame."""
    if has_screen():
        table = "\n".join(look.trials(view, LAST_SHOWN)).splitlines()
        print(*(line[: shutil.get_terminal_size().columns] for line in table), "", sep="\n")
    for line in look.summary(view).splitlines():
        print(common.paragraph(line))


def conclude(paths: ExperimentPaths, *, as_json: bool, interrupts: Interrupts | None) -> int:
    """Say how the search ended; 0: with a model, 3: no trial succeeded, 130: interrupted without one, 143: by SIGTERM.

    Raises why the daemon failed, if that is how it ended.
    """
    interrupted = interrupts is not None and interrupts.count > 0

    def pressed(*_: object) -> None:
        if interrupts is None:  # the search may continue after the end that was seen
            raise KeyboardInterrupt
        with contextlib.suppress(GpuschedError):  # the daemon may wait for room on its disk
            interrupts()

    # A Ctrl-C too many must not cut the summary off.
    signal.signal(signal.SIGINT, pressed)
    common.wait_for_end(paths)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    view = session.view(paths)
    if as_json:
        common.print_json({"over": True, "view": view, "folder": str(paths.root)})
    else:
        tell_the_end(from_json(view))
    if view["state"] == "interrupted":
        sys.stdout.flush()
        raise session.failure(paths)
    if (view.get("ending") or "").startswith("stopped by SIGTERM"):
        return 128 + signal.SIGTERM
    if (paths.best / "metric.json").exists():
        return 0
    return 130 if interrupted else 3

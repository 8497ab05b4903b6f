"""The warm server: imports torch once, then forks a shim per incarnation. ``python -m gpusched.runtime.warm FD``

Speaks with the daemon on the socket pair whose descriptor it is given (frames: ``protocol``). Rules:

* Single-threaded whenever it forks; never touches CUDA (a forked child could not use it any more).
* It says ``ready`` as soon as torchrun's elastic agent is imported. What DDP and optimizers import lazily, and the
  recipe's ``preload:``, follows module by module; launches wait for it, as each of their ranks would pay for those
  imports itself. Last, while nobody asks for anything, its memory goes into huge pages (``imports.py``).
* ``--light``, for scripts that do not use torch: it is ready without torch, and imports the agent when a launch of
  several ranks is asked for, which have to agree through a process group.
* It is a subreaper. A shim that dies before its tree is empty leaves its processes to this server, which kills them
  before it says that the shim is dead.
* It lives until the daemon's end is closed *and* the last shim is gone; after that end is closed it launches nothing.

``--cold``: the same without torch; shims then run ``torchrun`` as a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

from gpusched.processes.claim import Segments
from gpusched.processes.identity import (
    become_subreaper,
    children,
    descendants,
    end_with_parent,
    identify,
    kill_each,
    reap_all,
    start_time,
)
from gpusched.protocol import (
    Frame,
    Importing,
    Launched,
    LaunchFailed,
    LaunchSpec,
    Ready,
    ShimDied,
    Whole,
)
from gpusched.protocol.lines import CLIENT_FRAME_BYTES, BadFrame, Inbox, encode, to_server
from gpusched.runtime.birth import fork_ranks, put_title
from gpusched.runtime.imports import (
    HEAVY,
    LIGHT,
    Imports,
    huge_page_pieces,
    import_agent,
    settle,
    use_huge_pages,
)

_STRAY_PATIENCE_S = 0.02
_READ_BYTES = 1 << 20
_TIDY_EVERY = 64
"""Launches after which memory is tidied again: what the server writes while forks share it breaks huge pages up."""


class WarmServer:
    """``imports``: what is still to be imported; ``light``: without torch until several ranks are asked for."""

    def __init__(self, line: socket.socket, imports: Imports, *, cold: bool, light: bool) -> None:
        self._line: socket.socket | None = line
        self._inbox = Inbox(to_server, CLIENT_FRAME_BYTES)
        self._imports = imports
        self._pieces: Iterator[tuple[int, int]] | None = None
        self._cold = cold
        self._light = light
        self._asked: deque[LaunchSpec] = deque()
        self._shims: dict[int, LaunchSpec] = {}
        self._dead: dict[int, int] = {}
        #: By shim: the shared memory that its trial may leave behind.
        self._segments: dict[int, Segments] = {}
        self._orphans: list[int] = []
        self._launches = 0
        self._bell, self._wake = socket.socketpair()

    def serve(self) -> None:
        """Serve until the daemon has let go and no shim is left."""
        become_subreaper()
        end_with_parent(False)  # shims will need it, whatever becomes of the daemon
        self._bell.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._say(Ready())
        while True:
            self._reap()
            if self._line is None and not self._shims and not self._dead:
                return
            unfinished = self._asked or self._imports.are_due or self._pieces is not None
            self._listen(_STRAY_PATIENCE_S if self._dead else 0.0 if unfinished else None)
            if self._imports.are_due:
                self._import_next()
            elif self._asked:
                self._launch_next()
            elif self._pieces is not None:
                self._tidy_next(self._pieces)

    # ------------------------------------------------------------------ the daemon's line

    def _listen(self, timeout_s: float | None) -> None:
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        if self._line is not None:
            poll.register(self._line, select.POLLIN)
        for descriptor, _ in poll.poll(None if timeout_s is None else timeout_s * 1000):
            if descriptor == self._bell.fileno():
                with suppress(BlockingIOError):
                    self._bell.recv(4096)
            else:
                self._read()

    def _read(self) -> None:
        assert self._line is not None
        try:
            data = self._line.recv(_READ_BYTES)
            self._asked += self._inbox.feed(data)
        except (OSError, BadFrame):
            data = b""
        if not data:
            self._hang_up()

    def _hang_up(self) -> None:
        """Drop all that is asked for and not begun: the daemon is gone."""
        if self._line is not None:
            self._line.close()
        self._line = None
        self._asked.clear()
        self._imports.forget()
        self._pieces = None

    def _say(self, frame: Frame) -> None:
        if self._line is not None:
            try:
                self._line.sendall(encode(frame))
            except OSError:
                self._hang_up()

    # ------------------------------------------------------------------ imports

    def _import_next(self) -> None:
        if self._imports.wanted is not None:
            self._say(Importing(self._imports.wanted))
        missed = self._imports.next()
        if missed is not None:
            self._say(missed)
        if not self._imports.are_due:
            settle()
            self._pieces = huge_page_pieces()
            self._say(Whole())

    def _tidy_next(self, pieces: Iterator[tuple[int, int]]) -> None:
        piece = next(pieces, None)
        if piece is None:
            self._pieces = None
        else:
            use_huge_pages(*piece)

    # ------------------------------------------------------------------ launching

    def _launch_next(self) -> None:
        spec = self._asked.popleft()
        self._listen(0.0)  # a launch for a daemon that has gone meanwhile must not begin
        if self._line is None or self._imports.taint:
            return
        if self._light and (spec.ranks > 1 or spec.span is not None):
            self._light = False
            try:
                import_agent()
            except BaseException as problem:
                self._light = True
                why = f"several ranks need torch: {type(problem).__name__}: {problem}"
                self._say(LaunchFailed(spec.trial, spec.incarnation, why))
                return
            settle()
        # Text that an import printed must not end up in every rank's log.
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as problem:
            self._say(LaunchFailed(spec.trial, spec.incarnation, f"fork: {problem}"))
            return
        if pid == 0:
            self._be_shim(spec)
        self._shims[pid], self._segments[pid] = spec, Segments()
        self._launches += 1
        if self._launches % _TIDY_EVERY == 0:
            self._pieces = huge_page_pieces()
        self._say(Launched(spec.trial, spec.incarnation, pid, start_time(pid)))

    def _be_shim(self, spec: LaunchSpec) -> None:
        """In the forked child; never returns."""
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for thing in (self._line, self._bell, self._wake):
                if thing is not None:
                    thing.close()
            status = _run(spec, cold=self._cold, light=self._light)
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stderr.flush()
            os._exit(status)

    # ------------------------------------------------------------------ the dead

    def _reap(self) -> None:
        """Note shims that ended, and kill until live shims alone are below this process."""

        def note(pid: int, status: int) -> None:
            if pid in self._shims:
                self._dead[pid] = status
            else:
                self._orphans.append(pid)

        reap_all(note)
        if not self._dead or self._kill_strays():
            return
        reap_all(note)
        for pid, status in self._dead.items():
            segments = self._segments.pop(pid)
            if status or self._orphans:
                self._remove(segments)
            spec = self._shims.pop(pid)
            self._say(ShimDied(spec.trial, spec.incarnation, pid, status))
        self._dead.clear()
        self._orphans.clear()

    def _remove(self, segments: Segments) -> None:
        """Remove what a killed shim's tree left in shared memory."""
        for pid in self._orphans:
            segments.reaped(pid)
        for name in segments.remove():
            print(f"removed /dev/shm/{name}, which a killed trial left behind", flush=True)

    def _kill_strays(self) -> int:
        """Kill children whose shim is dead, as a live shim keeps its tree. Return the count."""
        strays = [
            pid for pid in children(os.getpid()) if pid not in self._shims or pid in self._dead
        ]
        below = [pid for stray in strays for pid in (stray, *descendants(stray))]
        if below:
            for pid in self._dead:
                self._segments[pid].note_all(lambda: below)
        return kill_each(identify(below))


def _run(spec: LaunchSpec, *, cold: bool, light: bool) -> int:
    """Be the shim of an incarnation; return the exit status.

    Ranks are forked before anything else: what a process writes is no longer shared with the warm image, and has to be
    copied at every fork from then on. And the ranks set themselves up while the shim does.
    """
    unborn = [] if cold else fork_ranks(spec)
    from gpusched.runtime.shim import run_shim

    if cold or light:
        from gpusched.runtime import agentless

        return run_shim(spec, agentless.run_torchrun if cold else agentless.run_alone, unborn)
    from gpusched.runtime.agent import run_agent

    return run_shim(spec, run_agent, unborn)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpusched.runtime.warm")
    parser.add_argument("descriptor", type=int)
    parser.add_argument("--preload", default="", help="comma-separated modules to import once")
    parser.add_argument(
        "--path", default="", help="the script's folder: preloaded modules may lie there"
    )
    parser.add_argument(
        "--light", action="store_true", help="without torch until several ranks are asked for"
    )
    parser.add_argument("--cold", action="store_true", help="without torch: shims run torchrun")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    given = _arguments(words)
    # Imports take seconds of processor time: none of it for a daemon that is dead.
    end_with_parent(True)
    line = socket.socket(fileno=given.descriptor)
    line.set_inheritable(False)
    preload = [name for name in given.preload.split(",") if name]
    gc.disable()
    if given.light:
        for module in LIGHT:
            importlib.import_module(module)
    elif not given.cold:
        import_agent()
    settle()
    put_title(f"gpusched: {'cold' if given.cold else 'warm'} server")
    if given.path:
        sys.path.insert(0, given.path)
    lazy = [] if given.cold else [*([] if given.light else HEAVY), *preload]
    WarmServer(line, Imports(lazy, preload), cold=given.cold, light=given.light).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())

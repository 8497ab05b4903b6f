"""The daemon's end of the warm server: starts it, starts it again when it dies, says what it says.

Its frames are in ``protocol``; what it does is in ``gpusched/runtime/warm.py``. It is started before anything
else is, as importing torch takes a second. It belongs to a session of its own, so that no terminal ends it.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gpusched
from gpusched.errors import InputError
from gpusched.executors.hub import Peer
from gpusched.executors.live import Setting
from gpusched.processes.identity import MARK, MARK_WIDTH_BYTES
from gpusched.processes.outcome import last_line
from gpusched.protocol import FromServer, LaunchSpec, PreloadFailed, Ready, from_server
from gpusched.recipe.recipe import Recipe

MOST_FALSE_STARTS = 3
_START = "import sys; sys.path.append({root!r}); from gpusched.runtime.warm import main; sys.exit(main())"

_FOREIGN = re.compile(
    r"PET_.*|TORCHELASTIC_.*|(GROUP_|LOCAL_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|GPUSCHED_(?!DEBUG$).*"
)
"""Variables of a torchrun (``PET_*`` are its defaults) or a trial around us that must not reach a trial."""


def given_env(recipe: Recipe) -> dict[str, str]:
    """Return the variables that the recipe sets and that have a value."""
    return {name: value for name, value in recipe.env.items() if value is not None}


def environment_for_trials(recipe: Recipe) -> dict[str, str]:
    """Ours without what would confuse a trial, with what the recipe sets."""
    ours = {name: value for name, value in os.environ.items() if not _FOREIGN.fullmatch(name)}
    return {**ours, **given_env(recipe)}


class Server:
    """The warm server, whichever process that is now; it keeps launches until all is imported.

    ``on_frame`` gets what the process says of launches, ``on_gone`` is called when it has died.
    """

    def __init__(
        self,
        setting: Setting,
        on_frame: Callable[[FromServer], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._hub = setting.hub
        self._log = setting.paths.root / "warm.log"
        self._root = setting.paths.root
        self._recipe = setting.recipe
        self._say = setting.say
        self._on_frame = on_frame
        self._on_gone = on_gone
        self._clock = setting.clock
        #: Time at which all was imported.
        self.ready_at = 0.0
        self._peer: Peer | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._old: list[subprocess.Popen[bytes]] = []
        self._false_starts = 0
        self._ready = False

    @property
    def pid(self) -> int | None:
        """Of the server that is running now."""
        return self._process.pid if self._process is not None else None

    def want(self) -> None:
        """Start a server, unless one has been started.

        Raises ``InputError`` where it died ``MOST_FALSE_STARTS`` times before all was imported: no torch, mostly.
        """
        if self._process is not None:
            return
        self._old = [process for process in self._old if process.poll() is None]
        if self._false_starts >= MOST_FALSE_STARTS:
            raise InputError(
                f"{sys.executable}: trials cannot be started: {last_line(self._log) or 'it said nothing'}\n"
                f"  Check that this interpreter can `import torch` (`gpusched doctor`); all of it is in {self._log}"
            )
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            self._process = self._spawn(theirs)
        self._ready = False
        self._peer = self._hub.adopt(ours)
        self._peer.hear(from_server, self._heard)
        self._peer.on_end = self._ended

    def _spawn(self, line: socket.socket) -> subprocess.Popen[bytes]:
        recipe = self._recipe
        script = recipe.cwd / recipe.script
        root = str(Path(gpusched.__file__).parent.parent)
        words = [sys.executable, "-P", "-c", _START.format(root=root), str(line.fileno())]
        if recipe.launch == "cold":
            words.append("--cold")
        words += ["--path", str(script.parent)]
        if recipe.preload is not None:
            words += ["--preload", ",".join(recipe.preload)]
        environment = environment_for_trials(recipe)
        environment[MARK] = " " * MARK_WIDTH_BYTES
        environment["GPUSCHED_DIR"] = str(self._root)
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=[line.fileno()],
                start_new_session=True,
            )
        finally:
            os.close(log)

    def launch(self, spec: LaunchSpec) -> None:
        """Ask for a launch. Raises as ``want`` does. ``on_gone`` tells of a server that did not take it."""
        self.want()
        if self._peer is not None:
            self._peer.send(spec)

    def close(self, *, idle: bool = False) -> None:
        """Let go. The server lives on until its last shim is gone; ``idle`` says that no shim is left, so the
        server ends at once, even while importing.
        """
        if self._peer is not None:
            self._peer.on_end = None
            self._peer.close()
        for process in (self._process, *self._old):
            if process is not None:
                if idle and process.poll() is None:
                    process.terminate()
                # The process may outlive the daemon, by design.
                process.returncode = process.poll() or 0

    def _heard(self, frame: FromServer) -> None:
        match frame:
            case Ready():
                self._ready, self._false_starts, self.ready_at = True, 0, self._clock()
            case PreloadFailed(tainted=True):
                raise InputError(
                    f"`preload` of the recipe: {frame.module} cannot be preloaded: {frame.message}; leave it out"
                )
            case PreloadFailed():
                self._say(f"preload: {frame.module} is not preloaded: {frame.message}")
            case _:
                self._on_frame(frame)

    def _ended(self) -> None:
        was_ready, self._ready = self._ready, False
        self._peer = None
        if self._process is not None:
            self._old.append(self._process)
            self._process = None
        if not was_ready:
            self._false_starts += 1
        self._on_gone()

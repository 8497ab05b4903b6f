"""A real terminal for tests: a tmux server of its own, gone when the test is."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.rig import wait_until

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "ready>"


class Terminal:
    """A shell in a terminal of ``columns`` by ``rows``."""

    def __init__(
        self, folder: Path, columns: int, rows: int, environment: Mapping[str, str] | None = None
    ) -> None:
        self._socket = folder / "tmux.sock"
        shell = "bash --norc --noprofile"
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        settings = {
            "PS1": f"{PROMPT} ",
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
            **(environment or {}),
        }
        assigned = " ".join(
            f"{name}={shlex.quote(value)}" for name, value in {**kept, **settings}.items()
        )
        begin = f"-f /dev/null new-session -d -x {columns} -y {rows} -c"
        self._tmux(*begin.split(), str(ROOT), f"env -i TERM=screen-256color {assigned} {shell}")
        self._tmux("set-option", "-g", "escape-time", "0")
        self.wait(PROMPT)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-u", "-S", str(self._socket), *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def type(self, text: str) -> None:
        """A line for the shell."""
        self._tmux("send-keys", "-l", text)
        self.keys("Enter")

    def keys(self, *names: str) -> None:
        """Keys by tmux's names, a moment apart as from a person."""
        for name in names:
            self._tmux("send-keys", name)
            time.sleep(0.03)

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def ask(self, question: str) -> str:
        """A tmux format, such as ``#{alternate_on}``."""
        return self._tmux("display-message", "-p", question).strip()

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def wait(self, pattern: str) -> str:
        """The screen once it matches."""

        def matches() -> str:
            shown = self.screen()
            return shown if re.search(pattern, shown) else ""

        return wait_until(matches, lambda: f"{pattern!r} on this screen:\n{self.screen()}")

    def close(self) -> None:
        subprocess.run(
            ["tmux", "-S", str(self._socket), "kill-server"], capture_output=True, check=False
        )

"""How trials are launched: what the executor needs of the recipe."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

_FOREIGN = re.compile(
    r"PET_.*|TORCHELASTIC_.*|(GROUP_|LOCAL_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|GPUSCHED_(?!DEBUG$).*"
)
"""Variables of a torchrun (``PET_*`` are its defaults) or a trial around us that must not reach a trial."""

_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
_USES_TORCH = re.compile(r"\b(torch\w*|lightning|pytorch_lightning|transformers|timm|accelerate)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """``metric``: the name that every report must have. ``env``: variables that the recipe sets, for the ranks as well.

    ``launch: cold`` runs plain ``torchrun`` with ``python`` (None: this interpreter); ``preload`` is for warm only.
    Times in seconds.
    """

    script: Path
    metric: str
    args: tuple[str, ...] = ()
    cwd: Path = field(default_factory=Path.cwd)
    env: Mapping[str, str] = field(default_factory=dict)
    launch: Literal["warm", "cold"] = "warm"
    python: str | None = None
    preload: tuple[str, ...] = ()
    seed: int = 0
    release_limit_s: float = 60.0
    kill_margin_s: float = 15.0
    unkillable_after_s: float = 60.0

    @property
    def absolute_script(self) -> Path:
        return self.cwd / self.script

    @property
    def interpreter(self) -> str:
        return self.python or sys.executable


def environment_for_trials(settings: LaunchSettings) -> dict[str, str]:
    """Ours without what would confuse a trial, with what the recipe sets."""
    ours = {name: value for name, value in os.environ.items() if not _FOREIGN.fullmatch(name)}
    return {**ours, **settings.env}


def uses_torch(script: Path) -> bool:
    """Whether the script, or a module beside it that it imports, speaks of torch.

    Then the warm server imports all that torch loads lazily before it launches anything: each rank would pay for that
    itself, and most at once. A script that only sleeps and reports is launched a second earlier. A wrong answer costs
    time, nothing else.
    """
    return any(_USES_TORCH.search(text) for text in _sources(script))


def _sources(script: Path) -> Iterator[str]:
    with suppress(OSError):
        text = script.read_text("utf-8", "replace")
        yield text
        for name in dict.fromkeys(_IMPORT.findall(text)):
            module = script.with_name(f"{name}.py")
            with suppress(OSError):
                if module.is_file() and module != script:
                    yield module.read_text("utf-8", "replace")

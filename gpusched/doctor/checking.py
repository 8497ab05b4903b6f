"""One line of ``gpusched doctor``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """``fail``: a search will not work as asked for; ``warn``: it will, but; ``advice``: what to do about it."""

    name: str
    state: State
    detail: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

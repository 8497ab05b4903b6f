"""Libraries that every launch of a script imports, and that the warm server could import once for all of them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

MANY = 150
"""Modules of libraries from which on importing them is worth a word: about half a second."""

_before: frozenset[str] | None = None


def note_present() -> None:
    """Note the modules that this process, the warm server, has for its forks."""
    global _before
    _before = frozenset(sys.modules)


def advice(script: str | None) -> str | None:
    """Return what to preload, if this launch has imported much that the server had not; None otherwise."""
    if _before is None or script is None:
        return None
    new = [name for name in sys.modules.keys() - _before if _is_of_a_library(name)]
    named = [name for name in _imported_by(Path(script)) if name in new]
    if len(new) < MANY or not named:
        return None
    return (
        f"every launch imports {', '.join(named)} anew ({len(new)} modules): `preload: [{', '.join(named)}]` in the "
        f"recipe imports them once for all trials"
    )


def _is_of_a_library(name: str) -> bool:
    return "site-packages" in (getattr(sys.modules.get(name), "__file__", None) or "")


def _imported_by(script: Path) -> list[str]:
    """Return the absolute names of the modules that a script imports."""
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return []
    names = dict[str, None]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names[node.module] = None
    return list(names)

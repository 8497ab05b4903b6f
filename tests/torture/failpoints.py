"""The failpoints of the package, by the process that passes them; each of these is died at."""

import re
from pathlib import Path

from gpusched import failpoints

THERE = {
    name: file.parent.name
    for file in sorted(Path(failpoints.__file__).parent.rglob("*.py"))
    for name in re.findall(r'failpoints\.reach\("([^"]+)"\)', file.read_text())
}
"""Room by name; those of commands are not among them."""

SERVER = ("server.forked",)
"""Points that the warm server passes."""

WORKER = tuple(
    name for name in THERE if THERE[name] in ("runtime", "worker") and name not in SERVER
)
"""Points that a shim or a rank passes."""

DAEMON = (
    *(name for name in THERE if name not in (*SERVER, *WORKER)),
    *(
        f"{command}.{when}"
        for command in ("Launch", "Yield", "Save", "Kill", "ConfirmRelease", "KeepBest")
        for when in ("before", "after")
    ),
)
"""Points that a daemon passes."""

"""The failpoints of the package, by the process that passes them; each of these is died at."""

DAEMON = (
    "epoch.before",
    "epoch.file",
    "epoch.after",
    "resume.replayed",
    "resume.reconciled",
    "journal.before",
    "journal.inserted",
    "journal.synced",
    "journal.marked",
    *(
        f"{command}.{when}"
        for command in ("Launch", "Yield", "Save", "Kill", "ConfirmRelease", "KeepBest")
        for when in ("before", "after")
    ),
    "best.built",
    "best.renamed",
    "best.pointed",
    "final.before",
    "final.after",
    "final.removed",
)
"""Points that a daemon passes."""

SERVER = ("server.forked",)
"""Points that the warm server passes."""

WORKER = (
    "claim.before",
    "claim.after",
    "exit.before",
    "exit.written",
    "exit.told",
    "report.written",
    "report.answered",
    "checkpoint.staged",
    "checkpoint.renamed",
    "lastword.before",
    "lastword.after",
)
"""Points that a shim or a rank passes."""

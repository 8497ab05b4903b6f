"""Looks for a snapshot in the working directory, where another trial may have left one."""

from __future__ import annotations

from pathlib import Path

import gpusched

trial = gpusched.init()
trial.track()  # the step is all there is
was_there = Path("snapshot.pt").exists()
Path("snapshot.pt").touch()
trial.report(score=float(was_there), own=float(Path.cwd() == trial.folder))

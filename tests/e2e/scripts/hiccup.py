"""Raises behind its first checkpoint: once or, as a mistake would, whenever it comes to that step."""

import time

import gpusched

trial = gpusched.init()
trial.track()
place = trial.folder / "raised"
for step in trial.steps():
    time.sleep(0.02)
    raised = int(place.read_text()) if place.exists() else None
    if raised is None and any(trial.folder.parent.glob("checkpoints/step-*/manifest.json")):
        place.write_text(str(raised := step))
        raise OSError(116, "Stale file handle")
    if raised is not None and step >= raised:
        if trial.hparams.fault == "always":
            raise OSError(116, "Stale file handle")
        break
    trial.report(score=step)

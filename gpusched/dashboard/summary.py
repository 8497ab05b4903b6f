"""The end of ``gpusched run`` in words: the winner and where its checkpoint lies, or what to do without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpusched.dashboard.model import BestRow, Standing
from gpusched.folder.paths import ExperimentPaths
from gpusched.text import count, hparam_texts, show_duration, show_metric

INTERRUPTED = (
    "The experiment has no daemon: 'gpusched resume' goes on while there is time left, "
    "'gpusched resume --deadline 30m' gives more."
)


def summary(view: Standing) -> str:
    """Word the end in some lines of plain text."""
    if view.best is None:
        lines = [_headline(view), "", *_no_winner(view)]
    else:
        lines = [_headline(view), "", *_winner(view, view.best), *failures(view)]
    return "\n".join(lines)


def _headline(view: Standing) -> str:
    counts = ", ".join(f"{number} {state}" for state, number in view.trial_counts.items() if number)
    trials = count(view.trials_total, "trial") + (f" ({counts})" if counts else "")
    words = {"finished": "is over", "interrupted": "was interrupted"}
    how = words.get(view.state, f"is {view.state}")
    why = f" ({view.ending})" if view.ending and view.state == "finished" else ""
    return f"{view.experiment} {how}{why} after {show_duration(view.now_s)}: {trials}"


def _winner(view: Standing, best: BestRow) -> Iterator[str]:
    atoms = f", on {count(best.atoms, 'atom')}" if best.atoms else ""
    score = f"{show_metric(best.metric)}  (trial {best.trial} at step {best.step}{atoms})"
    rows = [(view.metric, score), *hparam_texts(best.hparams)]
    simulated = all(device.id.startswith("sim:") for device in view.devices)
    if view.folder and not (view.devices and simulated):
        checkpoint = ExperimentPaths(Path(view.folder)).best / "checkpoint"
        rows.append(("checkpoint", str(checkpoint)))
    column = max(len(name) for name, _ in rows)
    for name, value in rows:
        yield f"  {name:<{column}}  {value}"
    better = view.best_unsaved
    if better is not None:
        yield (
            f"Behind the best report, {show_metric(better.metric)} of trial {better.trial} at step {better.step}, "
            f"which has no checkpoint: {better.why}."
        )
    yield ""
    if view.state == "interrupted":
        yield INTERRUPTED
    else:
        story = f"gpusched explain {best.trial}"
        yield f"  {'gpusched best':<{len(story)}}  how to load the model"
        yield f"  {story}  the trial's story"
        yield f"  {'gpusched report':<{len(story)}}  plots of the whole search"


def failures(view: Standing) -> Iterator[str]:
    """Say that trials failed, and why the first did."""
    failed = [trial for trial in view.trials if trial.error]
    if failed:
        first = min(failed, key=lambda trial: trial.id)
        trials = count(view.trial_counts.get("failed", len(failed)), "trial")
        yield f"{trials} failed; the first, trial {first.id} at step {first.step}: {first.error}"


def _has_begun(experiment: Path, trial: int) -> bool:
    """Tell whether a rank of the trial's first launch was started: the rank has a log then, which may be empty."""
    logs = ExperimentPaths(experiment).trial(trial).logs(1)
    return not logs.parent.is_dir() or any(logs.glob("rank-*"))


def _no_winner(view: Standing) -> Iterator[str]:
    """Say why no model was found, as far as that can be told, and what to do."""
    failed = [trial for trial in view.trials if trial.error]
    if failed:
        first = min(failed, key=lambda trial: trial.id)
        yield f"No trial left a model. The first failure, of trial {first.id} at step {first.step}:"
        yield f"  {first.error}"
        yield f"'gpusched logs {first.id}' shows what the trial printed. Mend the script or the recipe and run again."
    elif view.state == "interrupted":
        yield INTERRUPTED
    elif not view.trials_total:
        yield "No trial was started; 'gpusched gpus' shows the devices and who holds them."
    elif view.folder and not any(_has_begun(Path(view.folder), trial.id) for trial in view.trials):
        yield "No script was started before the end: importing the modules of the trials took all the time."
        yield "Give a longer --deadline."
    elif all(trial.step == 0 for trial in view.trials):
        yield "No trial reported a step before the end. The script must call trial.report(..) after each step; if a"
        yield "step takes longer, give a longer --deadline. 'gpusched logs 0' shows how far the first trial came."
    elif all(trial.metric is None for trial in view.trials):
        yield f"No report of {view.metric} was a finite number, so no trial can be the best; diverging training is the"
        yield "usual cause: try smaller learning rates."
    else:
        yield "Trials reported, but none saved a checkpoint: the script must hand its model to trial.track()."

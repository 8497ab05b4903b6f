"""A recipe's script tried before its search: ``validate --rehearse`` moves a trial about as a search would."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.text import Text

from gpusched.cli import common
from gpusched.daemon import session
from gpusched.daemon import start as launchpad
from gpusched.dashboard.feed import LogTail
from gpusched.doctor.findings import Finding, Judgement, RehearsedLaunch, RehearsedTrial
from gpusched.doctor.rehearsal import judge
from gpusched.driver.assemble import Beginning
from gpusched.errors import DeviceError, GpuschedError
from gpusched.folder import find
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal import timeline
from gpusched.policies import rehearsal as policy
from gpusched.recipe.recipe import DEFAULT_SAMPLER, Recipe
from gpusched.text import count, show_duration, show_hparams

STILL_FROM = 3
"""From this launch on a trial that is moved trains in vain, its parameters put back (``worker/onlooker.py``)."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """One configuration as the rehearsal saw it. ``folder``: of the experiment, kept if anything was found."""

    hparams: Mapping[str, Any]
    judgement: Judgement
    moved: RehearsedTrial
    alone: RehearsedTrial
    folder: Path

    @property
    def findings(self) -> list[Finding]:
        """Findings of a rehearsal, mistakes first."""
        return sorted(self.judgement.findings, key=lambda finding: not finding.is_error)

    @property
    def is_good(self) -> bool:
        return not self.judgement.errors

    def reports(self) -> Iterator[dict[str, Any]]:
        """Yield every report beside that of the trial that was left alone."""

        def told(row: Mapping[str, Any]) -> dict[str, Any]:
            rate = max(row.get("rates", ()), default=None)
            return {"rate": rate, "metrics": row.get("metrics", {})}

        for launch in self.moved.launches:
            for row, *_ in launch.reports:
                alone = told(self.alone.by_step.get(row["step"], [{}])[0])
                yield {"step": row["step"], "atoms": launch.atoms, **told(row), "alone": alone}

    def to_json(self) -> dict[str, Any]:
        return {
            "hparams": dict(self.hparams),
            "ok": self.is_good,
            "findings": [finding.to_json() for finding in self.findings],
            "sizes": [launch.atoms for launch in self.moved.launches],
            "compared": [
                {"launch": launch, "what": what, "outcome": outcome, "about": about}
                for (launch, what), (outcome, about) in self.judgement.verdicts.items()
            ],
            "reports": list(self.reports()),
            "folder": str(self.folder) if self.findings else None,
        }

    def lines(self) -> list[str]:
        """Word the rehearsal for people."""
        signs = {True: "WRONG  ", False: "note   "}
        found = [
            common.paragraph(finding.text, signs[finding.is_error], " " * 7)
            for finding in self.findings
        ]
        return [
            f"rehearsed {show_hparams(self.hparams)}:",
            *found,
            *map(common.paragraph, _verdicts(self.judgement)),
            *([f"the logs are in {self.folder}"] if self.findings else []),
        ]


def _verdicts(judgement: Judgement) -> Iterator[str]:
    """Say by launch what is the same as left alone, what was not compared, and what is wrong."""
    told: dict[str, dict[str, list[str]]] = {}
    for (launch, what), (outcome, about) in judgement.verdicts.items():
        by_outcome = told.setdefault(launch, {"the same as left alone": []})
        if outcome == "not compared":
            by_outcome.setdefault(f"{outcome}, because {about}", []).append(what)
        else:
            words = "the same as left alone" if outcome == "same" else outcome
            by_outcome.setdefault(words, []).append(f"{what} ({about})" if about else what)
    for launch, by_outcome in told.items():
        parts = [f"{words}: {', '.join(whats)}" for words, whats in by_outcome.items() if whats]
        yield f"{launch}: {'; '.join(parts)}"


def rehearse(
    recipe: Recipe, runs: Path, limit_s: float, configurations: int = 1
) -> list[Rehearsed]:
    """Run the first configurations of a recipe as a search would, and look on. Raises InputError, DeviceError."""
    folder = _own_folder(runs / ".rehearsals")
    devices, small, large, few = _sizes(recipe)
    sizes = (small, small) if large is None else (small, small, large, small)
    recipe = _scripted(replace(recipe, devices=devices), sizes, limit_s, configurations)
    paths = launchpad.make_experiment(folder, recipe, Beginning.now())
    launchpad.start_daemon(paths)
    try:
        _show_until_end(paths)
    except KeyboardInterrupt:
        with suppress(GpuschedError):
            session.ask(paths, "cancel")
        raise
    told = timeline.read(paths.journal)
    found = []
    for number in sorted(told.trials)[::2]:
        moved, alone = (_read(paths, told.trials.get(each)) for each in (number, number + 1))
        judgement = judge(moved, alone)
        judgement.findings += few
        last = told.trials[number].incarnations[-1:]
        has_ended = any(one.outcome == "finished" for one in last)
        senseless = _senseless(recipe.metric, moved, alone)
        unseen = _unseen(moved, alone, sizes, limit_s, has_ended=has_ended)
        # The search is given up after as many reports without a number, so what it left out is no news.
        judgement.findings += senseless
        judgement.findings += [one for one in unseen if one.kind == "told" or not senseless]
        hparams = told.trials[number].hparams
        found.append(Rehearsed(hparams, judgement, moved, alone, paths.root))
    if not found:
        raise GpuschedError(
            f"nothing was rehearsed, no trial has begun: {paths.log} has the details"
        )
    if not any(rehearsal.findings for rehearsal in found):
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _show_until_end(paths: ExperimentPaths) -> None:
    """Show the newest line of the search's log on a terminal until its daemon is gone: a rehearsal may take minutes."""
    told = LogTail(paths.log)
    with Console(stderr=True).status("rehearsing") as status:
        while find.has_daemon(paths):
            line = "  ".join(["rehearsing", *map(str.strip, told.lines()[-1:])])
            status.update(Text(line, no_wrap=True, overflow="ellipsis"))
            time.sleep(0.1)


def _own_folder(rehearsals: Path) -> Path:
    """Return a folder of this process, and remove those of processes that are gone and have left no daemon."""
    for folder in rehearsals.glob("*"):
        is_at_work = psutil.pid_exists(int(folder.name)) if folder.name.isdecimal() else False
        if not is_at_work and not any(map(find.has_daemon, find.experiments(folder))):
            shutil.rmtree(folder, ignore_errors=True)
    return rehearsals / str(os.getpid())


def _sizes(recipe: Recipe) -> tuple[Any, int, int | None, list[Finding]]:
    """Return the devices, the sizes between which the trial goes, and what few free GPUs leave out.

    The larger size is None where the trial cannot grow. Raises DeviceError.
    """
    from gpusched.devices.base import NoHost
    from gpusched.executors.local.launching import devices_of

    found = devices_of(recipe, Path.cwd() / "count", ())
    try:
        kind, devices = found.kind, found.open(NoHost())
    finally:
        found.close()
    small, *larger = recipe.sizes or (1, 2)
    most = recipe.max_atoms or math.inf
    large = larger[0] if larger and larger[0] <= most else None
    wanted, free = large or small, sum(device.usable for device in devices)
    if free >= wanted:
        return recipe.devices, small, large, []
    if kind == "cpu":
        return f"cpu:{wanted}", small, large, []
    why = f"{free} of {count(len(devices), 'GPU')} can be used now"
    if free < small:
        raise DeviceError(
            f"a trial needs {small}, but {why} ('gpusched gpus' shows who holds them)"
        )
    text = f"{why}, so a trial on {wanted} was not rehearsed ('gpusched gpus' shows who holds them)"
    few = [Finding("not rehearsed", text, is_error=False)] if len(devices) >= wanted else []
    return recipe.devices, small, None, few


def _scripted(
    recipe: Recipe, sizes: tuple[int, ...], limit_s: float, configurations: int
) -> Recipe:
    """Return the recipe as a search of pairs of trials with the same configuration."""
    drawn = recipe.configurations()
    first = [found for n in range(configurations) if (found := drawn.sample(n)) is not None]
    return replace(
        recipe,
        policy_name=policy.REHEARSAL,
        policy_options=asdict(policy.Options(sizes=sizes, steps=2)),
        sampler_name=DEFAULT_SAMPLER,
        sampler_options={},
        try_first=tuple(one for one in first for _ in range(2)),
        max_trials=2 * len(first),
        max_failures=2 * len(first),
        deadline_s=limit_s,
        target=None,
        log_to={},
        env={**recipe.env, "GPUSCHED_REHEARSAL": str(STILL_FROM)},
    )


def _read(paths: ExperimentPaths, trial: timeline.TrialTimeline | None) -> RehearsedTrial:
    """Read what the ranks wrote down; a report that the journal does not have did not count."""
    if trial is None:
        return RehearsedTrial(())
    files = paths.trial(trial.id)
    launches = []
    for incarnation in trial.incarnations:
        seen = sorted(files.logs(incarnation.number).glob("seen-*.jsonl"))
        # A rank that was killed may have left half a line.
        whole = [path.read_text().rpartition("\n")[0] for path in seen]
        rows = [map(json.loads, text.splitlines()) for text in whole]
        ranks = [{row["step"]: row for row in one} for one in rows]
        counted = [step.report.step for step in incarnation.steps]
        reports = [[row[step] for row in ranks if step in row] for step in counted]
        error = None
        out_of_time = incarnation.outcome == "killed" and not incarnation.error and any(reports)
        if incarnation.outcome in ("failed", "killed") and not out_of_time:
            error = (incarnation.error or incarnation.outcome).partition("\nTraceback ")[0]
        elif incarnation.outcome == "finished" and not any(trial.steps()):
            error = "it ended without a report: call gpusched.init(), and trial.report(..) once an epoch"
        found = [rows for rows in reports if rows]
        launches.append(RehearsedLaunch(len(incarnation.devices), found, error))
    return RehearsedTrial(launches, tuple(common.said(files)))


def _senseless(metric: str, *trials: RehearsedTrial) -> list[Finding]:
    """Say that no report of the metric was a finite number."""
    reports = [rows[0] for trial in trials for launch in trial.launches for rows in launch.reports]
    if not reports or any(math.isfinite(row["metrics"].get(metric, math.nan)) for row in reports):
        return []
    text = (
        f"every report of {metric} is NaN or infinite: print what it is computed from (an empty loader? a division "
        f"by 0?), or lower the learning rate"
    )
    return [Finding("no metric", text)]


def _unseen(
    moved: RehearsedTrial,
    alone: RehearsedTrial,
    sizes: tuple[int, ...],
    limit_s: float,
    *,
    has_ended: bool,
) -> list[Finding]:
    """Return what gpusched told the script, and what could not be rehearsed."""
    errors = {launch.error for trial in (moved, alone) for launch in trial.launches}
    found = [
        Finding("told", text, is_error=False)
        for text in dict.fromkeys((*moved.said, *alone.said))
        if text not in errors
    ]
    went = [launch.atoms for launch in moved.launches if launch.reports]
    if not any(errors) and len(went) < len(sizes):
        why = (
            f"the script ended at step {max(moved.by_step, default=0)}, in launch {len(went)} of {len(sizes)}, so the "
            f"rest was not rehearsed: give it more steps to see that too"
            if has_ended
            else f"the script had {len(went)} of {len(sizes)} launches within {show_duration(limit_s)}, so the rest "
            f"was not rehearsed (--limit TIME gives it longer)"
        )
        found.append(Finding("not rehearsed", why, is_error=False))
    elif not any(errors) and (step := max(alone.by_step, default=0)) < max(
        moved.by_step, default=0
    ):
        why = (
            f"the time ({show_duration(limit_s)}) was over when the trial left alone had step {step}, so little was "
            f"compared (--limit TIME gives it longer)"
        )
        found.append(Finding("not rehearsed", why, is_error=False))
    return found

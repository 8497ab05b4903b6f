"""HyperSched (SoCC'19): figures 4 to 10 on the synthetic workload, the same grids; the two rules of section 4.3."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusched.core.commands import Command, Launch
from gpusched.core.events import Event, Reported, TrialExited
from gpusched.sim.physics import Delays
from gpusched.sim.setup import Setup, recipe
from gpusched.sim.study import Result, simulate
from papers import ablations, study
from papers.study import STEPS, Study, best

SEEDS = 20
SCALINGS = ("linear", "sqrt", "none")
KEYS = ("label", "atoms", "deadline", "scaling", "delay")
MEASURES = {"score": best, "trials": lambda result: float(result.trials)}


def _each_seed(quick: bool, setups: Iterable[Setup]) -> list[Setup]:
    from dataclasses import replace

    return [replace(setup, seed=seed) for setup in setups for seed in range(2 if quick else SEEDS)]


def _setup(label: str, atoms: int, deadline: float, options: dict[str, Any], **more: Any) -> Setup:
    return Setup(
        policy=ablations.NAME,
        label=label,
        atoms=atoms,
        deadline_s=float(deadline),
        options={**STEPS, **options},
        **more,
    )


def _startup(delay: float) -> Delays:
    """ "Forcing the simulation to sleep right after resizing or starting"."""
    return Delays(launch_s=delay, resize_s=delay)


# ---------------------------------------------------------------- figure 5: speculation

VARIANTS_5 = {
    "speculation": {},
    "no speculation": {"speculation": False},
    "speculation, never idle (default)": {"never_idle": True},
    "no speculation, never idle": {"never_idle": True, "speculation": False},
}


def setups_5(quick: bool) -> list[Setup]:
    grid = [
        _setup(label, atoms, deadline, options)
        for atoms in ((4, 8) if quick else (4, 8, 16, 32))
        for deadline in ((15,) if quick else (15, 30, 60, 120))
        for label, options in VARIANTS_5.items()
    ]
    return _each_seed(quick, grid)


def draw_5(results: Sequence[Result], folder: Path) -> list[str]:
    name, title = "hypersched-5", "HyperSched figure 5: speculative evaluation"
    found = study.points(results, MEASURES, KEYS)
    study.write(folder, name, title, found)
    atoms = sorted({point["atoms"] for point in found})
    figure, axes = study.panels(len(atoms))
    for one, n in zip(axes, atoms, strict=True):
        study.lines(one, [p for p in found if p["atoms"] == n], "deadline", "score")
        one.set_title(f"{n} atoms", fontsize="small")
        one.set_xlabel("deadline (time units)")
    axes[0].set_ylabel("score")
    axes[-1].legend(fontsize="x-small")
    study.save(figure, folder, name, title)
    gain = study.ratio(found, "score", "speculation", "no speculation")
    said = [f"figure 5: speculation / no speculation, mean over the grid: {gain:.2f}"]
    for point in found:
        if point["label"] == "speculation":
            rest = [
                p
                for p in found
                if (p["atoms"], p["deadline"]) == (point["atoms"], point["deadline"])
            ]
            scores = ", ".join(
                f"{p['label']} {p['score']:.3f} ({p['trials']:.0f} trials)" for p in rest
            )
            said.append(f"  {point['atoms']} atoms, T {point['deadline']:g}: {scores}")
    return said


# ---------------------------------------------------------------- figure 7: entrance policy

FRACTIONS = (0.1, 0.25, 0.5, 0.75, 1.0)


def setups_7(quick: bool) -> list[Setup]:
    grid = []
    for atoms in (4,) if quick else (4, 16):
        for deadline in (10,) if quick else (10, 20, 30):
            grid.append(_setup("entrance policy", atoms, deadline, {}))
            for fraction in FRACTIONS:
                options = {"exploration_fraction": fraction}
                grid.append(_setup(f"{fraction:g}", atoms, deadline, options))
    return _each_seed(quick, grid)


def draw_7(results: Sequence[Result], folder: Path) -> list[str]:
    name, title = "hypersched-7", "HyperSched figure 7: entrance policy against fixed fractions"
    found = study.points(results, MEASURES, KEYS)
    study.write(folder, name, title, found)
    atoms = sorted({point["atoms"] for point in found})
    figure, axes = study.panels(len(atoms), width=4.2)
    places, shares = 0, []
    for one, n in zip(axes, atoms, strict=True):
        deadlines = sorted({point["deadline"] for point in found})
        for place, deadline in enumerate(deadlines):
            here = [p for p in found if (p["atoms"], p["deadline"]) == (n, deadline)]
            fixed = [p for p in here if p["label"] != "entrance policy"]
            (own,) = [p for p in here if p["label"] == "entrance policy"]
            xs = [float(point["label"]) for point in fixed]
            scores = [point["score"] for point in fixed]
            widths = [point["score_half_width"] for point in fixed]
            color = f"C{place}"
            one.errorbar(xs, scores, widths, capsize=2, color=color, label=f"fixed, T {deadline:g}")
            one.axhline(
                own["score"], color=color, linestyle="--", label=f"entrance, T {deadline:g}"
            )
            places += 1 + sum(score > own["score"] for score in scores)
            shares.append(own["score"] / max(scores))
        one.set_title(f"{n} atoms", fontsize="small")
        one.set_xlabel("exploration time fraction")
    axes[0].set_ylabel("score")
    axes[-1].legend(fontsize="x-small")
    study.save(figure, folder, name, title)
    rank = places / len(shares)
    return [
        f"figure 7: the entrance policy is on average {rank:.1f}th of {len(FRACTIONS) + 1} "
        f"and has {min(shares):.2f} to {max(shares):.2f} of the best fixed fraction's score"
    ]


# ---------------------------------------------------------------- figure 8: dynamic allocation


def setups_8(quick: bool) -> list[Setup]:
    grid = [
        _setup(label, atoms, 10, {"resize": label == "resizing"}, scaling=scaling)
        for scaling in SCALINGS
        for atoms in ((4,) if quick else (2, 4, 8, 16))
        for label in ("resizing", "no resizing")
    ]
    return _each_seed(quick, grid)


def draw_8(results: Sequence[Result], folder: Path) -> list[str]:
    name, title = "hypersched-8", "HyperSched figure 8: dynamic allocation, T 10"
    found = study.points(results, MEASURES, KEYS)
    study.write(folder, name, title, found)
    figure, axes = study.panels(len(SCALINGS))
    said = []
    for one, scaling in zip(axes, SCALINGS, strict=True):
        here = [point for point in found if point["scaling"] == scaling]
        study.lines(one, here, "atoms", "score")
        one.set_title(f"scaling {scaling}", fontsize="small")
        one.set_xlabel("atoms")
        one.set_xscale("log", base=2)
        numbers = sorted({point["atoms"] for point in here})
        one.set_xticks(numbers, [str(n) for n in numbers])
        said.append(f"{scaling} {study.ratio(here, 'score', 'resizing', 'no resizing'):.2f}")
    axes[0].set_ylabel("score")
    axes[0].legend(fontsize="x-small")
    study.save(figure, folder, name, title)
    return [f"figure 8: resizing / no resizing: {', '.join(said)}"]


# ---------------------------------------------------------------- figure 9: profile

BLIND = {"overhead_aware": False, "assume_linear": True}


def setups_9(quick: bool) -> list[Setup]:
    grid = [
        _setup(label, 16, 10, options, scaling="sqrt", delays=_startup(delay))
        for delay in (0.1, 0.5, 1.0)
        for label, options in (("profile", {}), ("no profile", BLIND))
    ]
    return _each_seed(quick, grid)


def draw_9(results: Sequence[Result], folder: Path) -> list[str]:
    name, title = "hypersched-9", "HyperSched figure 9: profiling, N 16, T 10, sqrt"
    found = study.points(results, MEASURES, KEYS)
    study.write(folder, name, title, found)
    figure, (axes,) = study.panels(1, width=4.0)
    study.lines(axes, found, "delay", "score")
    axes.set_xlabel("startup delay (time units)")
    axes.set_ylabel("score")
    axes.legend(fontsize="x-small")
    study.save(figure, folder, name, title)
    said = ["figure 9: scores, and profile less no profile, seed by seed"]
    for delay in sorted({point["delay"] for point in found}):
        scores = " ".join(_score(point) for point in found if point["delay"] == delay)
        gain = study.paired([r for r in results if r.delay == delay], "profile", "no profile")
        said.append(f"  delay {delay:g}: {scores} paired {gain}")
    return said


def _score(point: Mapping[str, Any]) -> str:
    return f"{point['label']} {point['score']:.3f} ± {point['score_half_width']:.3f}"


# ---------------------------------------------------------------- figure 10: delay and scaling


def setups_10(quick: bool) -> list[Setup]:
    grid = [
        _setup(scaling, 4, 20, {}, scaling=scaling, delays=_startup(20 * share))
        for scaling in SCALINGS
        for share in ((0.0, 0.2) if quick else (0.0, 0.01, 0.05, 0.10, 0.20))
    ]
    return _each_seed(quick, grid)


def draw_10(results: Sequence[Result], folder: Path) -> list[str]:
    name, title = "hypersched-10", "HyperSched figure 10: delay and scaling, N 4, T 20"
    measures = {**MEASURES, "throughput": lambda result: result.top_steps / result.deadline}
    found = study.points(results, measures, KEYS)
    study.write(folder, name, title, found)
    figure, axes = study.panels(2, width=3.8, share=False)
    for one, y in zip(axes, ("score", "throughput"), strict=True):
        study.lines(one, found, "delay", y)
        one.set_xlabel("startup delay (time units)")
    axes[0].set_ylabel("score")
    axes[1].set_ylabel("top trial: steps / time unit")
    axes[0].legend(fontsize="x-small")
    study.save(figure, folder, name, title)
    said = []
    for delay in sorted({point["delay"] for point in found}):
        here = [point for point in found if point["delay"] == delay]
        scores = [f"{p['label']} {p['score']:.2f}" for p in here]
        said.append(f"  delay {delay:g}: {', '.join(scores)}")
    return ["figure 10: scores", *said]


# ---------------------------------------------------------------- section 4.3: who gets the atoms left over


def setups_top(quick: bool) -> list[Setup]:
    grid = [
        _setup(rule, atoms, deadline, {"top_job": rule == "top_job"}, scaling=scaling)
        for scaling in SCALINGS[:2]
        for atoms in ((4,) if quick else (4, 8, 16))
        for deadline in ((10,) if quick else (10, 30))
        for rule in ("uniform", "top_job")
    ]
    return _each_seed(quick, grid)


def draw_top(results: Sequence[Result], folder: Path) -> list[str]:
    name, title = "hypersched-top-job", "HyperSched 4.3: all trials in turn, or the best alone"
    found = study.points(results, MEASURES, KEYS)
    study.write(folder, name, title, found)
    figure, axes = study.panels(2, width=4.0)
    for one, scaling in zip(axes, SCALINGS[:2], strict=True):
        for deadline in sorted({point["deadline"] for point in found}):
            here = [p for p in found if (p["scaling"], p["deadline"]) == (scaling, deadline)]
            named = [{**p, "label": f"{p['label']}, T {deadline:g}"} for p in here]
            study.lines(one, named, "atoms", "score")
        one.set_title(f"scaling {scaling}", fontsize="small")
        one.set_xlabel("atoms")
    axes[0].set_ylabel("score")
    axes[0].legend(fontsize="x-small")
    study.save(figure, folder, name, title)
    said = ["top_job and uniform: scores, and top_job less uniform, seed by seed"]
    for place in dict.fromkeys((p["scaling"], p["deadline"], p["atoms"]) for p in found):
        here = [p for p in found if (p["scaling"], p["deadline"], p["atoms"]) == place]
        runs = [r for r in results if (r.scaling, r.deadline, r.atoms) == place]
        gain = study.paired(runs, "top_job", "uniform")
        scaling, deadline, atoms = place
        scores = " ".join(map(_score, here))
        said.append(f"  {scaling}, T {deadline:g}, {atoms} atoms: {scores} paired {gain}")
    return said


# ---------------------------------------------------------------- figures 4 and 6: one search, and what it searches


@dataclass(frozen=True, slots=True)
class Life:
    """One search: (begin, end, trial, atoms) of each launch, (at, trial, score) of each report."""

    deadline: float
    launches: tuple[tuple[float, float, int, int], ...]
    reports: tuple[tuple[float, int, float], ...]


def setups_4(quick: bool) -> list[Setup]:
    """R 2000: with the 500 of the other figures the best trial is complete after a third of this deadline."""
    return [_setup("", 8, 15 if quick else 60, {"R": 2000}, seed=0)]


def live(setup: Setup) -> Life:
    """One run, watched."""
    up: dict[int, tuple[float, int]] = {}
    launches, reports = [], []

    def observer(event: Event, commands: Sequence[Command]) -> None:
        if isinstance(event, TrialExited):
            began, atoms = up.pop(event.trial)
            launches.append((began, event.at, event.trial, atoms))
        elif isinstance(event, Reported) and event.metric is not None:
            reports.append((event.at, event.trial, event.metric))
        for command in commands:
            if isinstance(command, Launch):
                up[command.trial] = (event.at, len(command.devices))

    simulate(setup, observer=observer)
    return Life(setup.deadline_s, tuple(launches), tuple(reports))


def draw_4(results: Sequence[Life], folder: Path) -> list[str]:
    name, title = "hypersched-4", "HyperSched figure 4: one search, N 8, T 60"
    (life,) = results
    first: dict[int, float] = {}
    for began, _, trial, _ in life.launches:
        first[trial] = min(began, first.get(trial, began))
    top = max(life.reports, key=lambda report: report[2])[1]
    found = []
    for part in range(10):
        begin, end = part / 10 * life.deadline, (part + 1) / 10 * life.deadline
        held = [
            (trial, atoms * max(0.0, min(end, ended) - max(begin, began)))
            for began, ended, trial, atoms in life.launches
        ]
        by_trial = {trial: sum(s for t, s in held if t == trial) for trial, _ in held}
        found.append(
            {
                "until": end,
                "trials": sum(s > 0 for s in by_trial.values()),
                "new": sum(begin <= at < end for at in first.values()),
                "top_share": round(by_trial[top] / max(1e-9, sum(by_trial.values())), 3),
            }
        )
    study.write(folder, name, title, found)
    _picture_4(life, max(first.values()), folder, name, title)
    said = [f"figure 4: the last new trial of {len(first)} begins at {max(first.values()):.1f}"]
    return [*said, *(f"  {point}" for point in found)]


def _picture_4(life: Life, closed_s: float, folder: Path, name: str, title: str) -> None:
    figure, (curves, space) = study.panels(2, width=4.4, share=False)
    most = max(atoms for *_, atoms in life.launches)
    colours = study.pyplot().get_cmap("viridis")
    for began, ended, trial, atoms in life.launches:
        here = [(at, score) for at, t, score in life.reports if t == trial and began <= at <= ended]
        shade = colours((atoms - 1) / max(1, most - 1))
        curves.plot([at for at, _ in here], [score for _, score in here], color=shade)
    curves.axvline(closed_s, linestyle=":", color="black")
    curves.set_ylabel("score (bright: many atoms)")
    # Boxes as high as the allocation, each as low as there is room for it.
    placed: list[tuple[float, float, int, int]] = []
    for began, ended, trial, atoms in sorted(life.launches):
        taken = {
            row
            for b, e, low, n in placed
            if b < ended - 1e-9 and began < e - 1e-9
            for row in range(low, low + n)
        }
        low = next(row for row in range(10_000) if taken.isdisjoint(range(row, row + atoms)))
        placed.append((began, ended, low, atoms))
        space.bar(
            began, atoms, ended - began, low, align="edge", color=f"C{trial % 10}", edgecolor="w"
        )
    space.set_ylabel("atoms")
    for axes in (curves, space):
        axes.set_xlabel("time units")
    study.save(figure, folder, name, title)


def draw_6(results: Sequence[Result], folder: Path) -> list[str]:
    """Fifty configurations of Score(k), without a scheduler."""
    name, title = "hypersched-6", "HyperSched figure 6: 50 configurations of Score(k)"
    setup = Setup(seed=0)
    workload, draw = setup.load(), recipe(setup).configurations().sample
    curves = [workload.curve(n, draw(n) or {}, 0) for n in range(50)]
    figure, (axes,) = study.panels(1, width=4.4)
    for curve in curves:
        axes.plot(range(1, 501), [curve.metric(step) for step in range(1, 501)], linewidth=0.7)
    axes.set_xlabel("steps")
    axes.set_ylabel("score")
    study.save(figure, folder, name, title)
    found = []
    for step in (1, 5, 20, 80, 320, 500):
        scores = sorted(curve.metric(step) for curve in curves)
        tenths = {
            f"p{share}": round(scores[share * 49 // 100], 3) for share in (0, 25, 50, 75, 100)
        }
        found.append({"step": step, **tenths})
    study.write(folder, name, title, found)
    return ["figure 6: quantiles of 50 scores", *(f"  {point}" for point in found)]


STUDIES = [
    Study("hypersched-4", "one search's life", setups_4, draw_4, live),
    Study("hypersched-5", "speculation", setups_5, draw_5),
    Study("hypersched-6", "50 configurations", lambda quick: [], draw_6),
    Study("hypersched-7", "entrance policy", setups_7, draw_7),
    Study("hypersched-8", "dynamic allocation", setups_8, draw_8),
    Study("hypersched-9", "profiling", setups_9, draw_9),
    Study("hypersched-10", "delay and scaling", setups_10, draw_10),
    Study("hypersched-top-job", "uniform and top_job", setups_top, draw_top),
]

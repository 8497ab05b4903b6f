"""HyperSched (SoCC'19): figures 5 to 10 on the synthetic workload, the same grids; 12a on recorded curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusched.sim.physics import Delays
from gpusched.sim.setup import Setup
from gpusched.sim.study import Result
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
    places, shares = 0, []
    for n, deadline in dict.fromkeys((point["atoms"], point["deadline"]) for point in found):
        here = [p for p in found if (p["atoms"], p["deadline"]) == (n, deadline)]
        scores = [p["score"] for p in here if p["label"] != "entrance policy"]
        (own,) = [p for p in here if p["label"] == "entrance policy"]
        places += 1 + sum(score > own["score"] for score in scores)
        shares.append(own["score"] / max(scores))
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
    said = []
    for scaling in SCALINGS:
        here = [point for point in found if point["scaling"] == scaling]
        said.append(f"{scaling} {study.ratio(here, 'score', 'resizing', 'no resizing'):.2f}")
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
    said = []
    for delay in sorted({point["delay"] for point in found}):
        here = [point for point in found if point["delay"] == delay]
        scores = [f"{p['label']} {p['score']:.2f}" for p in here]
        said.append(f"  delay {delay:g}: {', '.join(scores)}")
    return ["figure 10: scores", *said]


# ---------------------------------------------------------------- figure 12a: bAbI on the cores of a CPU

BABI = {
    "workload": f"{Path(__file__).with_name('curves_babi.py')}:accuracy",
    "options": {"r": 20, "R": 300, "eta": 4.0},
    "scaling": "sqrt",
    "delays": Delays(launch_s=0.5, resize_s=0.5, save_s=0.05),
}


#: As printed, and as it is here.
POLICIES_12A = {"as printed": ablations.NAME, "hypersched": "hypersched", "asha": "asha"}


def setups_12a(quick: bool) -> list[Setup]:
    grid = [
        Setup(policy=policy, label=label, atoms=36, deadline_s=deadline, **BABI)
        for deadline in ((30.0,) if quick else (30.0, 60.0, 120.0, 240.0))
        for label, policy in POLICIES_12A.items()
    ]
    return _each_seed(quick, grid)


def draw_12a(results: Sequence[Result], folder: Path) -> list[str]:
    name, title = "hypersched-12a", "HyperSched figure 12a: bAbI on 36 atoms, recorded curves"
    study.write(folder, name, title, study.points(results, MEASURES, KEYS))
    said = ["figure 12a: accuracy, and what is printed less asha, seed by seed"]
    for deadline in sorted({result.deadline for result in results}):
        here = [result for result in results if result.deadline == deadline]
        scores = ", ".join(_score(point) for point in study.points(here, MEASURES, KEYS))
        said.append(f"  T {deadline:g}: {scores}; {study.paired(here, 'as printed', 'asha')}")
    return said


STUDIES = [
    Study("hypersched-5", setups_5, draw_5),
    Study("hypersched-7", setups_7, draw_7),
    Study("hypersched-8", setups_8, draw_8),
    Study("hypersched-9", setups_9, draw_9),
    Study("hypersched-10", setups_10, draw_10),
    Study("hypersched-12a", setups_12a, draw_12a),
]

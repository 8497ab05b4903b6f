"""Reproduces the papers' experiments in the simulator: JSON under docs/figures. See docs/papers.md.

    python scripts/figures.py [NAME ..] [--quick] [--jobs N] [--out DIR]

Without names all of them, which takes hours; ``--quick`` has two seeds and tiny grids, a check that everything runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from papers import (
    asha,
    decisions,
    hermes,
    hyperdrive,
    hypersched,
    optuna_peer,
    regret,
    samplers,
    seer,
    whatif,
)
from papers.study import Study

from gpusched.sim.study import run_all, simulate

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
STUDIES: list[Study] = [
    study
    for module in (
        *(hypersched, asha, seer, hyperdrive, hermes),
        *(regret, decisions, optuna_peer, samplers, whatif),
    )
    for study in module.STUDIES
]


def run(study: Study, out: Path, *, quick: bool, jobs: int | None) -> None:
    began = time.monotonic()
    setups = study.setups(quick)
    results = run_all(setups, study.work or simulate, jobs=jobs)
    said = study.draw(results, out)
    print(
        f"{study.name}: {len(setups)} runs in {time.monotonic() - began:.0f} s",
        *said,
        sep="\n",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which figures (all)")
    parser.add_argument(
        "--quick", action="store_true", help="two seeds and tiny grids; not to be quoted"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (one a core)")
    parser.add_argument("--out", type=Path, default=FIGURES, metavar="DIR")
    args = parser.parse_args()
    known = {study.name: study for study in STUDIES}
    unknown = [name for name in args.names if name not in known]
    if unknown:
        parser.error(f"unknown figure {', '.join(unknown)}; the figures are {', '.join(known)}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or known:
        run(known[name], args.out, quick=args.quick, jobs=args.jobs)
    return 0


if __name__ == "__main__":
    sys.exit(main())

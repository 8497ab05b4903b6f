"""Export a screen of the dashboard as SVG, for the README: of a real experiment's folder, or of a simulated one.

    python scripts/export_screen.py runs/digits-20260714-153200 --at 31 --out docs/dashboard.svg
    python scripts/export_screen.py --simulate --at 25

The folder's journal is replayed up to ``--at`` (seconds since the experiment began; the default is two fifths of the
deadline), so one finished run gives any screen it ever showed. Not while its daemon runs: the journal is the daemon's.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpusched.daemon import clients
from gpusched.dashboard.app import Dashboard
from gpusched.dashboard.model import Standing, from_json
from gpusched.driver import assemble
from gpusched.driver.loop import replay
from gpusched.errors import GpuschedError, InputError
from gpusched.folder.lock import Lock
from gpusched.folder.paths import ExperimentPaths
from gpusched.journal.log import Journal


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help="an experiment's folder")
    parser.add_argument("--simulate", action="store_true", help="simulate an experiment for it")
    parser.add_argument("--at", type=float, metavar="S", help="when (seconds since it began)")
    parser.add_argument("--columns", type=int, default=132)
    parser.add_argument("--rows", type=int, default=34)
    parser.add_argument("--out", type=Path, default=Path("docs/dashboard.svg"))
    args = parser.parse_args()
    if args.simulate == (args.folder is not None):
        parser.error("give an experiment's folder, or --simulate")
    try:
        if args.simulate:
            with tempfile.TemporaryDirectory() as runs:
                view = on_gpus(standing(simulated(Path(runs)), args.at))
        else:
            view = standing(args.folder, args.at)
    except GpuschedError as error:
        print(f"export_screen: {error}", file=sys.stderr)
        return error.exit_code
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(svg(view, args.columns, args.rows))
    print(f"{args.out}: {view.experiment} at {view.now_s:.1f} s")
    return 0


def simulated(runs: Path) -> Path:
    """The folder of a new simulated experiment."""
    from kept import simulate_into

    from gpusched.sim.setup import Setup

    return simulate_into(runs, Setup(atoms=8, deadline_s=60.0, scaling="sqrt"))[1]


def standing(folder: Path, at: float | None) -> Standing:
    """Return where the experiment stood at ``at``, as its daemon showed it. Raises GpuschedError."""
    paths = ExperimentPaths(folder.resolve())
    if not paths.is_experiment:
        raise InputError(f"{folder}: this folder is no experiment")
    assembled = assemble.assemble(assemble.read_recipe(paths), paths)
    state = assembled.experiment.state
    at = 0.4 * state.rules.deadline_s if at is None else at
    Lock.take(paths.lock)  # as a daemon would: until this process ends
    journal = Journal.open(paths.journal)
    try:
        # A simulated experiment's rules differ in a few fields, which its journal names.
        state.rules = dataclasses.replace(state.rules, **journal.meta.get("rules", {}))
        entries = itertools.takewhile(lambda entry: entry.event.at <= at, journal.entries())
        replay(assembled.experiment, entries)
    finally:
        journal.close()
    return from_json(clients.standing(assembled, daemon_pid=os.getpid(), now=max(at, state.now)))


def on_gpus(view: Standing) -> Standing:
    """Return a simulated search as eight GPUs and two hyperparameters would show it; its name says what it is."""
    devices = tuple(
        dataclasses.replace(
            device,
            id=f"GPU {n}",
            label=f"GPU {n}",
            utilisation=0.97 - 0.013 * n if device.state == "held" else 0.0,
            memory_used_bytes=(31 << 30) - n * (1 << 28) if device.state == "held" else 1 << 28,
            memory_total_bytes=80 << 30,
            power_w=618.0 - 7 * n if device.state == "held" else 71.0,
        )
        for n, device in enumerate(view.devices)
    )
    trials = tuple(dataclasses.replace(t, hparams=_usual(t.hparams)) for t in view.trials)
    best = view.best and dataclasses.replace(view.best, hparams=_usual(view.best.hparams))
    return dataclasses.replace(
        view, experiment="digits (simulated)", devices=devices, trials=trials, best=best
    )


def _usual(hparams: Mapping[str, Any]) -> dict[str, Any]:
    lr, width = (float(hparams[name]) for name in ("b1", "b2"))
    return {"lr": 10 ** (4 * lr - 4), "width": int(16 + 112 * width)}


def svg(view: Standing, columns: int, rows: int) -> str:
    async def shown() -> str:
        app = Dashboard(lambda: iter([view]))
        async with app.run_test(size=(columns, rows)) as pilot:
            while app.view is None:
                await pilot.pause()
            app.action_open("curves")
            await pilot.pause(1.5)
            app.console.legacy_windows = False
            return app.export_screenshot(title="gpusched watch")

    # A README's picture must not load anything, such as the web font of the frame.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", asyncio.run(shown()), flags=re.DOTALL)
    return picture.replace("Fira Code", "ui-monospace, SFMono-Regular, Menlo, DejaVu Sans Mono")


if __name__ == "__main__":
    sys.exit(main())

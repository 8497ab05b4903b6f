"""Draw the dashboard of a simulated search as SVG, for the documentation.

python scripts/export_screen.py --at 16 --columns 160 --rows 38 --out docs/dashboard.svg
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpusched.daemon import clients
from gpusched.dashboard.app import Dashboard
from gpusched.dashboard.model import Standing, from_json
from gpusched.driver.assemble import Assembled
from gpusched.driver.loop import Driver
from gpusched.folder.paths import ExperimentPaths
from gpusched.sim.setup import Setup, experiment, recipe
from gpusched.sim.study import start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--at", type=float, default=16.0, metavar="S", help="seconds (16)")
    parser.add_argument("--columns", type=int, default=132)
    parser.add_argument("--rows", type=int, default=34)
    parser.add_argument("--out", type=Path, default=Path("docs/dashboard.svg"))
    args = parser.parse_args()
    args.out.write_text(svg(on_gpus(standing(args.at)), args.columns, args.rows))


def standing(at_s: float) -> Standing:
    """Return where a simulated search stands so long after its beginning, as its daemon would show it."""
    setup = Setup(atoms=8, deadline_s=60.0, scaling="sqrt")
    of = recipe(setup)
    search, machine = experiment(of), setup.machine()
    driver = Driver(search, machine)
    start(driver, machine)
    while machine.now() < at_s and not search.state.finished:
        driver.turn(at_s)
    shown = Assembled(search, of, ExperimentPaths(Path("simulated")))
    return from_json(clients.standing(shown, daemon_pid=os.getpid(), now=at_s))


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
    main()

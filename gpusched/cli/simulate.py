"""Policies compared in virtual time: ``simulate``."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusched.cli import common
from gpusched.cli.common import argument, together
from gpusched.errors import InputError
from gpusched.folder import find

if TYPE_CHECKING:
    from gpusched.sim.setup import Setup
    from gpusched.sim.single import Result
    from gpusched.sim.study import Row

_DELAYS = {
    "launch": "from a first launch to the first step",
    "resize": "from a later launch to the first step",
    "launch-per-atom": "more for each atom beyond the first",
    "save": "pause of training for a checkpoint",
    "exit": "from the last word to the end of the processes",
    "release": "from the end of the processes to the confirmed release",
    "provision": "from renting an instance of an elastic pool to its first launch",
}
_TROUBLE = {
    "--time-noise X": "standard deviation of the logarithm of step times",
    "--metric-noise X": "standard deviation added to metrics",
    "--crash P": "chance that a trial crashes, in each step",
    "--lost P": "chance that a trial is lost, in each step",
    "--hang P": "chance that a trial hangs, in each step",
    "--quarantine P": "chance of a quarantine, at each release",
}
_CURVES = "linear (default), sqrt, none, resnet18, resnet50, resnet101, shufflenet, or 2:1.9,4:3.6"
_TARGET = "metric that is good enough: a run ends when a trial reaches it"
_POOL = "elastic: atoms are rented and paid for by use"
_MACHINE = (
    argument("--atoms N", "atoms of the machine (8; of an elastic pool 1024)"),
    argument("--deadline D", "deadline of each run: 60, 10m, 1h30m (60)", default="60"),
    argument("--scaling S", f"speed over atoms: {_CURVES}", default="linear"),
    argument("--assume S", "scaling that the scheduler assumes; auto: learnt"),
    argument(
        "--delay D", "duration of a launch or resize: seconds, or a share of the deadline (5%%)"
    ),
    *(argument(f"--{name}-delay S", meaning, type=float) for name, meaning in _DELAYS.items()),
    argument("--pool", _POOL, choices=("fixed", "elastic"), default="fixed", action="store"),
    argument("--instance N", "atoms of an elastic pool rented together (1)", type=int, default=1),
    argument("--price X", "price of an instance-hour", type=float, default=0.0),
    argument("--max-atoms N", "most atoms for a trial", type=int),
    argument(
        "--sizes N,N", "allowed numbers of atoms for a trial", type=common.numbers, default=[]
    ),
    argument("--max-trials N", "draw at most N configurations", type=int),
    argument("--sampler S", "sampler, as in a recipe (random)", default="random"),
)


@common.command(
    argument("WORKLOAD", "default: synthetic", nargs="?", default="synthetic"),
    argument("--policy P", "policies, separated by commas (hypersched)", action="append"),
    common.settable("an option of every policy that has it; POLICY.KEY=VALUE: of one policy"),
    argument("--seeds N", "number of seeds (10)", type=int, default=10),
    argument("--seed N", "the first seed (0)", type=int, default=0),
    argument("--target X", _TARGET, type=float),
    together(*_MACHINE, title="the simulated machine"),
    together(
        *(argument(usage, text, type=float, default=0.0) for usage, text in _TROUBLE.items()),
        argument("--readmit S", "readmit a quarantined device after S seconds", type=float),
        title="noise and faults",
    ),
    together(
        argument("--plot FILE", "draw the runs into FILE, a page (.html)", type=Path),
        argument("--journal DIR", "keep each run in DIR as an experiment", type=Path),
        argument("--jobs N", "number of processes (default: one a core)", type=int),
        title="output",
    ),
    prints=["gpusched.sim.single:Outcome"],
    lines="run",
)
def simulate(args: argparse.Namespace) -> int:
    """Compare policies in virtual time: the real core and the real policies on a simulated machine.

    WORKLOAD is what the trials train:
      synthetic         Score(k) of the HyperSched paper, section 6: steps of 0.1
                        time units, r 5, R 500, eta 4
      trace:DIR         a recorded experiment: its curves and step times, its
                        configurations in an order shuffled by the seed
      FILE.py:FUNCTION  a function of yours: FUNCTION(hparams, step) or (hparams,
                        step, random) returns the metric, or (metric, step time);
                        SPACE, METRIC, MODE and STEP_TIME beside it are optional

    For a seed, every policy meets the same configurations, noise and crashes. Values with commas make a grid:
      gpusched simulate --policy asha,hypersched --atoms 4,8,16 --deadline 15
      gpusched simulate --set eta=3 --delay 5% --plot delay.html
      gpusched simulate trace:runs/digits-20260101-120000 --policy asha,pop
    """
    from gpusched.sim import plan, study

    _refuse_running(args.workload)
    if args.plot is not None:
        from gpusched.sim import plot

        plot.check(args.plot)
    if args.jobs is not None and args.jobs < 1:
        raise InputError(f"--jobs must be at least 1, not {args.jobs}")
    setups = plan.plan(_request(args))
    workload = setups[0].load()
    for note in getattr(workload, "notes", ()):
        common.note(f"note: {note}")
    for line in plan.forewords(setups):
        common.note(f"note: {line}")
    with _progress(len(setups)) as on_done:
        results = study.run_all(setups, jobs=args.jobs, runs=args.journal, on_done=on_done)
    if args.json:
        for result in results:
            common.print_json(result.line())
    else:
        _print_table(results, setups, workload.metric)
    if args.plot is not None:
        from gpusched.sim import plot

        plot.plot(results, args.plot, workload.metric)
    return 0 if any(result.best is not None for result in results) else 3


def _refuse_running(workload: str) -> None:
    """Refuse a running experiment: a journal is its daemon's while the daemon lives."""
    kind, _, folder = workload.partition(":")
    if kind != "trace" or not folder:
        return
    from gpusched.folder.paths import ExperimentPaths

    if find.has_daemon(ExperimentPaths(Path(folder))):
        raise InputError(f"{workload}: this experiment is running; replay it when it is over")


def _request(args: argparse.Namespace) -> Any:
    from gpusched.sim.physics import Faults, Noise
    from gpusched.sim.plan import Request

    names = [name.strip() for text in args.policy or ["hypersched"] for name in text.split(",")]
    elastic = args.pool == "elastic"
    given = vars(args)
    delays = {
        f"{name.replace('-', '_')}_s": given[f"{name.replace('-', '_')}_delay"] for name in _DELAYS
    }
    faults = {name: given[name] for name in ("crash", "lost", "hang", "quarantine")}
    names_of_more = ("max_atoms", "max_trials", "target", "instance", "price")
    more = {"elastic": elastic, **{name: given[name] for name in names_of_more}}
    return Request(
        workload=args.workload,
        policies=list(dict.fromkeys(names)),
        overrides=args.overrides,
        atoms=args.atoms or ("1024" if elastic else "8"),
        deadline=args.deadline,
        scaling=args.scaling,
        delay=args.delay,
        delays={name: value for name, value in delays.items() if value is not None},
        noise=Noise(step_time=args.time_noise, metric=args.metric_noise),
        faults=Faults(**faults, readmit_s=args.readmit),
        seeds=args.seeds,
        first_seed=args.seed,
        sampler=args.sampler,
        more={**more, "assumed": args.assume, "sizes": tuple(sorted({*args.sizes}))},
    )


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[Result], None] | None]:
    """Show a bar on a terminal's stderr; nothing anywhere else."""
    if not sys.stderr.isatty() or total < 2:
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # No thread of its own: processes are forked while the bar is up.
    with Progress(
        *columns, console=Console(stderr=True), transient=True, auto_refresh=False
    ) as bar:
        task = bar.add_task("", total=total)

        def on_done(_: Result) -> None:
            bar.advance(task)
            bar.refresh()

        yield on_done


# ---------------------------------------------------------------- table


def _print_table(results: Sequence[Result], setups: Sequence[Setup], metric: str) -> None:
    from gpusched.sim.study import summarise

    rows = summarise(results)
    columns = _columns(rows, metric, setups[0].target)
    head = [name for name, _ in columns]
    cells = [[show(row) for _, show in columns] for row in rows]
    print(common.table(head, cells, [name for name in head if name not in _LEFT]))
    if len({row.name for row in rows}) > 1:
        common.note(
            "difference: to the first policy, seed by seed; ± is half a 95% interval of the mean"
        )
    else:
        common.note("± is half a 95% interval of the mean")


_LEFT = ("policy", "scaling")


def _columns(
    rows: Sequence[Row], metric: str, target: float | None
) -> list[tuple[str, Callable[[Row], object]]]:
    """Return name and text of each column, without those equal in all rows (but for atoms and deadline)."""
    has_target = target is not None
    columns: list[tuple[str, Callable[[Row], object], bool]] = [
        ("policy", lambda row: row.name, True),
        ("atoms", lambda row: row.atoms, True),
        ("deadline", lambda row: f"{row.deadline_s:g}", True),
        ("scaling", lambda row: row.scaling, len({row.scaling for row in rows}) > 1),
        ("delay", lambda row: f"{row.delay_s:g}", len({row.delay_s for row in rows}) > 1),
        ("seeds", lambda row: row.seeds, True),
        (f"best {metric}", lambda row: row.best, True),
        ("difference", lambda row: row.against or "", any(row.against for row in rows)),
        ("reached", lambda row: f"{row.reached}/{row.seeds}", has_target),
        ("after", lambda row: row.time_to_target_s, has_target),
        ("trials", lambda row: row.trials, True),
        ("steps", lambda row: row.steps, True),
        ("device-s", lambda row: row.cost_s, True),
        ("cost", lambda row: row.cost, any(row.cost.mean for row in rows)),
    ]
    return [(name, show) for name, show, is_shown in columns if is_shown]

"""Files of the script's own inside a checkpoint, a script in charge of its end, and plain runs that save."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest
import torch

import gpusched
from gpusched.protocol import RankHello
from tests.worker.fakes import (
    END,
    Bench,
    at_step,
    daemon,
    if_it_leaves,
    run_rank,
    run_ranks,
    through,
    values,
)
from tests.worker.models import descend
from tests.worker.test_interpreter import python


def library(asks: str, limit: int = 6) -> tuple[int, list[int]]:
    """As a trainer does: all of its state is in files, which every rank writes. Step and restored steps, by rank."""
    trial = gpusched.init(in_charge=True)
    found = trial.restored_dir
    began = (
        [json.loads(path.read_text()) for path in sorted((found / "state").iterdir())]
        if found
        else []
    )
    step = trial.step

    def save() -> None:
        with trial.checkpoint_dir() as folder:
            (folder / "state").mkdir(exist_ok=True)
            (folder / "state" / f"rank-{trial.rank}.json").write_text(json.dumps(step))

    while step < limit:
        step += 1
        trial.report(accuracy=step)
        if asks == "save" and trial.should_save():
            save()
        if trial.should_yield():
            if asks == "yield":
                save()
            return step, began
    return step, began


@pytest.mark.parametrize("asks", ["save", "yield"])
def test_files_of_every_rank_are_in_the_checkpoint_and_given_back(bench: Bench, asks: str) -> None:
    with daemon(bench, at_step(save=2, **{"yield": 4})) as fake:
        assert values(run_ranks(library, 2, bench, arguments=(asks,))) == [(4, [])] * 2
        assert fake.saved()[-1] == 4
    assert bench.last_word() == {"why": "yielded", "step": 4, "saved_step": 4}
    (end,) = values(run_ranks(library, 1, bench, 2, (asks,)))
    assert end == (6, [4, 4])


def test_the_best_step_has_its_files_where_a_copy_in_memory_would_be_held(bench: Bench) -> None:
    """The checkpoint of the best step was left out: files cannot be held."""

    def script() -> list[int]:
        trial = gpusched.init()
        saved = []
        for step in range(1, 6):
            trial.report(accuracy=step)
            if trial.should_save():
                saved.append(step)
                with trial.checkpoint_dir() as folder:
                    (folder / "step").write_text(str(step))
                trial._backing._files_s = 10.0 * (step == 4)  # took long: not again so soon
            assert trial._backing.saver is not None
            trial._backing.saver.wait()
        return saved

    with daemon(bench, lambda report: "hold" if report.step > 1 else "continue") as fake:
        assert run_rank(script, bench).value == [2, 3, 4]
        assert fake.saved() == [2, 3, 4]


def test_the_last_step_of_a_trial_that_knows_its_length_is_saved(bench: Bench) -> None:
    """Lightning's best epoch was its last, and had no checkpoint."""

    def script() -> list[int]:
        trial = gpusched.init(in_charge=True)
        trial.plan(3)
        saved = []
        for _ in range(3):
            trial.report(accuracy=1)
            if trial.should_save():
                saved.append(trial.step)
                with trial.checkpoint_dir() as folder:
                    (folder / "step").write_text(str(trial.step))
        return saved

    with daemon(bench) as fake:
        assert run_rank(script, bench).value == [3]
        assert fake.saved() == [3]
    assert values(run_ranks(script, 1)) == [[]], "outside a search they would be thrown away"


def test_a_loop_that_is_not_in_charge_leaves_when_its_files_are_saved(bench: Bench) -> None:
    def script(looping: bool) -> tuple[list[int], int, str]:
        trial = gpusched.init()
        restored = trial.restored_dir
        told = (restored / "note").read_text() if restored else ""
        seen = []
        for number in trial.steps() if looping else range(trial.step, 8):
            seen.append(number)
            trial.report(accuracy=0)
            if trial.step % 3 == 0:
                with trial.checkpoint_dir() as folder:
                    (folder / "note").write_text(f"step {trial.step}")
            if trial.step == 8:
                break
        return seen, trial.step, told

    for incarnation, looping in enumerate((True, False), 1):
        here = bench.beside(f"{incarnation}")
        with daemon(here, lambda report: "yield" if report.step == 2 else "continue"):
            (first,) = run_ranks(script, 1, here, arguments=(looping,))
        assert first.code == 0
        assert here.last_word() == {"why": "yielded", "step": 3, "saved_step": 3}
        assert values(run_ranks(script, 1, here, 2, (looping,))) == [([3, 4, 5, 6, 7], 8, "step 3")]


def test_clock_and_generators_are_restored_for_a_script_that_saves_files_alone(
    bench: Bench,
) -> None:
    """The factor of the rate stays where the ramp was, and dropout draws on, as with ``trial.track``."""

    def script() -> list[tuple[float, float]]:
        trial = gpusched.init()
        model = trial.wrap(torch.nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trial.scale_lr(optimizer)
        restored, seen = trial.restored_dir, []
        assert (restored is None) == (trial.step == 0)
        rates: list[float] = []
        optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
        for _ in range(trial.step, 6):
            descend(optimizer, model(torch.rand(2, 1)).sum())
            seen.append((rates[-1], float(torch.rand(1))))
            trial.report(accuracy=0)
            if_it_leaves(lambda: seen)
            with trial.checkpoint_dir() as folder:
                (folder / "note").touch()
        return seen

    (whole,) = through(bench.beside("whole"), script, [(2, END)])
    first, second = through(bench, script, [(2, 3), (2, END)])
    assert [a + b for a, b in zip(first, second, strict=True)] == whole
    assert len({rate for rate, _ in whole[0]}) > 3


def test_a_damaged_file_of_the_script_sets_the_whole_checkpoint_aside(bench: Bench) -> None:
    with daemon(bench, at_step(save=2, **{"yield": 4})):
        values(run_ranks(library, 1, bench, arguments=("save",)))
    (bench.paths.checkpoint(4) / "files" / "state" / "rank-0.json").write_text("55")
    assert values(run_ranks(library, 1, bench, 2, ("save",))) == [(6, [2])]


HELPERS = """
import gpusched, torch
from torch.utils.data import DataLoader, Dataset
trial = gpusched.init()

class Numbers(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        try:
            trial.report(accuracy=9)
        except RuntimeError as error:
            assert "a process that a rank has started" in str(error)
            return i + 10 * trial.hparams.get("lr", 0)
        return -1

if __name__ == "__main__":
    workers = DataLoader(Numbers(), num_workers=1, multiprocessing_context="forkserver")  # as Python 3.14 starts them
    trial.report(accuracy=sum(int(x) for x in workers))
"""
SPAWNED = """
import os, gpusched, torch.distributed as dist, torch.multiprocessing as mp
def main(rank, joins_first):
    if joins_first:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(joins_first)
        dist.init_process_group("gloo", rank=rank, world_size=2)
    gpusched.init().report(accuracy=rank)
if __name__ == "__main__":
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # as under an agent
    mp.spawn(main, args=(JOINS_FIRST,), nprocs=2)
"""


def as_rank(bench: Bench, text: str) -> subprocess.CompletedProcess[str]:
    script = bench.root / "script.py"
    script.write_text(text)
    words = ("-m", "gpusched.runtime.rank", script)
    return python(*words, OMP_NUM_THREADS="1", **bench.environment())


@pytest.mark.slow
def test_processes_that_import_the_script_anew_do_not_pose_as_its_rank(bench: Bench) -> None:
    bench.prepare({"lr": 1})
    with daemon(bench) as fake:
        done = as_rank(bench, HELPERS)
    assert done.returncode == 0, done.stderr
    assert [line["m"] for line in bench.reports()] == [{"accuracy": 46}]
    assert len(fake.of_kind(RankHello)) == 1


@pytest.mark.parametrize("joins_first", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_script_that_spawns_its_ranks_is_told_what_to_write(
    bench: Bench, joins_first: bool
) -> None:
    """With a process group of their own first, they waited for a store until the deadline."""
    with socket.socket() as port:  # nobody else is given it, and the ranks' store may have it
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind(("127.0.0.1", 0))
        number = port.getsockname()[1] if joins_first else 0
        done = as_rank(bench, SPAWNED.replace("JOINS_FIRST", str(number)))
    assert done.returncode != 0
    assert "Instead of mp.spawn(main, ...) call main(rank, ...) itself" in done.stderr
    assert "leave out what sets MASTER_ADDR and MASTER_PORT" in done.stderr
    assert bench.reports() == []


def test_max_steps_ends_a_plain_loop_of_the_scripts_own(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(
        "import gpusched\ntrial = gpusched.init()\nfor step in range(9):\n    trial.report(loss=step)\n"
    )
    below = {"GPUSCHED_RANK_PROCESS": "1::0:0"}  # a notebook that has a trial of its own
    done = python(script, "--max-steps", "3", **below)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nothing is saved") == 1
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["1", "2", "3"]

"""Files of a script's own: two trials with one path, and a prestart that reads what is written again after it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gpusched
from gpusched.protocol import Remark
from tests.rig import PATIENCE_S
from tests.worker.fakes import Bench, Ranks, daemon, run_ranks
from tests.worker.test_successor import relay, waiting


def write(how: str, folder: Path) -> None:
    """One step of a script that writes ``snapshot.pt`` in its working directory, in one of the usual ways."""
    os.chdir(folder)
    trial = gpusched.init()
    trial.track()
    state = {"w": torch.zeros(1)}
    path = Path("snapshot.pt")
    if how == "torch":
        torch.save(state, "snapshot.pt")
    elif how == "open":
        with path.open("wb") as file:
            torch.save(state, file)
    elif how == "rename":
        torch.save(state, f"{trial.id}.tmp")
        Path(f"{trial.id}.tmp").replace(path)
    elif how == "append":
        with path.open("a") as file:
            file.write("a line\n")
    elif how == "own":
        torch.save(state, trial.folder / path)
    elif how == "read":
        path.read_bytes()
    trial.report(accuracy=0)
    if how == "after":
        torch.save(state, "snapshot.pt")


@pytest.mark.parametrize("how", ["torch", "open", "rename", "after", "append", "own", "read"])
def test_a_path_that_two_trials_write_is_named(bench: Bench, tmp_path: Path, how: str) -> None:
    told = []
    (tmp_path / "snapshot.pt").touch()
    for number in (7, 8):
        here = Bench(bench.root, trial=number)
        here.prepare()
        with daemon(here) as fake:
            (ended,) = run_ranks(write, 1, here, arguments=(how, tmp_path))
            fake.saved()
        assert not ended.error, ended.error
        told.append([frame.text for frame in fake.of_kind(Remark)])
        assert [text for text in told[-1] if text not in ended.stderr] == []
    expected = f"writes {tmp_path}/snapshot.pt, as trial 7 does"
    assert told[0] == []
    assert [text.partition(":")[0] for text in told[1]] == (
        [expected] if how in ("torch", "open", "rename", "after") else []
    )


def own_snapshot(folder: Path) -> list[Any]:
    """Keeps its weights in a file of its own beside what it tracks; the epochs that it trained."""
    os.chdir(folder)
    trial = gpusched.init()
    model = nn.Linear(1, 1)
    path = Path("snapshot.pt")
    begin = torch.load(path)["epoch"] if path.exists() else 0
    trial.track(model=model)
    epochs = []
    for epoch in range(begin, 6):
        epochs.append(epoch)
        torch.save({"epoch": epoch + 1}, path)
        trial.report(accuracy=epoch / 10)
    return epochs


def test_a_prestart_that_looked_too_early_begins_again(bench: Bench, tmp_path: Path) -> None:
    bench.paths.waits.write_text("{}")
    with relay(bench) as fake:
        second = Ranks(waiting(lambda: own_snapshot(tmp_path)), 1, bench, 2)
        assert fake.arrived.wait(PATIENCE_S), "it has looked for the file, which is not there"
        (first,) = run_ranks(own_snapshot, 1, bench, 1, (tmp_path,))
        assert first.code == 0, first.error
        bench.paths.waits.unlink()
        (after,) = second.wait()
    assert after.code == 0, after.error
    assert "begins again: it was set up while" in after.stderr
    assert bench.last_word(2) == {"why": "yielded", "step": 3, "saved_step": 3}
    assert [line["k"] for line in bench.reports()] == [1, 2, 3]
    (third,) = run_ranks(own_snapshot, 1, bench, 3, (tmp_path,))
    assert third.value == [3, 4, 5]

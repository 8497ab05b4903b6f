from __future__ import annotations

import pytest

from gpusched.errors import DamagedState
from gpusched.worker.context import read_context
from tests.worker.fakes import Bench


def test_under_gpusched_everything_comes_from_environment_and_files(bench: Bench) -> None:
    bench.prepare({"lr": 0.5, "opt": {"momentum": 0.9}}, max_steps=81, batch="global")
    context = read_context(
        ["--lr", "9"], bench.environment(incarnation=3, rank=1, world_size=2), {"width": 8, "lr": 1}
    )
    assert (context.trial, context.incarnation) == (7, 3)
    assert (context.rank, context.world_size, context.device_kind) == (1, 2, "cpu")
    assert context.hparams == {"lr": 0.5, "opt": {"momentum": 0.9}, "width": 8}
    assert context.seed == 123
    assert context.settings.max_steps == 81
    assert context.settings.batch == "global"
    assert context.paths == bench.paths


def test_under_plain_torchrun(bench: Bench) -> None:
    environment = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
    context = read_context(["--lr", "0.1", "--max-steps", "9", "--seed=5"], environment)
    assert context.paths is None
    assert (context.rank, context.world_size) == (1, 4)
    assert context.hparams == {"lr": 0.1, "seed": 5}
    assert (context.settings.max_steps, context.seed) == (9, 5)
    alone = read_context([], {"WORLD_SIZE": "4"})
    assert (alone.world_size, alone.settings.max_steps) == (1, None)


def test_a_folder_that_cannot_be_read_is_told(bench: Bench) -> None:
    bench.paths.hparams.write_text('{"hparams"')
    with pytest.raises(DamagedState, match="cannot be read"):
        read_context([], bench.environment())

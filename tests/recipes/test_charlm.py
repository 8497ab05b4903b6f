"""The windows that charlm learns from."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.worker.fakes import run_ranks


@pytest.fixture
def charlm(recipe: Callable[[str], ModuleType]) -> Any:
    return recipe("charlm")


def test_windows_cover_the_text_once_and_are_followed_by_the_next_byte(charlm: Any) -> None:
    text = torch.arange(83, dtype=torch.uint8)
    windows = charlm.Windows(text, 10)
    assert len(windows) == 8
    read, following = windows.batch(torch.arange(8), shift=False)
    assert read.flatten().tolist() == list(range(80))
    assert torch.equal(following, read + 1)


def test_shifted_windows_stay_inside_the_text(charlm: Any) -> None:
    text = torch.arange(41, dtype=torch.uint8)
    windows = charlm.Windows(text, 10)
    torch.manual_seed(0)
    read, following = windows.batch(torch.arange(4).repeat(500), shift=True)
    assert torch.equal(following, read + 1)
    assert (read.min(), following.max()) == (0, 40)
    assert len(set(read[:, 0].tolist())) > 20


def test_the_model_does_not_see_what_follows(recipe: Any) -> None:
    def answers() -> bool:
        charlm = recipe("charlm")
        from gpusched.worker.hparams import HParams

        net = charlm.Transformer(HParams({**charlm.DEFAULTS, "width": 16, "context": 12})).eval()
        text = torch.randint(0, 256, (1, 12))
        other = text.clone()
        other[0, 6:] = (other[0, 6:] + 1) % 256
        with torch.no_grad():
            before, after = net(text), net(other)
        same = torch.allclose(before[0, :6], after[0, :6], atol=1e-6)
        return same and not torch.allclose(before[0, 6:], after[0, 6:], atol=1e-6)

    (ended,) = run_ranks(answers, 1)
    assert not ended.error
    assert ended.value


def test_without_a_text_it_takes_the_standard_library(charlm: Any) -> None:
    from gpusched.worker.hparams import HParams

    text = charlm.read_text(HParams(charlm.DEFAULTS), torch.device("cpu"))
    assert len(text) > 1_000_000
    assert b"import" in bytes(text[:10_000].tolist())

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gpusched.worker.data import BatchWeight, Layout, count_batches, share, stretches


def layouts(world_size: int) -> list[Layout]:
    return [Layout(rank, world_size, exact=False) for rank in range(world_size)]


@given(begin=st.integers(0, 100), size=st.integers(1, 200), world_size=st.integers(1, 17))
def test_shares_differ_by_one_sample_at_most(begin: int, size: int, world_size: int) -> None:
    parts = [share(begin, begin + size, layout) for layout in layouts(world_size)]
    sizes = [part.stop - part.begin if part.weight else 0 for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == size
    assert all(
        part.weight == pytest.approx(world_size * n / size)
        for part, n in zip(parts, sizes, strict=True)
    )
    assert all(begin <= part.begin < part.stop <= begin + size for part in parts)


@pytest.mark.parametrize(
    ("length", "offset", "batch", "world_size", "drop_last", "expected"),
    [
        (10, 0, 4, 1, False, [(0, 4), (4, 8), (8, 10)]),
        (10, 0, 4, 1, True, [(0, 4), (4, 8)]),
        (8, 0, 4, 2, True, [(0, 4), (4, 8)]),
        (9, 0, 4, 2, False, [(0, 4), (4, 7), (7, 9)]),
        (9, 4, 4, 2, False, [(4, 7), (7, 9)]),
        (19, 0, 8, 2, False, [(0, 8), (8, 14), (14, 19)]),
        (20, 0, 8, 2, False, [(0, 8), (8, 16), (16, 20)]),
        (5, 0, 2, 2, False, [(0, 2), (2, 4), (4, 5)]),
        (9, 8, 4, 2, False, [(8, 9)]),
        (3, 0, 8, 4, False, [(0, 3)]),
        (3, 0, 8, 4, True, []),
        (9, 9, 4, 2, False, []),
    ],
)
def test_stretches(
    length: int,
    offset: int,
    batch: int,
    world_size: int,
    drop_last: bool,
    expected: list[tuple[int, int]],
) -> None:
    layout = layouts(world_size)[0]
    found = list(stretches(length, offset, batch, layout, drop_last=drop_last))
    assert found == expected
    assert count_batches(length, offset, batch, drop_last=drop_last) == len(expected)


# ---------------------------------------------------------------- weights


def test_gradients_have_the_weight_of_their_batch_under_accumulation() -> None:
    """Two uneven batches on one parameter: gradients add up with a weight each; a compiled model is no different."""
    model = nn.Linear(1, 1, bias=False)
    weight = BatchWeight()
    weight.weigh(model.parameters())
    for run in (model, torch.compile(model, backend="eager")):
        model.weight.grad = None
        for value, factor in ((3.0, 0.5), (4.0, 1.25)):
            weight.hand_out(model, factor)
            run(torch.tensor([[value]])).mean().backward()
        assert model.weight.grad.item() == pytest.approx(3 * 0.5 + 4 * 1.25)


def test_gradients_have_the_weight_of_the_loader_that_was_read_last() -> None:
    weight, one, other = BatchWeight(), object(), object()
    weight.hand_out(one, 1.0)
    weight.hand_out(other, 0.5)
    assert weight.value == 0.5
    weight.end(other)
    assert weight.value == 1.0, "that of the loader around it"

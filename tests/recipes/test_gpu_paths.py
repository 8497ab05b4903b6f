"""What the recipes do on a GPU alone, made to happen on a CPU: bfloat16, and steps that never wait for the device.

A GPU is kept busy by a script that runs ahead of it. Every value of a tensor that the script asks for (``.item()``,
``if tensor``, indexing by a mask) makes it wait until the GPU has caught up; on a CPU the same call shows as an
operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.recipes.conftest import run_recipe
from tests.worker.fakes import run_ranks

Recipe = Callable[[str], ModuleType]
WAITING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal"}


class Waits(TorchDispatchMode):
    """Counts the operators that would wait for a GPU, and optimizer steps."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        if name in WAITING:
            self.seen["waits"] += 1
        elif name.startswith("aten::_fused_"):
            self.seen["steps"] += 1
        return func(*args, **(kwargs or {}))


def counted(name: str, arguments: tuple[str, ...]) -> dict[str, int]:
    with Waits() as waits, redirect_stdout(StringIO()):
        run_recipe(name, *arguments, "--max-steps", "1")
    return dict(waits.seen)


@pytest.mark.parametrize(
    ("name", "where", "arguments"),
    [
        ("charlm", "text.txt", "--width 8 --depth 1 --context 8 --batch 4 --updates 12"),
        pytest.param(
            "imagenet",
            "imagenet",
            "--model shufflenet_v2_x0_5 --side 32 --batch 2 --updates 12 --validation_batches 2 --workers 1",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_no_update_waits_for_the_device(name: str, where: str, arguments: str, data: Path) -> None:
    option = "--text" if name == "charlm" else "--data"
    words = (option, str(data / where), *arguments.split())
    (ended,) = run_ranks(counted, 1, arguments=(name, words))
    assert not ended.error
    assert ended.value["steps"] >= 12
    assert 1 <= ended.value["waits"] <= 6, "the report's own figures, not one an update"


def test_cifar10_in_bfloat16_trains_as_in_float32_and_waits_for_nothing(recipe: Recipe) -> None:
    def train(dtype: torch.dtype) -> tuple[float, list[float], int]:
        cifar10: Any = recipe("cifar10")
        device = torch.device("cpu")
        torch.manual_seed(0)
        cifar10.mixed_precision = lambda device: torch.autocast(
            device.type, dtype, enabled=dtype is torch.bfloat16
        )
        pixels = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
        images = cifar10.Images(pixels, torch.arange(8) % 10, device)
        net = cifar10.build("shufflenet_v2")
        weight = net.fc.weight
        before = weight.detach().clone()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9, fused=True)
        trial = SimpleNamespace(device=device, mean=lambda total, seen: (total, seen))
        with Waits() as waits:
            loss, seen = cifar10.train(trial, net, images, torch.arange(8).split(4), optimizer)
            right, _ = cifar10.accuracy(trial, net, images, torch.arange(8).split(8))
        assert seen == 8
        assert 0 <= right <= 8
        assert weight.dtype == torch.float32
        assert net.conv1[0].weight.grad.dtype == torch.float32
        assert waits.seen["steps"] == 2
        moved = (weight.detach() - before).flatten().tolist()
        return float(loss) / seen, moved, waits.seen["waits"]

    def both() -> Any:
        return train(torch.float32), train(torch.bfloat16)

    (ended,) = run_ranks(both, 1)
    assert not ended.error
    (loss, moved, waits), (loss16, moved16, waits16) = ended.value
    assert waits == waits16 == 0
    assert loss16 == pytest.approx(loss, rel=0.05)
    assert moved != moved16, "it was bfloat16"
    assert F.cosine_similarity(torch.tensor(moved), torch.tensor(moved16), dim=0) > 0.8

"""Reading CIFAR-10 safely, cropping it right, and models that fit 32x32."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tests.recipes import made
from tests.worker.fakes import run_ranks


@pytest.fixture
def cifar10(recipe: Callable[[str], ModuleType]) -> Any:
    return recipe("cifar10")


def test_the_archives_own_pickles_are_read(cifar10: Any, data: Path) -> None:
    pixels, labels = cifar10.read_images(data / "cifar10" / "cifar-10-batches-py", cifar10.TRAINING)
    assert pixels.shape == (50, 3, 32, 32)
    assert labels.tolist() == 5 * list(range(10))
    chance = np.random.default_rng(0)
    first = made.coloured(0, 32, chance).transpose(2, 0, 1)
    assert torch.equal(pixels[0], torch.from_numpy(first))


def test_without_a_network_one_message_says_what_to_unpack_where(
    cifar10: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar10.datasets.CIFAR10, "url", "http://127.0.0.1:9/none.tar.gz")
    with pytest.raises(
        SystemExit, match=r"could not be downloaded .*refused.*unpack it in"
    ) as ended:
        cifar10.fetch(tmp_path)
    assert "--set space.data=FOLDER" in str(ended.value)


def test_a_pickle_that_wants_to_run_something_is_refused(cifar10: Any, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    content = pickle.dumps({b"data": Trap(), b"labels": []})
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(SystemExit, match=r"test_batch is damaged.*it asks for posix\.system"):
        cifar10.read_images(tmp_path, cifar10.TESTING)
    assert not (tmp_path / "ran").exists()
    pickle.loads(content)
    assert (tmp_path / "ran").exists(), "the trap works where nothing refuses it"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        pickle.dumps([]),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}),
        pickle.dumps({b"data": np.zeros((1, 3000), np.uint8), b"labels": [0]}),
    ],
)
def test_a_damaged_file_is_named(cifar10: Any, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(SystemExit, match="test_batch is damaged"):
        cifar10.read_images(tmp_path, cifar10.TESTING)


def test_without_augmentation_a_batch_is_the_images_normalised(cifar10: Any) -> None:
    pixels = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    images = cifar10.Images(pixels, torch.arange(6), torch.device("cpu"))
    batch, labels = images.batch(torch.tensor([4, 1]), augment=False)
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in (cifar10.MEAN, cifar10.DEVIATION))
    torch.testing.assert_close(batch, (pixels[[4, 1]] / 255 - mean) / deviation)
    assert labels.tolist() == [4, 1]
    assert batch.is_contiguous(memory_format=torch.channels_last)


def test_each_image_is_cropped_and_flipped_by_itself(cifar10: Any) -> None:
    """Every result is one of the 9 x 9 x 2 that padding, cropping and flipping one by one give; all of them occur."""
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    images = cifar10.Images(pixels, torch.arange(2), torch.device("cpu"))
    images.mean, images.deviation = torch.zeros(1), torch.ones(1)
    possible = {}
    bordered = torch.nn.functional.pad(pixels[1], (4, 4, 4, 4))
    for top in range(9):
        for left in range(9):
            crop = bordered[:, top : top + 32, left : left + 32]
            possible[crop.numpy().tobytes()] = (top, left, False)
            possible[crop.flip(2).numpy().tobytes()] = (top, left, True)
    assert len(possible) == 162
    torch.manual_seed(0)
    batch, _ = images.batch(torch.ones(2000, dtype=torch.long), augment=True)
    found = {possible[image.byte().contiguous().numpy().tobytes()] for image in batch}
    assert len(found) == 162


def test_models_keep_the_resolution_at_their_beginning(recipe: Any) -> None:
    def shapes() -> dict[str, Any]:
        cifar10 = recipe("cifar10")
        found = {}
        for name in ("resnet18", "shufflenet_v2"):
            net = cifar10.build(name).eval()
            last = net.conv5 if name == "shufflenet_v2" else net.layer4
            seen: list[torch.Size] = []
            last.register_forward_hook(lambda _m, _i, out, seen=seen: seen.append(out.shape[2:]))
            with torch.no_grad():
                answers = net(torch.zeros(1, 3, 32, 32)).shape
            found[name] = (tuple(answers), tuple(seen[0]))
        return found

    (ended,) = run_ranks(shapes, 1)
    assert not ended.error
    assert set(ended.value.values()) == {((1, 10), (4, 4))}

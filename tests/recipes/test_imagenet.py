"""What imagenet says of folders that are not laid out right, and what it validates on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.recipes import made


@pytest.fixture
def imagenet(recipe: Callable[[str], ModuleType]) -> Any:
    return recipe("imagenet")


def test_a_flat_validation_folder_is_explained(imagenet: Any, tmp_path: Path) -> None:
    made.imagenet(tmp_path, classes=2, images_a_class=1)
    (tmp_path / "val" / "n00000001").rename(tmp_path / "val" / "odd")
    with pytest.raises(SystemExit, match=r"2 are in one only, such as n00000001\. .*is flat"):
        imagenet.open_images(tmp_path, 32)


def test_empty_folders_are_no_imagenet(imagenet: Any, tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(SystemExit, match=r"There is no ImageNet in .* \(Couldn't find any class"):
        imagenet.open_images(tmp_path, 32)


def test_images_are_bytes_of_the_right_size_until_they_are_on_the_device(
    imagenet: Any, data: Path
) -> None:
    training, validation = imagenet.open_images(data / "imagenet", 32)
    assert [part[35][1] for part in (training, validation)] == [2, 2]
    for image in (training[0][0], validation[0][0]):
        assert (image.dtype, tuple(image.shape)) == (torch.uint8, (3, 32, 32))
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in (imagenet.MEAN, imagenet.DEVIATION))
    normalised = imagenet.Normalise(torch.device("cpu"))(image[None])
    torch.testing.assert_close(normalised[0], (image / 255 - mean) / deviation)


def test_validation_is_on_the_same_images_of_all_classes_every_time(
    imagenet: Any, data: Path
) -> None:
    _, validation = imagenet.open_images(data / "imagenet", 32)
    torch.manual_seed(1)
    first = imagenet.some_of(validation, 12).indices
    torch.manual_seed(2)
    assert imagenet.some_of(validation, 12).indices == first
    assert len(set(first)) == 12
    assert {validation.targets[number] for number in first} == {0, 1, 2}
    assert len(imagenet.some_of(validation, 1000)) == 36


def test_batches_have_no_end_and_begin_with_what_is_left(imagenet: Any) -> None:
    epochs = iter([[3], [1, 2, 3], [1, 2, 3]])

    class Loader:
        def __iter__(self) -> Any:
            return iter(next(epochs))

    batches = imagenet.endless(Loader())
    assert [next(batches) for _ in range(6)] == [3, 1, 2, 3, 1, 2]

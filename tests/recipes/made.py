"""Small made data in the formats of the real data sets. What is to be learnt can be learnt in a few steps."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from PIL import Image


def coloured(label: int, side: int, chance: np.random.Generator) -> np.ndarray:
    """Noise (height, width, channels) whose brightness and colour tell the class."""
    noise = chance.integers(0, 60, (side, side, 3))
    noise[..., label % 3] += 60 + 40 * (label // 3)
    return noise.astype(np.uint8)


def cifar10(folder: Path, images_a_file: int) -> Path:
    """``cifar-10-batches-py`` as the archive has it; returns the folder around it."""
    chance = np.random.default_rng(0)
    inner = folder / "cifar-10-batches-py"
    inner.mkdir(parents=True)
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        labels = [n % 10 for n in range(images_a_file)]
        images = [coloured(label, 32, chance).transpose(2, 0, 1).reshape(-1) for label in labels]
        (inner / name).write_bytes(python2_pickle(np.stack(images), labels))
    return folder


def python2_pickle(data: np.ndarray, labels: list[int]) -> bytes:
    """A dictionary of an array of bytes and a list, opcode by opcode as Python 2's cPickle wrote the archive's."""
    rows, columns = data.shape
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    shape = b"M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", columns) + b"\x86"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + 2 * b"J\xff\xff\xff\xff"
    raw = data.astype(np.uint8).tobytes()
    state = b"(K\x01" + shape + dtype + b"K\x00tb\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + state + b"U\x06labels" + numbers + b"u."


def imagenet(folder: Path, classes: int, images_a_class: int) -> Path:
    """``train`` and ``val``, a folder of JPEG files a class."""
    chance = np.random.default_rng(0)
    for part in ("train", "val"):
        for label in range(classes):
            place = folder / part / f"n{label:08d}"
            place.mkdir(parents=True)
            for number in range(images_a_class):
                image = Image.fromarray(coloured(label, 40 + number, chance))
                image.save(place / f"{number}.JPEG")
    return folder

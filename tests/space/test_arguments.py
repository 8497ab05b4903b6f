"""Hyperparameters in the script's arguments."""

from __future__ import annotations

import pytest

from gpusched.space import arguments

HPARAMS = {"lr": 1e-05, "opt": "sgd", "net": {"width": 32, "skip": True, "sizes": [1, 2]}}


@pytest.mark.parametrize(
    ("written", "filled"),
    [
        (["--lr", "${lr}", "--w=${net.width}"], ["--lr", "1e-05", "--w=32"]),
        (["${opt}-${net.width}", "${net.skip}"], ["sgd-32", "true"]),
        (["--momentum=${momentum}", "--x"], ["--x"]),
        (["--out=${trial.folder}", "${trial.id}"], ["--out=/t/7", "7"]),
        (["$${lr}", "$lr", "{lr}", "$"], ["${lr}", "$lr", "{lr}", "$"]),
        (["${ lr }", "${net.sizes}"], ["1e-05", "[1, 2]"]),
        (
            ["-v", "${hparams}"],
            [
                *("-v", "--lr=1e-05", "--opt=sgd"),
                *("--net.width=32", "--net.skip=true", "--net.sizes=[1, 2]"),
            ],
        ),
    ],
)
def test_they_are_filled_in(written: list[str], filled: list[str]) -> None:
    assert arguments.fill(written, HPARAMS, 7, "/t/7") == filled


def test_a_hyperparameter_called_hparams_is_itself() -> None:
    assert arguments.fill(["${hparams}"], {"hparams": 3}, 0, "") == ["3"]

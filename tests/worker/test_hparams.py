from __future__ import annotations

import copy
import json
import pickle
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.errors import InputError
from gpusched.worker.hparams import HParams, from_command_line

DEFAULTS = {"lr": 0.1, "width": 16, "name": "sgd", "nesterov": False, "opt": {"momentum": 0.9}}


def test_values_by_attribute_by_key_and_nested() -> None:
    hp = HParams({"lr": 0.1, "opt": {"momentum": 0.9, "betas": [0.9, 0.99]}})
    assert hp.lr == hp["lr"] == 0.1
    assert hp.opt.momentum == hp["opt"]["momentum"] == 0.9
    assert hp.get("width", 8) == 8
    assert list(hp) == ["lr", "opt"]
    assert (
        json.loads(json.dumps(hp))
        == hp
        == {"lr": 0.1, "opt": {"momentum": 0.9, "betas": [0.9, 0.99]}}
    )


WAYS = (lambda hp: {**hp} | hp, lambda hp: [*hp.items()], lambda hp: [*hp.values()])


@pytest.mark.parametrize("read", [*WAYS, dict, json.dumps, {}.update, HParams.copy])
def test_a_dictionary_that_knows_what_was_read(read: Any) -> None:
    """``wandb.init(config=trial.hparams)`` raised TypeError: it takes a dictionary."""
    hp = HParams({"lr": 0.1})
    assert isinstance(hp, dict)
    read(hp)
    assert hp.unread(["lr"]) == []


def test_a_missing_name_is_told_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match="did you mean width"):
        _ = HParams({"width": 8}).widht
    assert not hasattr(HParams({}), "lr")


def test_read_only_and_copied_as_it_is() -> None:
    hp = HParams({"opt": {"momentum": 0.9}})
    assert copy.deepcopy(hp) == pickle.loads(pickle.dumps(hp)) == hp == (plain := hp.copy())
    assert (type(plain), type(plain["opt"])) == (dict, dict)
    with pytest.raises(AttributeError, match=r"take trial.hparams.copy\(\)"):
        hp.lr = 2
    for change in (hp.clear, hp.popitem, lambda: hp.update(lr=2), lambda: hp.__setitem__("lr", 2)):
        with pytest.raises(AttributeError, match="take trial"):
            change()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--lr", "0.1", "--opt.momentum", "0.9"], {"lr": 0.1, "opt": {"momentum": 0.9}}),
        (["--lr=1e-4"], {"lr": 1e-4}),
        (["--width", "16"], {"width": 16}),
        (["--shift", "-2", "--decay", "-.5"], {"shift": -2, "decay": -0.5}),
        (["--weight-decay", "5e-4"], {"weight_decay": 5e-4}),
        (["--nesterov", "--lr", "1"], {"nesterov": True, "lr": 1}),
        (
            ["--on", "true", "--off", "False", "--none", "null"],
            {"on": True, "off": False, "none": None},
        ),
        (["--answer", "no", "--version", "1.2.3"], {"answer": "no", "version": "1.2.3"}),
        (["--sizes", "[1, 2]", "--bad", "[1,"], {"sizes": [1, 2], "bad": "[1,"}),
        (["--text", ""], {"text": ""}),
        (["positional", "-v", "--lr", "1", "more"], {"lr": 1}),
        (["--", "--lr"], {"lr": True}),
        (["--1x", "3"], {}),
    ],
)
def test_command_line(arguments: list[str], expected: dict[str, Any]) -> None:
    assert from_command_line(arguments) == expected


def test_defaults_fill_in_and_fix_types() -> None:
    hp = from_command_line(["--lr", "1", "--name", "007", "--opt.momentum", "0.5"], DEFAULTS)
    assert hp == {**DEFAULTS, "lr": 1.0, "name": "007", "opt": {"momentum": 0.5}}
    assert isinstance(hp["lr"], float)
    assert from_command_line(["--data-folder", "/d"], DEFAULTS)["data_folder"] == "/d"


def test_all_problems_at_once() -> None:
    with pytest.raises(InputError) as caught:
        from_command_line(["--width", "16.5", "--nesterov", "maybe"], DEFAULTS)
    assert str(caught.value).splitlines() == [
        "--width 16.5: not of type int (default 16)",
        "--nesterov maybe: not of type bool (default False)",
    ]


WORDS = st.text(max_size=12) | st.from_regex(r"--?(lr|width|name|nesterov|opt)?[.=a-z0-9-]{0,6}")


@given(st.lists(WORDS, max_size=8), st.sampled_from([{}, DEFAULTS]))
def test_any_command_line_is_read_or_refused_clearly(
    arguments: list[str], defaults: dict[str, Any]
) -> None:
    with suppress(InputError):
        assert isinstance(from_command_line(arguments, defaults), dict)

from __future__ import annotations

import enum
import io
import math
from collections import Counter, OrderedDict, defaultdict, deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gpusched
from gpusched.worker.hparams import HParams
from gpusched.worker.learning_rate import Schedule
from gpusched.worker.state import load_object, portable, refuse_stateless, save_object, unportable


def through_disk(value: Any) -> Any:
    """Saved and loaded as a checkpoint is."""
    buffer = io.BytesIO()
    torch.save(portable(value, "it"), buffer)
    buffer.seek(0)
    return unportable(torch.load(buffer, weights_only=True))


def test_a_configuration_in_a_file_of_the_scripts_own_needs_no_trust() -> None:
    torch.save(HParams({"opt": {"lr": 0.1}}), buffer := io.BytesIO())
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True).opt.lr == 0.1


KEYS = st.one_of(st.text(max_size=5), st.integers(), st.booleans(), st.none())
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(max_size=8),
        st.binary(max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
    ),
    max_leaves=12,
)


@given(VALUES)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert through_disk(value) == value


class Colour(enum.StrEnum):
    RED = "red"


def test_what_changes_its_type_and_what_does_not() -> None:
    value = {
        "scalar": np.float64(0.5),
        "count": np.int64(3),
        "array": np.arange(4, dtype=np.int16),
        "counter": Counter({2: 1, 5: 1}),
        "default": defaultdict(list, a=[1]),
        "recent": deque([(1, np.ones(1))], maxlen=2),
        "ordered": OrderedDict(a=1),
        "set": {1, 2},
        "enum": Colour.RED,
        "nan": math.nan,
        "tensor": torch.ones(2, requires_grad=True),
        "dtype": torch.float16,
        "size": torch.Size([1, 2]),
    }
    back = through_disk(value)
    assert back["scalar"] == 0.5
    assert type(back["scalar"]) is float
    assert type(back["count"]) is int
    assert np.array_equal(back["array"], value["array"])
    assert back["array"].dtype == np.int16
    assert type(back["counter"]) is Counter
    assert back["counter"] == value["counter"]
    assert back["default"] == {"a": [1]}
    assert (back["recent"], back["recent"].maxlen) == (value["recent"], 2)
    assert back["set"] == {1, 2}
    assert back["enum"] == "red"
    assert math.isnan(back["nan"])
    assert torch.equal(back["tensor"], torch.ones(2))
    assert back["dtype"] is torch.float16


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"fn": lambda: 0}, r"it\['fn'\], a builtins.function"),
        ([0, {"a": (object(),)}], r"it\[1\]\['a'\]\[0\], a builtins.object"),
        ({"x": type}, r"it\['x'\], a builtins.type"),
        ([np.array(["a"])], r"it\[0\], a numpy.ndarray"),
        (torch.optim.SGD([torch.zeros(1)], lr=1), r"a torch.optim.sgd.SGD"),
    ],
)
def test_what_cannot_be_saved_is_named(value: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        portable(value, "it")


@pytest.mark.parametrize("value", [lambda: 0, 3, {}, nn.Linear, None])
def test_what_has_no_state_cannot_be_tracked(value: Any) -> None:
    with pytest.raises(TypeError, match=r"trial.track\(thing=...\): a .* has no state_dict"):
        refuse_stateless("thing", value)


class Net(nn.Module):
    """Loads a state of its own version alone, as torchvision's MNASNet does."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, about: Any, *more: Any) -> None:
        assert about["version"] == 2
        super()._load_from_state_dict(state, prefix, about, *more)

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(2, width)
        self.module = nn.Linear(width, 1)  # named like DDP's own attribute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.module(self.first(x))
        return out


@pytest.fixture
def ddp(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for DDP where there is one process only; the real one is in test_ranks.py."""

    class Wrapped(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    monkeypatch.setattr("gpusched.worker.state.DistributedDataParallel", Wrapped)
    return Wrapped


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_names_do_not_depend_on_wrappers(ddp: Any) -> None:
    torch.manual_seed(0)
    net = Net()
    plain = save_object("model", net)
    assert set(plain) == {"first.weight", "first.bias", "module.weight", "module.bias"}
    compiled = torch.compile(net)
    for wrapped in (ddp(net), compiled, ddp(compiled), torch.compile(ddp(net))):
        torch.save(save_object("model", wrapped), file := io.BytesIO())
        file.seek(0)
        saved = unportable(torch.load(file, weights_only=True))
        assert set(saved) == set(plain)
        Net().load_state_dict(saved)
    for wrap in (
        ddp,
        nn.DataParallel,
        torch.compile,
        lambda m: ddp(torch.compile(m)),
        lambda m: torch.compile(ddp(m)),
    ):
        fresh = Net()
        load_object("model", wrap(fresh), plain, step=1)
        assert same(fresh, net)


@pytest.mark.parametrize("width", [4, 2])
def test_a_model_of_another_shape_is_told_what_to_change(width: int) -> None:
    saved = save_object("model", Net())
    with pytest.raises(
        RuntimeError, match=r"(?s)track\(model=.*step 9 does not fit.*first.weight.*hparams"
    ):
        load_object("model", Net(width), saved, step=9)


class Averages:
    """As scripts write them: it takes what it is given."""

    def __init__(self, device: str) -> None:
        self.shadow: Any = {
            "w": torch.zeros(2, device=device),
            "seen": [torch.zeros(1, device=device)],
        }

    def state_dict(self) -> Any:
        return self.shadow

    def load_state_dict(self, state: Any) -> None:
        self.shadow = state


def test_an_object_of_the_scripts_own_gets_its_tensors_where_it_has_them() -> None:
    """Tensors were loaded on the CPU; the device here is one that holds no values."""
    saved = save_object("ema", Averages("cpu"))
    there = Averages("meta")
    load_object("ema", there, saved, step=1)
    assert there.shadow["w"].device.type == "meta"
    assert there.shadow["seen"][0].device.type == "meta"
    here = Averages("cpu")
    load_object("ema", here, {**saved, "w": torch.ones(2), "more": torch.ones(1)}, step=1)
    assert here.shadow["w"].tolist() == [1.0, 1.0]
    assert here.shadow["more"].device.type == "cpu", "what it has not got yet stays where it is"


def test_pickled_objects_that_refer_to_each_other_do_so_after_a_pause() -> None:
    """A player filled a copy of the buffer from which the learner went on to draw."""
    buffer, later = SimpleNamespace(), SimpleNamespace()
    own = SimpleNamespace(buffer=buffer, later=later)
    own.itself, one = own, gpusched.pickled(own)
    one.tracked = {"buffer": gpusched.pickled(buffer), "later": gpusched.pickled(later)}
    one.known = {"buffer"}
    one.load_state_dict(one.state_dict())
    assert [own.buffer is buffer, own.itself is own, own.later is later] == [True, True, False]
    own.window = lambda: 0
    with pytest.raises(TypeError, match=r"\(SimpleNamespace\): .*lambda.*: write state_dict"):
        one.state_dict()


def test_functions_that_a_schedule_holds_are_the_scripts() -> None:
    """They made a schedule of a class of one's own, given to trial.prepare, an error; and SWALR of torch 2.8."""

    class Warm(torch.optim.lr_scheduler.LRScheduler):
        def __init__(self, optimizer: Any, share: Any) -> None:
            self.share = share
            super().__init__(optimizer)

        def get_lr(self) -> list[float | torch.Tensor]:
            return [rate * self.share(self.last_epoch) for rate in self.base_lrs]

    schedule, again = (
        Warm(torch.optim.SGD(nn.Linear(1, 1).parameters(), 8.0), lambda step: 0.5**step)
        for _ in "ab"
    )
    schedule.optimizer.step()
    schedule.step()
    load_object("schedule", Schedule(again, 1), save_object("schedule", Schedule(schedule, 1)), 1)
    again.optimizer.step()
    again.step()
    assert again.get_last_lr() == [2.0]

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from gpusched.worker.weights import BatchWeight, scale_gradient, weigh_outputs


class Pair(NamedTuple):
    logits: torch.Tensor
    loss: torch.Tensor


@dataclass
class Output:
    logits: torch.Tensor
    extra: Any = None


def gradient(build: Any, pick: Any, factor: float = 3.0) -> float:
    """d pick(output) / dx at x = 2 with the output's gradient scaled."""
    x = torch.tensor(2.0, requires_grad=True)
    output = scale_gradient(build(x * 1.0), factor)
    pick(output).backward()
    assert x.grad is not None
    return x.grad.item()


@pytest.mark.parametrize(
    ("build", "pick"),
    [
        (lambda x: x, lambda o: o),
        (lambda x: (x, "text"), lambda o: o[0]),
        (lambda x: [1, x], lambda o: o[1]),
        (lambda x: {"a": {"b": x}}, lambda o: o["a"]["b"]),
        (lambda x: OrderedDict(a=x), lambda o: o["a"]),
        (lambda x: Pair(x, x), lambda o: o.logits),
        (lambda x: Output(x, extra=(x,)), lambda o: o.extra[0]),
    ],
)
def test_the_gradient_is_scaled_in_any_structure(build: Any, pick: Any) -> None:
    assert gradient(build, pick) == 3.0
    x = torch.tensor(2.0, requires_grad=True)
    assert type(scale_gradient(build(x * 1.0), 3.0)) is type(build(x))


def test_an_output_that_depends_on_another_is_scaled_once() -> None:
    """A model that returns its loss beside its logits: the loss's gradient passes the logits inside the model."""

    def build(x: torch.Tensor) -> Pair:
        logits = x * 5
        return Pair(logits, logits * 2)

    assert gradient(build, lambda o: o.loss) == 30.0
    assert gradient(build, lambda o: o.loss + o.logits) == 45.0


def test_outputs_may_be_changed_in_place() -> None:
    assert gradient(lambda x: x, lambda o: o.mul_(2)) == 6.0


def test_what_has_no_gradient_is_left_alone() -> None:
    tensor = torch.ones(2)
    assert scale_gradient(tensor, 3.0) is tensor
    assert scale_gradient(None, 3.0) is None
    assert scale_gradient(Output, 3.0) is Output


def test_a_model_passes_back_the_weight_of_its_batch_under_accumulation() -> None:
    """Two uneven batches on one parameter: gradients add up with a weight each, a penalty on the parameter is not
    weighted."""
    model = nn.Linear(1, 1, bias=False)
    weight = BatchWeight()
    weigh_outputs(model, weight)
    with torch.no_grad():
        model.weight.fill_(1.0)
    for value, factor in ((3.0, 0.5), (4.0, 1.25)):
        weight.value = factor
        loss = model(torch.tensor([[value]])).mean() + model.weight.sum()
        loss.backward()
    assert model.weight.grad is not None
    assert model.weight.grad.item() == pytest.approx(3 * 0.5 + 4 * 1.25 + 2)
    with torch.no_grad():
        plain = model(torch.ones(1, 1))
    assert not plain.requires_grad


def test_a_compiled_model_passes_back_the_weight_too() -> None:
    model = nn.Linear(1, 1, bias=False)
    weight = BatchWeight()
    weigh_outputs(model, weight)
    compiled = torch.compile(model, backend="eager")
    gradients = []
    for factor in (1.0, 0.5, 1.25, 1.0):
        weight.value = factor
        model.weight.grad = None
        compiled(torch.tensor([[3.0]])).mean().backward()
        assert model.weight.grad is not None
        gradients.append(model.weight.grad.item())
    assert gradients == pytest.approx([3.0, 1.5, 3.75, 3.0])

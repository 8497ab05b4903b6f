"""The search space: what is drawn, in which order, and what is refused."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.samplers import sequence
from gpusched.space.forms import BITS, quantile_of
from gpusched.space.space import SpaceError, command_line, completed, parse_space

SPACE = {
    "lr": {"loguniform": [1e-4, 1.0]},
    "width": {"int": [8, 64], "q": 8},
    "opt": {"choice": ["sgd", "adam"]},
    "momentum": {"uniform": [0, 0.99], "when": {"opt": "sgd"}},
    "data": {"augment": True, "noise": {"uniform": [0, 1], "q": 0.1}},
}


def draws(raw: object, count: int, seed: int = 0) -> list[dict[str, object]]:
    space = parse_space(raw)
    return [space.draw(seed, str(n), {}) for n in range(count)]


def problems(raw: object) -> list[str]:
    with pytest.raises(SpaceError) as caught:
        parse_space(raw)
    return str(caught.value).splitlines()


# ------------------------------------------------------------ the sequence


def test_the_sequence_of_a_seed_is_pinned() -> None:
    """The numbers below are in people's journals: a change here breaks every resume."""
    assert draws(SPACE, 3, seed=7) == PINNED
    assert json.loads(json.dumps(PINNED)) == PINNED


@given(st.permutations(list(SPACE)), st.integers(0, 50))
def test_the_order_of_the_keys_does_not_matter(order: list[str], n: int) -> None:
    shuffled = {key: SPACE[key] for key in order}
    assert parse_space(shuffled).draw(1, str(n), {}) == parse_space(SPACE).draw(1, str(n), {})


# ------------------------------------------------------------ bounds

above_0 = st.floats(1e-12, 1e6)


BOUNDS = {
    "uniform": st.floats(allow_nan=False, allow_infinity=False),
    "loguniform": st.floats(5e-324, 1.7e308),
    "int": st.integers(-(2**63) + 1, 2**63 - 1),
    "logint": st.integers(1, 2**63 - 1),
}


@pytest.mark.parametrize("form", BOUNDS)
@given(data=st.data(), seed=st.integers(0))
def test_a_range_stays_within(form: str, data: st.DataObject, seed: int) -> None:
    ends = st.lists(BOUNDS[form], min_size=2, max_size=2, unique=True)
    low, high = sorted(data.draw(ends))
    for sample in draws({"x": {form: [low, high]}}, 5, seed):
        assert low <= sample["x"] <= high
        assert isinstance(sample["x"], int if "int" in form else float)


@given(st.sampled_from(["uniform", "loguniform"]), above_0, above_0, st.floats(1e-9, 1e3))
def test_quantised_stays_within_and_on_the_multiples(
    form: str, one: float, other: float, quantum: float
) -> None:
    low, high = sorted((one, other))
    try:
        space = parse_space({"x": {form: [low, high], "q": quantum}})
    except SpaceError:
        multiples = Decimal(repr(high)) // Decimal(repr(quantum))
        assert low == high or multiples * Decimal(repr(quantum)) - Decimal(repr(low)) < quantum
        return
    for n in range(5):
        value = space.draw(0, str(n), {})["x"]
        assert low <= value <= high
        count = round(Decimal(repr(value)) / Decimal(repr(quantum)))
        assert value == float(count * Decimal(repr(quantum)))


def test_loguniform_is_even_in_the_logarithm() -> None:
    values = [math.log10(sample["x"]) for sample in draws({"x": {"loguniform": [1e-4, 1]}}, 4000)]
    for decade in range(-4, 0):
        assert 900 < sum(decade <= value < decade + 1 for value in values) < 1100


# ------------------------------------------------------------ choices, constants, nesting


def test_choice_draws_each_kind_of_value() -> None:
    options = ["a", 1, 2.5, True, None, [1, 2], {"k": 1}]
    values = [sample["x"] for sample in draws({"x": {"choice": options}}, 500)]
    assert all(option in values for option in options)


def test_constants_and_nested_maps() -> None:
    space = {"a": 1, "b": {"c": "no", "d": {"const": [1, [2]]}}, "e": {"const": None}}
    assert draws(space, 1) == [{"a": 1, "b": {"c": "no", "d": [1, [2]]}, "e": None}]


# ------------------------------------------------------------ conditions


def test_conditions_chain_and_name_keys_from_the_top() -> None:
    space = {
        "opt": {"choice": ["sgd", "adam", "lion"]},
        "more": {
            "nesterov": {"choice": [True, False], "when": {"opt": ["sgd", "lion"]}},
            "damp": {"uniform": [0, 1], "when": {"nesterov": True}},
            "far": {"const": 1, "when": {"more.nesterov": False}},
        },
    }
    for sample in draws(space, 100):
        more = sample.get("more", {})
        assert ("nesterov" in more) == (sample["opt"] != "adam")
        assert ("damp" in more) == (more.get("nesterov") is True)
        assert ("far" in more) == (more.get("nesterov") is False)


# ------------------------------------------------------------ what is refused

REFUSED = [
    ([{"lr": 1}], "space: needs a map of at least one key"),
    ({"x": {}}, "x: empty"),
    ({"x": None}, "x: no value"),
    ({"x": [1, 2]}, "x: a list is not a value"),
    *(
        ({"x": text}, f"x: '{text}' is text, and one value; write {{uniform: [..]}} or")
        for text in ("1e-4..1", "0.1 to 1", "0.1, .01,1", "tune.loguniform(1e-4, 1)", "choice(a,b)")
    ),
    ({"x": {"choice": []}}, "x: choice is empty"),
    ({"x": {"choice": [{"uniform": [0, 1]}]}}, "x: uniform inside choice"),
    ({"x": {"uniform": [1]}}, "x: uniform needs [lowest, highest]"),
    ({"x": {"uniform": [2, 1]}}, "x: reversed: 2 is above 1; write [1, 2]"),
    ({"x": {"uniform": [1, 1]}}, "x: empty: both bounds are 1"),
    ({"x": {"uniform": [True, 2]}}, "x: true is not a number"),
    ({"x": {"uniform": ["1e-4", 2]}}, "x: '1e-4' is not a number (quoted or misspelt?)"),
    ({"x": {"uniform": [0, math.inf]}}, "x: inf is not finite"),
    ({"x": {"loguniform": [0, 1]}}, "x: the bounds of loguniform must be above 0"),
    ({"x": {"int": [0.5, 3]}}, "x: 0.5 is not a whole number"),
    ({"x": {"int": [0, 2**70]}}, "x: a whole number of more than 64 bits"),
    ({"x": {"uniform": [0, 1], "q": 3}}, "x: q is too big"),
    ({"x": {"uniform": [0, 1], "q": 0}}, "x: q must be above 0"),
    ({"x": {"uniform": [0, 1], "q": 5e-324}}, "x: q is too small"),
    ({"x": {"choice": [1], "q": 1}}, "x: q goes with uniform"),
    ({"x": {"loguniform": [1e-4, 1], "prior": 3}}, "x: prior 3 is outside the range (0.0001 to 1"),
    ({"x": {"uniform": [0, 1], "choice": [1]}}, "x: uniform and choice together"),
    (
        {"x": {"uniform": [0, 1], "wen": {"y": 1}}},
        "x.wen: unknown beside uniform; did you mean when",
    ),
    (
        {"x": {"unifrom": [0, 1]}},
        "x.unifrom: a list is not a value; did you mean the form uniform?",
    ),
    ({"x": {"log": [1, 9]}}, "x.log: a list is not a value; did you mean the form loguniform?"),
    (
        {"x": {"int": [0, 8], "step": 2}},
        "x.step: unknown beside int; did you mean q, prior or when?",
    ),
    (
        {"x": {"int": [1, 8], "log": True}},
        "x.log: unknown beside int; a range even in the logarithm is {logint: [1, 1000]}",
    ),
    ({"uniform": [0, 1]}, "uniform: uniform is the name of a form"),
    ({"a.b": 1}, "a.b: a key is made of"),
    ({"x": {"const": math.nan}}, "x: nan is not finite"),
    ({"x": {"choice": [1], "when": {"z": 1}}}, "x.when.z: the space has no key z"),
    ({"x": {"choice": [1], "when": {}}}, "x.when: needs a map"),
    ({"x": {"choice": [1], "when": {"x": 1}}}, "x.when: the conditions go in a circle: x -> x"),
    (
        {"opt": {"choice": ["a"]}, "x": {"const": 1, "when": {"otp": "a"}}},
        "x.when.otp: the space has no key otp; did you mean opt?",
    ),
    (
        {"opt": {"choice": ["a"]}, "x": {"const": 1, "when": {"opt": "b"}}},
        "x.when.opt: opt is never 'b'; it is 'a'",
    ),
    ({"opt": {"choice": ["a"]}, "x": {"const": 1, "when": {"opt": []}}}, "x.when.opt: no value"),
    ({"a": 1, "x": {"const": 1, "when": {"a": True}}}, "x.when.a: a is never true; it is 1"),
    (
        {"p": {"uniform": [0, 1]}, "x": {"const": 1, "when": {"p": 0.5}}},
        "x.when.p: p is drawn from 0 to 1; a condition needs single values",
    ),
    ({"g": {"h": 1}, "x": {"const": 1, "when": {"g": 1}}}, "x.when.g: g is a group of keys"),
]


@pytest.mark.parametrize(("raw", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refused(raw: object, message: str) -> None:
    found = problems(raw)
    assert len(found) == 1
    assert message in found[0]


def test_all_problems_at_once_with_their_paths() -> None:
    space = {
        "lr": {"loguniform": [1, 1e-4]},
        "net": {"width": {"int": [8, 8]}, "act": {"choice": []}},
        "momentum": {"uniform": [0, 1], "when": {"optimiser": "sgd"}},
    }
    assert [line.partition(":")[0] for line in problems(space)] == [
        "lr",
        "net.width",
        "net.act",
        "momentum.when.optimiser",
    ]


PINNED: list[dict[str, object]] = [
    {"lr": 0.4693839600659519, "width": 56, "opt": "adam", "data": {"augment": True, "noise": 0.6}},
    {
        "lr": 0.20177057983186697,
        "width": 56,
        "opt": "adam",
        "data": {"augment": True, "noise": 0.4},
    },
    {
        "lr": 0.06405669120235737,
        "width": 32,
        "opt": "sgd",
        "momentum": 0.6630319544401003,
        "data": {"augment": True, "noise": 0.9},
    },
]


# ------------------------------------------------------------ what is tried first

NETS = {
    "lr": {"loguniform": [1e-4, 1]},
    "opt": {"choice": ["sgd", "adam"]},
    "momentum": {"uniform": [0, 0.9], "q": 0.05, "when": {"opt": "sgd"}},
    "net": {"width": {"int": [1, 9]}},
}


def test_what_is_tried_first_comes_first_and_moves_nothing() -> None:
    first = [{"lr": 0.1, "opt": "sgd", "momentum": 0.9}, {"net": {"width": 3}}]
    nets = parse_space(NETS)
    space, plain = (sequence.InTurn("random", nets, 7, given) for given in (first, ()))
    begun = space.sample(0)
    assert (begun["lr"], begun["opt"], begun["momentum"]) == (0.1, "sgd", 0.9)
    assert set(begun) == {"lr", "opt", "momentum", "net"}, "the rest is drawn"
    dotted = sequence.InTurn("random", nets, 7, [first[0], {"net.width": 3}])
    assert dotted.sample(1) == space.sample(1)
    assert [space.sample(n + 2) for n in range(5)] == [plain.sample(n) for n in range(5)]


@pytest.mark.parametrize(
    ("values", "path", "told"),
    [
        ({"lrr": 0.1}, ("lrr",), "not a key of the space; did you mean lr?"),
        ({"lr": 2}, ("lr",), "2 is outside the space"),
        ({"lr": True}, ("lr",), "true is not a number"),
        ({"lr": "1e-"}, ("lr",), "is not a number; the space has"),
        ({"net": {"width": 3.5}}, ("net", "width"), "outside"),
        ({"net": 3}, ("net",), "did you mean net.width?"),
        ({"net.width": 10}, ("net", "width"), "10 is outside"),
        ({"opt": "adam", "momentum": 0.5}, ("momentum",), "it is there if opt is 'sgd'"),
        ({}, (), "empty"),
    ],
)
def test_what_cannot_be_tried_first(
    values: dict[str, object], path: tuple[object, ...], told: str
) -> None:
    ((where, message),) = completed(parse_space(NETS), 0, "first 0", values)[1]
    assert where == path
    assert told in message


@pytest.mark.parametrize(
    ("form", "within"),
    [
        ({"loguniform": [1e-5, 1e-1], "prior": 3e-4}, (3e-4 / 2.4, 3e-4 * 4.3)),
        ({"uniform": [0, 1], "prior": 1}, (0.75, 1)),
        ({"int": [1, 100], "prior": 1}, (1, 26)),
        ({"uniform": [0, 1], "q": 0.1, "prior": 0.5}, (0.4, 0.6)),
    ],
)
def test_half_of_the_draws_lie_a_quarter_of_the_way_around_a_prior(
    form: dict[str, object], within: tuple[float, float]
) -> None:
    space = parse_space({"x": form})
    drawn = [space.draw(0, str(n), {})["x"] for n in range(1000)]
    assert 430 <= sum(within[0] <= x <= within[1] for x in drawn) <= 590
    of = space.leaves[("x",)].form
    if "q" not in form and "int" not in form:
        for share in (0.0, 0.01, 0.4, 0.9, 0.999):
            assert quantile_of(of, of.draw(int(share * 2**BITS))) == pytest.approx(share, abs=1e-6)
        low, high = of.ends
        assert min(drawn) < low + (high - low) / 50
        assert max(drawn) > high - (high - low) / 5


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ({"min": 0.1, "max": 1}, "min and max would be constants"),
        (
            {"low": 1, "high": 9, "log": True, "type": "int"},
            "low and high and log and type would be",
        ),
        ({"values": [1, 2]}, "x.values: a list is not a value; did you mean the form choice?"),
        ({"value": 3}, "value would be constants"),
    ],
)
def test_other_tools_ways_to_write_a_range_are_no_constants(written: object, instead: str) -> None:
    with pytest.raises(SpaceError, match=re.escape(instead)):
        parse_space({"x": written})
    parse_space({"x": {"const": written}, "y": {"min": 1, "max": 2, "other": 3}})
    parse_space({"x": {"low": {"uniform": [0, 1]}, "high": {"uniform": [1, 2]}}, "y": "1.2,b"})


# ------------------------------------------------------------ in the script's arguments

HPARAMS = {"lr": 1e-05, "opt": "sgd", "net": {"width": 32, "skip": True, "sizes": [1, 2]}}


@pytest.mark.parametrize(
    ("written", "filled"),
    [
        (["--lr", "${lr}", "--w=${net.width}"], ["--lr", "1e-05", "--w=32"]),
        (["${opt}-${net.width}", "${net.skip}"], ["sgd-32", "True"]),
        (["--momentum=${momentum}", "--x"], ["--x"]),
        (["--out=${trial.folder}", "${trial.id}"], ["--out=/t/7", "7"]),
        (["$${lr}", "$lr", "{lr}", "$"], ["${lr}", "$lr", "{lr}", "$"]),
        (["${ lr }", "${net.sizes}"], ["1e-05", "[1, 2]"]),
        (
            ["--lr=${lr}", "--net=${net}"],
            ["--lr=1e-05", '--net={"width": 32, "skip": true, "sizes": [1, 2]}'],
        ),
        (
            ["-v", "${hparams}"],
            [
                *("-v", "--lr=1e-05", "--opt=sgd"),
                *("--net.width=32", "--net.skip=True", "--net.sizes=[1, 2]"),
            ],
        ),
    ],
)
def test_they_are_filled_in(written: list[str], filled: list[str]) -> None:
    assert command_line(written, HPARAMS, 7, "/t/7") == filled

"""Frames: what comes back of each record, what is no frame, and the stand-in for msgspec."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched import protocol
from gpusched.protocol import BadFrame, Frame, Inbox, Report, encode
from tests.rig import run_python

SAMPLES: list[Frame] = [
    protocol.RankHello(3, 1),
    Report(1, 9, 8, 0.5, {"accuracy": 0.5, "n": 3, "loss": "nan"}),
    Report(1, 9, 8),
    protocol.Saved(8, 0.25, 1000),
    protocol.Remark("writes snapshot.pt"),
    protocol.Greeting(2),
    protocol.Answer(9, "yield"),
    protocol.Answer(9, "continue"),
    protocol.ShimHello(3, 1, 77, 12345),
    protocol.Exited(protocol.Exit("failed", error=protocol.RankError("é", 0))),
    protocol.StopTree(10.0, stacks=True),
    protocol.LaunchSpec(
        *(3, 1, "/t/é", "/e", "train.py", ["--lr", "0.1"], "/", {"A": "b"}, [[0], [1]], "python")
    ),
    protocol.Ready(),
    protocol.Launched(3, 1, 77, None),
    protocol.LaunchFailed(3, 1, "fork: no memory"),
    protocol.ShimDied(3, 1, 77, 9),
    protocol.Ask("deadline", add_s=60.0),
    protocol.Done({"a": [1, "é"]}),
    protocol.Refused("there is no trial 9", 2),
    protocol.Shown({"trials": []}, over=True),
    protocol.Lines([{"what": "began"}]),
]
DECODERS = [
    getattr(protocol, name)
    for name in vars(protocol)
    if name.startswith(("from_", "to_")) and name != "to_builtins"
]


def decoded(line: bytes, decoders: list[Any]) -> Iterator[Any]:
    """Yield what each decoder makes of a line of a kind that it knows."""
    for decode in decoders:
        with suppress(BadFrame):
            yield decode(line)


def test_there_is_a_sample_of_each_record() -> None:
    kinds = {
        kind
        for kind in vars(protocol).values()
        if isinstance(kind, type) and issubclass(kind, Frame)
    }
    assert kinds - {Frame, protocol.OfLaunch} == {type(sample) for sample in SAMPLES}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_each_record_comes_back_on_the_lines_that_carry_it(sample: Frame) -> None:
    line = encode(sample)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    found = list(decoded(line, DECODERS))
    assert found
    assert all(one == sample for one in found)
    on_two = isinstance(sample, protocol.Ask | protocol.Greeting | protocol.Remark)
    assert len(found) == (2 if on_two else 1), "no line knows all kinds"


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"{", b"[1]", b"7", b"\xff", b"[" * 100_000, b'{"kind":"answer"}', b'{"kind":[]}'),
        *(b'{"kind":"answer","seq":"1","go":"save"}', b'{"kind":"answer","seq":true,"go":"save"}'),
        *(
            b'{"kind":"answer","seq":1,"go":"explode"}',
            b'{"kind":"saved","step":1}',
            b'{"kind":"report"}',
        ),
        b'{"kind":"answer","seq":NaN,"go":"save"}',
    ],
)
def test_what_is_no_frame_is_a_bad_frame(line: bytes) -> None:
    with pytest.raises(BadFrame):
        protocol.to_rank(line)


def test_an_interpreter_without_msgspec_is_told_what_to_install() -> None:
    program = "import sys; sys.modules['msgspec'] = None; import gpusched.protocol"
    done = run_python("-c", program)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: gpusched needs msgspec in the interpreter that `python` of the recipe names: "
        f"{sys.executable} -m pip install msgspec"
    )


# ---------------------------------------------------------------- anything at all

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = sorted({name for sample in SAMPLES for name in json.loads(encode(sample))})


@settings(max_examples=400, deadline=None)
@given(
    right=st.sampled_from(SAMPLES),
    fields=st.dictionaries(st.sampled_from(["kind", *FIELDS]), json_values, max_size=8),
    cut=st.integers(0, 3),
)
def test_anything_is_a_record_or_a_bad_frame(
    right: Frame, fields: dict[str, Any], cut: int
) -> None:
    """A record of which some fields hold anything."""
    line = json.dumps({**json.loads(encode(right)), **fields}).encode()
    for one in decoded(line[: len(line) - cut], DECODERS):
        assert isinstance(one, Frame)
        json.loads(encode(one), parse_constant=pytest.fail)


@settings(max_examples=200, deadline=None)
@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_frames_in_pieces_of_any_size(sizes: list[int]) -> None:
    frames = [protocol.Saved(step, 0.5, 10) for step in range(10)]
    data, inbox, found = b"".join(map(encode, frames)), Inbox(protocol.from_rank), []
    for size in sizes:
        found += inbox.feed(data[:size])
        data = data[size:]
    assert [*found, *inbox.feed(data)] == frames


def test_a_frame_that_is_not_taken_comes_first_the_next_time() -> None:
    inbox = Inbox(protocol.from_rank)
    assert next(
        inbox.feed(encode(protocol.Remark("odd")) + encode(protocol.Saved(1, 0.5, 1)))
    ) == protocol.Remark("odd")
    assert list(inbox.feed()) == [protocol.Saved(1, 0.5, 1)]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_too_long_a_frame_is_bad(end: bytes) -> None:
    with pytest.raises(BadFrame, match="1000"):
        list(Inbox(protocol.to_rank, 1000).feed(b"x" * 1001 + end))


def test_what_is_no_unicode_is_replaced() -> None:
    line = encode(protocol.Remark("\udcff"))
    assert protocol.from_rank(line) == protocol.Remark("?")

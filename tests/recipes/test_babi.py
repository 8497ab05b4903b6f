"""bAbI's format, made and read."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

REAL = """\
1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Daniel went back to the hallway.
5 Sandra moved to the garden.
6 Where is Daniel? \thallway\t4
1 John travelled to the office.
2 Mary went to the kitchen.
3 Where is John? \toffice\t1
"""


@pytest.fixture
def babi(recipe: Callable[[str], ModuleType]) -> Any:
    return recipe("babi")


def test_the_real_format_is_read(babi: Any) -> None:
    first, second, third = babi.read_questions(REAL)
    assert first == (
        (
            ["mary", "moved", "to", "the", "bathroom", "."],
            ["john", "went", "to", "the", "hallway", "."],
        ),
        ["where", "is", "mary", "?"],
        "bathroom",
    )
    assert (len(second[0]), second[1][2], second[2]) == (4, "daniel", "hallway")
    assert (len(third[0]), third[1][2], third[2]) == (2, "john", "office")


def test_made_text_is_in_the_same_format_and_its_answers_are_right(babi: Any) -> None:
    text = babi.make_text(203, seed=5)
    assert text == babi.make_text(203, seed=5) != babi.make_text(203, seed=6)
    where: dict[str, tuple[str, str]] = {}
    asked = 0
    for line in text.splitlines():
        number, _, rest = line.partition(" ")
        if number == "1":
            where = {}
        if move := re.fullmatch(r"(\w+) (?:\w+ to|went back to) the (\w+)\.", rest):
            assert where.get(move[1], ("", ""))[0] != move[2], "nobody moves to where they are"
            where[move[1]] = (move[2], number)
        else:
            question = re.fullmatch(r"Where is (\w+)\? \t(\w+)\t(\d+)", rest)
            assert question, line
            assert where[question[1]] == (question[2], question[3])
            asked += 1
    assert asked == 203 == len(babi.read_questions(text))


def test_stories_end_at_the_same_place(babi: Any) -> None:
    questions = babi.read_questions(REAL)
    vocabulary = sorted({w for s, q, a in questions for text in (*s, q, [a]) for w in text})
    shape = babi.shape_of(questions)
    assert shape == (4, 7, 4)
    made = babi.Questions(questions, vocabulary, shape, torch.device("cpu"))
    stories, asked, answers = made.batch(torch.tensor([2, 1]))
    words = ["", *vocabulary]
    read = [[[words[w] for w in text if w] for text in story] for story in stories.tolist()]
    assert read[0][:2] == [[], []]
    assert [text[0] for text in read[0][2:]] == ["john", "mary"]
    assert [text[0] for text in read[1]] == ["mary", "john", "daniel", "sandra"]
    assert [words[w] for w in asked[0]] == ["where", "is", "john", "?"]
    assert [words[answer] for answer in answers] == ["office", "hallway"]

"""Rungs against a naive oracle: a list that is sorted anew for every question."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.core.rung import Ladder, Rung, milestones

NEVER = -math.inf
#: Few different values, so that ties are common; and a metric that was not finite.
scores = st.sampled_from([NEVER, -1.0, 0.0, 0.25, 0.5, 1.0])
etas = st.sampled_from([1.1, 1.5, 2.0, 3.0, 4.0, 10.0])


class Naive:
    """Rung as the papers have it, without a thought for speed."""

    def __init__(self) -> None:
        self.recorded: list[tuple[int, float]] = []

    def ranked(self) -> list[int]:
        """The best first; of equal ones, the one that was recorded first."""
        return [trial for trial, score in sorted(self.recorded, key=lambda entry: -entry[1])]

    def keeps(self, trial: int, eta: float) -> bool:
        best = self.ranked()[: math.ceil(len(self.recorded) / Fraction(str(eta)))]
        of = dict(self.recorded)
        if min(of.values()) == of[best[-1]] < max(of.values()):
            return trial in best
        return of[trial] >= of[best[-1]]

    def promotable(self, eta: float, paused: set[int]) -> list[int]:
        best = self.ranked()[: math.floor(len(self.recorded) / Fraction(str(eta)))]
        return [trial for trial in best if trial in paused]


@given(st.lists(scores, min_size=1, max_size=40), etas)
def test_rank_cutoff_and_keep_agree_with_the_oracle(values: list[float], eta: float) -> None:
    rung, naive = Rung(4, eta, {}), Naive()
    for trial, score in enumerate(values):
        assert rung.record(trial, score)
        naive.recorded.append((trial, score))
        ranked = naive.ranked()
        for other in range(trial + 1):
            assert rung.rank(other) == ranked.index(other)
            assert rung.fails(other) != naive.keeps(other, eta)
            assert rung.score(other) == values[other]
    assert len(rung) == len(values)
    assert rung.cutoff() == min(values[t] for t in range(len(values)) if naive.keeps(t, eta))


# ---------------------------------------------------------------- promotion

#: (what, trial, score): trials pause at the rung, are promoted, come back
operations = st.lists(
    st.tuples(st.sampled_from(["pause", "resume", "ask"]), st.integers(0, 12), scores), max_size=60
)


@given(operations, etas)
def test_promotion_agrees_with_the_oracle(ops: list[tuple[str, int, float]], eta: float) -> None:
    rung, naive = Rung(1, eta, {}), Naive()
    paused: set[int] = set()
    for what, trial, score in ops:
        if what == "pause":
            is_new = trial not in dict(naive.recorded)
            assert rung.record(trial, score) == is_new, "once for each trial"
            naive.recorded += [(trial, score)] * is_new
            paused.add(trial)
        elif what == "resume":
            paused.discard(trial)
        else:
            assert list(rung.promotable(paused)) == naive.promotable(eta, paused)
            first = next(rung.promotable(paused), None)
            assert first == next(iter(naive.promotable(eta, paused)), None)


# ---------------------------------------------------------------- ladders


@pytest.mark.parametrize(
    ("r", "eta", "expected"),
    [
        (1, 3.0, [1, 3, 9, 27, 81]),
        (5, 4.0, [5, 20, 80, 320, 1280]),
        (1, 1.5, [1, 2, 3, 5, 8]),  # 1, 1.5, 2.25, 3.4, 5.1, 7.6: rounded, each once
    ],
)
def test_milestones(r: int, eta: float, expected: list[int]) -> None:
    assert list(itertools.islice(milestones(r, eta), 5)) == expected


@given(st.integers(1, 20), etas, st.lists(st.integers(-9, 3000), max_size=30))
def test_a_ladder_knows_its_rungs_in_any_order_of_questions(
    r: int, eta: float, asked: list[int]
) -> None:
    """Of ``asked``, 0 and less stand for a milestone: of thousands of steps a few are one."""
    ladder = Ladder(r, eta)
    expected = list(itertools.takewhile(lambda step: step <= 3000, milestones(r, eta)))
    for number in asked:
        step = number if number > 0 else expected[-number % len(expected)]
        rung = ladder.at(step)
        assert (rung is not None) == (step in expected)
        if rung is not None:
            assert rung.milestone == step
            assert rung is ladder.at(step)
    made = [rung.milestone for rung in ladder.rungs]
    assert made == expected[: len(made)]

"""Any view fits any terminal: no exception, and no line too wide."""

from __future__ import annotations

import string

from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.dashboard import devices as device_panel
from gpusched.dashboard import header, marks, model, panels, table
from gpusched.dashboard.model import View
from gpusched.dashboard.table import SORTS, Choice

words = (
    st.text(max_size=30)
    | st.text(string.printable, max_size=60)
    | st.sampled_from(["日本語の名前", "a\x1b[31mb", "e\u0301"])
)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.floats(0, 1)
maybe = st.none() | numbers
counts = st.integers(0, 3) | st.integers(0, 10**9)
trials = st.builds(
    model.TrialView,
    id=st.integers(0, 30) | st.integers(0, 10**6),
    state=st.sampled_from([*model.STATES, "unheard of"]),
    step=counts,
    metric=maybe,
    best_metric=maybe,
    best_step=counts,
    atoms=st.integers(0, 64),
    incarnation=counts,
    step_time_s=st.none() | st.floats(0, 1e9),
    training_s=st.floats(0, 1e9),
    saved_step=counts,
    held_by_user=st.booleans(),
    after=words,
    hparams=st.dictionaries(
        words,
        numbers | words | st.booleans() | st.none() | st.dictionaries(words, numbers),
        max_size=5,
    ),
    metrics=st.dictionaries(words, numbers | words, max_size=3),
    curve=st.lists(maybe, max_size=40).map(tuple),
    error=st.none() | words,
)
devices = st.builds(
    model.DeviceView,
    id=words,
    label=words,
    state=st.sampled_from(["free", "held", "draining", "quarantined", "unheard of"]),
    trial=st.none() | st.integers(0, 10**5),
    awaited_by=st.none() | st.integers(0, 99),
    reason=words,
    stuck=st.booleans(),
    utilisation=st.none() | st.floats(0, 1),
    memory_used_bytes=st.none() | counts,
    memory_total_bytes=st.none() | counts,
    temperature_c=st.none() | st.floats(0, 150),
    power_w=st.none() | st.floats(0, 2000),
    notes=st.lists(words, max_size=2).map(tuple),
)
views = st.builds(
    model.View,
    experiment=words,
    state=st.sampled_from(
        ["starting", "running", "stopping", "finished", "interrupted", "unheard of"]
    ),
    ending=st.none() | words,
    policy=words,
    daemon_pid=st.none() | st.just(7),
    metric=words,
    mode=st.sampled_from(["max", "min"]),
    now_s=st.floats(0, 1e9),
    time_left_s=st.floats(0, 1e9),
    deadline_s=st.floats(0, 1e9),
    best=st.none()
    | st.builds(model.BestView, trial=counts, step=counts, metric=numbers, atoms=counts),
    atoms=st.builds(
        model.AtomsView, total=counts, held=counts, free=counts, draining=counts, quarantined=counts
    ),
    devices=st.lists(devices, max_size=20).map(tuple)
    | st.lists(devices, min_size=70, max_size=70).map(tuple),
    trials=st.lists(trials, max_size=12, unique_by=lambda trial: trial.id).map(tuple),
    trial_counts=st.dictionaries(st.sampled_from(model.STATES), counts),
    rungs=st.lists(
        st.builds(model.RungView, milestone=counts, count=counts, waiting=counts, cutoff=maybe),
        max_size=6,
    ).map(tuple),
    decisions=st.lists(
        st.builds(model.DecisionView, at=st.floats(0, 1e9), trial=st.none() | counts, text=words),
        max_size=6,
    ).map(tuple),
    notes=st.lists(words, max_size=2).map(tuple),
    warnings=st.lists(words, max_size=3).map(tuple),
)
choices = st.builds(
    Choice,
    sort=st.sampled_from(SORTS),
    is_reversed=st.booleans(),
    selected=st.none() | st.integers(0, 30),
    wanted=words,
)


@settings(max_examples=80)
@given(views, st.integers(30, 200), st.integers(5, 60), choices, st.lists(words, max_size=6))
def test_any_view_fits_any_terminal(
    view: View, width: int, height: int, choice: Choice, story: list[str]
) -> None:
    titles, rows, ids = table.table(view, width, choice)
    assert len(rows) == len(ids) <= len(view.trials)
    top = header.top(view, width, height)
    panels.overview(view, width, height)
    assert len(top) <= max(11, height)
    panels.decisions(view, (), width)
    panels.curves(view, choice.selected, width, height)
    panels.detail(view, view.trial(choice.selected), story, width)
    device_panel.lines(view, width)
    rule = marks.rule(*table.title(view, choice, len(rows)), width)
    for line in [rule, titles, *rows, *top]:
        assert line.cell_len <= width

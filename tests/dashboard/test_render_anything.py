"""Any view fits any terminal: no exception, and no line too wide."""

from __future__ import annotations

import string
from typing import Any, get_type_hints

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpusched.core.trial import TrialState
from gpusched.dashboard import marks, model, panels, widgets
from gpusched.dashboard.model import Standing

STATES = [state.value for state in TrialState]

words = (
    st.text(max_size=30)
    | st.text(string.printable, max_size=60)
    | st.sampled_from(["日本語の名前", "a\x1b[31mb", "e\u0301"])
)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.floats(0, 1)
counts = st.integers(0, 3) | st.integers(0, 10**9)
FORMS: dict[Any, st.SearchStrategy[Any]] = {
    int: counts,
    float: st.floats(0, 1e9),
    str: words,
    bool: st.booleans(),
    int | None: st.none() | counts,
    float | None: st.none() | numbers,
    str | None: st.none() | words,
    tuple[str, ...]: st.lists(words, max_size=3).map(tuple),
    tuple[float | None, ...]: st.lists(st.none() | numbers, max_size=40).map(tuple),
}


def made(kind: type, **known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Make records of this kind, each field by its type where it is not given."""
    hints = get_type_hints(kind).items()
    forms = {name: known[name] if name in known else FORMS[hint] for name, hint in hints}
    return st.builds(kind, **forms)


def several(forms: st.SearchStrategy[Any], most: int, **more: Any) -> st.SearchStrategy[Any]:
    return st.lists(forms, max_size=most, **more).map(tuple)


values = numbers | words | st.booleans() | st.none() | st.dictionaries(words, numbers)
best = made(model.BestRow, metric=numbers, hparams=st.dictionaries(words, values, max_size=5))
trials = made(
    model.TrialRow,
    id=st.integers(0, 30) | st.integers(0, 10**6),
    state=st.sampled_from(STATES),
    atoms=st.integers(0, 64),
    hparams=st.dictionaries(words, values, max_size=5),
    metrics=st.dictionaries(words, numbers | words, max_size=3),
)
devices = made(
    model.DeviceRow,
    state=st.sampled_from([*marks.DEVICE]),
    trial=st.none() | st.integers(0, 10**5),
)
views = made(
    Standing,
    state=st.sampled_from([*marks.EXPERIMENT]),
    mode=st.sampled_from(["max", "min"]),
    best=st.none() | best,
    best_unsaved=st.none() | trials,
    atoms=made(model.AtomCounts),
    devices=several(devices, 20) | several(devices, 70, min_size=70),
    trials=several(trials, 12, unique_by=lambda trial: trial.id),
    trial_counts=st.dictionaries(st.sampled_from(STATES), counts),
    idle=several(made(model.IdleRow), 6),
    idle_atom_s=st.dictionaries(words, st.floats(0, 1e9), max_size=6),
)


# Shrinking a view takes minutes; the example as it was found says enough.
@settings(max_examples=20, phases=set(Phase) - {Phase.shrink})
@given(views, st.integers(30, 200), st.integers(5, 60), st.lists(words, max_size=6))
def test_any_view_fits_any_terminal(
    view: Standing, width: int, height: int, story: list[str]
) -> None:
    names = widgets.columns(view)
    for trial in view.trials:
        assert len(widgets.cells(view, trial, names, None)) == len(names)
    panels.detail(view, view.trials[0] if view.trials else None, story)
    panels.remarks(view)
    drawn = [panels.head(view, width), panels.strip(view, width, height // 4)]
    for text in [*drawn, panels.curves(view, None, width, height)]:
        assert all(line.cell_len <= max(width, 32) for line in text.split())

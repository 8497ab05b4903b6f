"""Keys change what is seen, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusched.dashboard.model import TrialView, View
from gpusched.dashboard.ui import PANELS, SORTS, UiState, order, press, window

IDS = list(range(20))


def after(*keys: str, ui: UiState | None = None, rows: int = 5) -> UiState:
    ui = ui or UiState()
    for key in keys:
        ui = press(ui, key, IDS, rows)
    return ui


def test_the_first_move_selects_what_is_on_top() -> None:
    assert after("down").selected == 0
    assert after("up").selected == 0
    assert after("enter").selected == 0
    assert after("down", ui=UiState(top=7)).selected == 7


@pytest.mark.parametrize(
    ("keys", "selected"),
    [
        (("down", "down", "j"), 2),
        (("down", "down", "k"), 0),
        (("down", "pgdn"), 5),
        (("end",), 19),
        (("G", "up"), 18),
        (("end", "down"), 19),
        (("end", "home"), 0),
        (("end", "g"), 0),
        (("end", "pgup"), 14),
    ],
)
def test_moves(keys: tuple[str, ...], selected: int) -> None:
    assert after(*keys).selected == selected


def test_the_window_follows_the_selection_and_moves_no_more_than_it_must() -> None:
    ui = after("down", "down", "down", "down", "down")
    assert (ui.selected, ui.top) == (4, 0)
    ui = after("down", ui=ui)
    assert (ui.selected, ui.top) == (5, 1)
    ui = after("up", "up", ui=ui)
    assert (ui.selected, ui.top) == (3, 1)
    assert window(UiState(selected=19, top=0), IDS, 5) == 15
    assert window(UiState(top=99), IDS, 5) == 15
    assert window(UiState(selected=3), IDS, 50) == 0


def test_a_selected_trial_that_is_gone_is_let_go() -> None:
    assert press(UiState(selected=99, top=2), "down", IDS, 5).selected == 2
    assert press(UiState(selected=1), "down", [], 5).selected is None


def test_details_open_and_close() -> None:
    assert after("down", "enter").detail
    assert not after("down", "enter", "enter").detail
    assert not after("down", "l", "esc").detail
    assert after("down", "l", "esc").selected == 0
    assert after("down", "l", "esc", "esc").selected is None
    assert after("down", "l", "l").detail
    assert after("down", "enter", "down").detail
    assert not press(UiState(), "enter", [], 5).detail


def test_sorting_and_panels_go_round() -> None:
    ui = UiState()
    seen = [ui.sort]
    for _ in SORTS:
        ui = after("s", ui=ui)
        seen.append(ui.sort)
    assert seen == [*SORTS, SORTS[0]]
    assert after("r").reverse
    assert not after("r", "s").reverse
    assert after("tab").panel == PANELS[1]
    assert after("backtab").panel == PANELS[-1]
    assert after(*("d" for _ in PANELS)).panel == PANELS[0]


def test_any_key_leaves_the_help_and_does_nothing_else() -> None:
    assert after("?").help
    assert after("?", "s") == UiState()


def test_a_key_clears_the_note_and_unknown_keys_do_nothing() -> None:
    assert press(UiState(note="said"), "x", IDS, 5) == UiState()


def view(mode: str = "max") -> View:
    metrics = {1: 0.5, 2: 0.9, 3: None, 4: 0.7}
    states = {1: "paused", 2: "failed", 3: "running", 4: "running"}
    trials = [
        TrialView(id=trial, state=states[trial], metric=metric, step=trial * 10, atoms=4 - trial)
        for trial, metric in metrics.items()
    ]
    return View(experiment="x", mode=mode, trials=tuple(trials))


@pytest.mark.parametrize(
    ("sort", "reverse", "expected"),
    [
        ("metric", False, [2, 4, 1, 3]),
        ("metric", True, [1, 4, 2, 3]),
        ("trial", False, [1, 2, 3, 4]),
        ("trial", True, [4, 3, 2, 1]),
        ("step", False, [4, 3, 2, 1]),
        ("atoms", False, [1, 2, 3, 4]),
        ("state", False, [4, 3, 1, 2]),
    ],
)
def test_order(sort: str, reverse: bool, expected: list[int]) -> None:
    assert [trial.id for trial in order(view(), UiState(sort=sort, reverse=reverse))] == expected


def test_a_loss_is_better_when_less() -> None:
    assert [trial.id for trial in order(view("min"), UiState())] == [1, 4, 2, 3]


def test_a_selection_stays_on_its_trial_when_the_order_changes() -> None:
    ui = UiState(selected=4)
    for sort in SORTS:
        ids = [trial.id for trial in order(view(), replace(ui, sort=sort))]
        assert press(replace(ui, sort=sort), "x", ids, 2).selected == 4

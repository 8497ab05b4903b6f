"""Golden screens, and that any view fits any terminal.

The screens are drawn from recorded views (``golden/views``), so that only the drawing is tested here.
``GOLDEN=write pytest tests/dashboard/test_render.py`` writes the screens anew, ``GOLDEN=record`` plays the scenes again
and writes the views too; look at the difference afterwards.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from gpusched.core.events import DeviceQuarantined, UserAsked
from gpusched.dashboard.model import View, to_json
from gpusched.dashboard.render import render, text, visible_rows
from gpusched.dashboard.ui import Detail, UiState
from gpusched.devices.base import Reading
from tests.dashboard.scene import VIEWS, Scene, recorded

GOLDEN = Path(__file__).with_name("golden")
SIZES = {60: 24, 80: 24, 160: 45}
PLAIN, NO_DETAIL = UiState(), Detail()


def scene_exploring() -> View:
    return Scene(fails=(4,), broken=(5,)).play(14.2).view(now=14.3)


def scene_grown() -> View:
    return Scene(fails=(4,)).play(26).view(now=26.2)


def scene_trouble() -> View:
    scene = Scene(atoms=8, kind="gpu", fails=(2,)).play(19)
    reason = "4.1 GiB still held by python (pid 8812) after 30 s"
    scene.tell(DeviceQuarantined(at=19.1, device="gpu5", reason=reason))
    scene.play(19.25)
    stuck = Reading(device="gpu3", label="H100 3", holders=("python (pid 9120)",))
    readings = [*scene.readings()[:3], stuck, *scene.readings()[4:]]
    warning = "the journal cannot be written: database or disk is full"
    return scene.view(now=19.3, readings=readings, warnings=(warning,))


def scene_stopping() -> View:
    scene = Scene().play(30)
    scene.tell(UserAsked(at=30.1, verb="stop"))
    return scene.view(now=30.2)


def scene_finished() -> View:
    return Scene().play().view(daemon_pid=None)


def scene_beginning() -> View:
    return Scene().view(now=0.1)


def scene_loss() -> View:
    return Scene(policy="asha", mode="min", atoms=2).play(25).view(now=25.0)


def scene_many_atoms() -> View:
    return Scene(atoms=64).play(4).view(now=4.0)


SCENES: dict[str, Callable[[], View]] = {
    made.__name__.removeprefix("scene_"): made
    for made in (
        *(scene_exploring, scene_grown, scene_trouble, scene_stopping, scene_finished),
        *(scene_beginning, scene_loss, scene_many_atoms),
    )
}


if os.environ.get("GOLDEN") == "record":
    VIEWS.mkdir(exist_ok=True)
    for name, play in SCENES.items():
        (VIEWS / f"{name}.json").write_text(
            json.dumps(to_json(play()), separators=(",", ":")) + "\n"
        )


STORY = (
    "trial 0 is running at step 74 on 4 atoms, launch 3",
    "  rung 9: 1st of 4; the best 1 are promoted",
    "",
    "story:",
    "    0.0 s  a new configuration enters",
    "    0.2 s  starting -> running: up on 1 atoms",
    "   15.8 s  grows 1 -> 2: 69 more steps before the deadline",
    "   18.7 s  running -> yielding: grows 2 -> 4: 113 more steps before the deadline",
    "   19.3 s  starting -> running: up on 4 atoms",
)
LOG = tuple(f"epoch {epoch}: loss {1 / epoch:.4f}" for epoch in range(1, 75))
DETAIL = Detail(story=STORY, log_name="launch 3, rank-0.out", log=LOG)
STOPPING = "stopping: every trial leaves at its next step (Ctrl-C again: now)"
INTERRUPT = "stop in good order; again: terminate; a third time: kill"

#: name -> recorded view (None: nothing was heard yet), what the person chose, what is known of the selected trial.
PICTURES: dict[str, tuple[str | None, UiState, Detail]] = {
    "exploring": ("exploring", PLAIN, NO_DETAIL),
    "grown": ("grown", replace(PLAIN, sort="state"), NO_DETAIL),
    "gpus_in_trouble": ("trouble", PLAIN, NO_DETAIL),
    "trial_in_detail": ("grown", replace(PLAIN, selected=0, detail=True), DETAIL),
    "failed_in_detail": ("exploring", replace(PLAIN, selected=4, detail=True), NO_DETAIL),
    "stopping": ("stopping", replace(PLAIN, note=STOPPING), NO_DETAIL),
    "finished": ("finished", PLAIN, NO_DETAIL),
    "interrupted": ("grown", PLAIN, NO_DETAIL),
    "away": ("exploring", replace(PLAIN, away_s=12.4), NO_DETAIL),
    "beginning": ("beginning", PLAIN, NO_DETAIL),
    "waiting": (None, PLAIN, NO_DETAIL),
    "loss_of_two": ("loss", replace(PLAIN, panel="rungs", selected=3), NO_DETAIL),
    "many_atoms": ("many_atoms", PLAIN, NO_DETAIL),
    "help": ("exploring", replace(PLAIN, help=True, interrupt=INTERRUPT), NO_DETAIL),
}


def draw(picture: str, width: int, height: int, *, ascii_only: bool = False) -> str:
    scene, ui, detail = PICTURES[picture]
    view = recorded(scene) if scene is not None else None
    if view is not None and picture == "interrupted":
        view = replace(view, state="interrupted", daemon_pid=None)
    return text(view, width, height, ui, detail=detail, ascii_only=ascii_only)


def compare(name: str, found: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("GOLDEN") in ("write", "record"):
        path.write_text(found)
    assert path.exists(), f"{path} is missing; GOLDEN=write makes it"
    assert found == path.read_text(), f"{path.name} looks different now; GOLDEN=write makes it anew"


@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("picture", PICTURES)
def test_golden(picture: str, width: int) -> None:
    found = draw(picture, width, SIZES[width])
    assert max(map(cell_len, found.splitlines())) <= width
    assert found.count("\n") <= SIZES[width]
    compare(f"{picture}-{width}", found)


@pytest.mark.parametrize(
    ("width", "height"), [(40, 16), (40, 10), (30, 12), (80, 10), (120, 8), (24, 5)]
)
def test_golden_of_small_terminals(width: int, height: int) -> None:
    compare(f"small-{width}x{height}", draw("exploring", width, height))


@pytest.mark.parametrize("picture", PICTURES)
def test_ascii_has_the_same_layout(picture: str) -> None:
    fancy = draw(picture, 100, 30).splitlines()
    plain = draw(picture, 100, 30, ascii_only=True)
    assert plain.isascii()
    assert [cell_len(line) for line in fancy] == [len(line) for line in plain.splitlines()]
    if picture == "exploring":
        compare("ascii-100", plain)


def test_the_scenes_still_look_like_the_recorded_ones() -> None:
    """Not the numbers, which policies may change; but all keys, and the states that the pictures are about."""
    for scene, play in SCENES.items():
        was, now = recorded(scene), play()
        assert to_json(now).keys() == to_json(was).keys()
        assert now.state == was.state
        assert {device.state for device in now.devices} >= {device.state for device in was.devices}


def test_narrow_says_how_wide_it_should_be() -> None:
    view = recorded("exploring")
    assert "30 of 40 columns" in text(view, 30, 12)
    assert "0.9926" in text(view, 30, 12)
    assert "40 columns" not in text(view, 40, 12)


def test_columns_are_dropped_in_the_stated_order() -> None:
    from gpusched.dashboard.table import DROPPED_FIRST

    view = recorded("exploring")
    titles = {name: name for name in ("s/step", "best", "launch", "curve", "atoms")}
    titles |= {"more hparams": "width", "hparams": " lr"}
    gone: list[str] = []
    for width in range(99, 39, -1):
        lines = text(view, width, 40).splitlines()
        head = next(line for line in lines if line.lstrip().startswith("trial "))
        for name, title in titles.items():
            if title not in head and name not in gone:
                gone.append(name)
    order = [name for name in DROPPED_FIRST if name in gone]
    assert gone == order
    assert set(gone) >= set(DROPPED_FIRST) - {"word", "atoms"}


def test_every_atom_is_named_without_colour() -> None:
    view = recorded("trouble")
    out = io.StringIO()
    console = Console(width=100, no_color=True, force_terminal=True, color_system="256", file=out)
    console.print(render(view, width=100, height=30))
    shown = out.getvalue()
    assert not re.search(r"\x1b\[[0-9;]*\b[34][0-9]", shown), "a colour"
    assert "quarantined: 4.1 GiB still held by python (pid 8812)" in shown
    assert "draining: still held by python (pid 9120) after trial 44 left" in shown
    assert "[× ✗ ×" in shown


def test_the_selected_trial_stays_in_sight() -> None:
    view = recorded("exploring")
    rows = visible_rows(view, 80, 24, PLAIN)
    assert 5 <= rows < len(view.trials)
    for trial in view.trials:
        shown = text(view, 80, 24, replace(PLAIN, selected=trial.id))
        assert shown.count("▸") == 1


def test_the_selected_row_is_marked_over_the_table_and_no_further() -> None:
    out = io.StringIO()
    console = Console(width=160, force_terminal=True, color_system="256", file=out)
    console.print(render(recorded("grown"), width=160, height=45, ui=replace(PLAIN, selected=1)))
    (row,) = [line for line in out.getvalue().splitlines() if "▸" in line]
    marked = re.search(r"\x1b\[7m(▸[^\x1b]*)\x1b\[0m", row)
    assert marked is not None
    assert 80 < len(marked.group(1)) < 100


def test_a_long_warning_where_there_is_one_line_begins_with_its_beginning() -> None:
    warnings = ("an older one", "three CPU slots share two cores: steps take longer the more run")
    view = replace(recorded("grown"), warnings=warnings)
    shown = text(view, width=40, height=10).splitlines()
    assert "! three CPU slots share two cores: step…" in shown
    assert not any("an older one" in line for line in shown)
    tall = text(view, width=40, height=24)
    assert "more run" in tall
    assert "an older one" in tall

"""The live dashboard (gpusched/cli/attach.py) in a real terminal: keys, sizes, signals, and what is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusched.folder.paths import ExperimentPaths
from tests.dashboard.tmux import PROMPT, Terminal
from tests.rig import wait_until

pytestmark = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="tmux is not installed: no terminal to test in"
)

PLAY = f"{sys.executable} -m tests.dashboard.play"
VIEW = "--view tests/dashboard/golden/views/exploring.json"
Open = Callable[..., Terminal]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Open]:
    opened: list[Terminal] = []

    def start(columns: int = 80, rows: int = 24, **environment: str) -> Terminal:
        opened.append(Terminal(tmp_path, columns, rows, environment))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def assert_restored(screen: Terminal) -> None:
    """The shell's own screen, a cursor, and a line editor that echoes."""
    screen.wait(PROMPT)
    asked = "#{alternate_on} #{cursor_flag} #{wrap_flag}"
    wait_until(lambda: screen.ask(asked) == "0 1 1", lambda: f"0 1 1, not {screen.ask(asked)}")
    screen.type("echo $((6 * 7)) $(stty -a | grep -o -e ' -icanon' -e ' -echo ')")
    screen.wait(r"(?m)^42\s*$")


def test_keys_sizes_and_a_terminal_left_as_it_was(terminal: Open, tmp_path: Path) -> None:
    logs = ExperimentPaths(tmp_path).trial(0).logs(1)
    logs.mkdir(parents=True)
    (logs / "rank-0.out").write_text("epoch 1 of 81\n")
    ExperimentPaths(tmp_path).log.write_text("trial 18 pauses\n")
    screen = terminal(80, 24)
    screen.type(f"{PLAY} {VIEW} --folder {tmp_path}")
    screen.wait("best accuracy 0.9926")
    assert screen.ask("#{alternate_on} #{cursor_flag} #{mouse_any_flag}") == "1 0 1"
    screen.keys("Enter")
    screen.wait("details")
    screen.wait("the story of trial 0")
    screen.keys("3")
    screen.wait("epoch 1 of 81")
    screen.keys("Escape")
    screen.wait("trial  state")
    screen.resize(140, 35)
    screen.keys("4")
    screen.wait("trial 18 pauses")
    wait_until(lambda: len(screen.screen().rstrip("\n").splitlines()) == 35, "all rows")
    screen.resize(30, 12)
    screen.wait("q detach")
    screen.resize(80, 24)
    screen.wait("best accuracy 0.9926")
    screen.keys("q")
    screen.wait(r"ended: detached\.")
    assert_restored(screen)


def test_at_the_end_trials_and_summary_are_left_on_the_screen(terminal: Open) -> None:
    screen = terminal(100, 40)
    screen.type(f"{PLAY} --own --deadline 20 --speed 40")
    shown = screen.wait("ended: over")
    assert "trial  state" in shown, "the trials of the last frame have gone with it"
    assert "digits-0714-1532 is over (deadline)" in shown
    assert "checkpoint       /data/runs/digits-0714-1532/best/checkpoint" in shown
    assert_restored(screen)


def test_a_watcher_stays_when_it_is_over(terminal: Open) -> None:
    screen = terminal()
    screen.type(f"{PLAY} --deadline 10 --speed 40")
    screen.wait("✓ finished")
    screen.keys("q")
    screen.wait(r"ended: over\.")
    assert_restored(screen)


def test_a_watcher_of_a_silent_daemon_is_suspended_continued_and_detached(terminal: Open) -> None:
    screen = terminal()
    screen.type(f"{PLAY} {VIEW}")
    assert "trial  state" in screen.wait(r"daemon is away, last seen \d"), "the last view"
    screen.keys("C-z")
    screen.wait("Stopped")
    assert_restored(screen)
    screen.type("fg")
    screen.wait("trial  state")
    screen.keys("C-c")
    screen.wait(r"ended: detached\.")
    assert_restored(screen)


@pytest.mark.parametrize(
    ("number", "option", "said"),
    [
        (signal.SIGTERM, "", "ended: terminated"),
        (signal.SIGHUP, "", "ended: terminated"),
        (None, "--then-fail", "gpusched.errors.DamagedState: the journal is damaged"),
    ],
)
def test_a_signal_or_a_failure_that_ends_it_restores_the_terminal(
    terminal: Open, tmp_path: Path, number: int | None, option: str, said: str
) -> None:
    screen = terminal()
    screen.type(f"{PLAY} {VIEW} --pid-file {tmp_path}/pid {option}")
    screen.wait("trial  state")
    if number is not None:
        os.kill(int((tmp_path / "pid").read_text()), number)
    screen.wait(said)
    assert_restored(screen)


STOPPED = "sh -c '(until [ -e stop ]; do sleep 0.1; done; kill 1) & exec {}'"


@pytest.mark.parametrize("first", ["sh -c 'exec {}'", "./tini -c '{}; exit'", STOPPED])
def test_a_command_with_which_its_container_ends_stays_with_its_search(
    terminal: Open, tmp_path: Path, first: str
) -> None:
    """``q``, or --detach, ended a search that was said to continue."""
    alone = "unshare --user --map-root-user --pid --fork --mount-proc"
    if subprocess.run([*alone.split(), "true"], check=False).returncode:
        pytest.skip("this user can make no container")
    script = Path(__file__).parents[1] / "e2e/scripts/good.py"
    recipe = f"script: {script}\ndeadline: 1h\nmetric: score\nspace: {{x: 1}}\ndevices: cpu:1\n"
    (tmp_path / "r.yaml").write_text(f"{recipe}policy: {{name: fifo, R: 100000}}\n")
    (tmp_path / "tini").symlink_to("/bin/sh")
    screen = terminal(100, 30)
    run = first.format(f"{sys.executable} -m gpusched run r.yaml --detach")
    screen.type(f"cd {tmp_path}; {alone} {run}")
    screen.wait("trial  state")
    if first == STOPPED:  # ``docker stop``
        (tmp_path / "stop").touch()
    else:
        screen.keys("q")
        screen.wait("would end with this command(.|\n)*trial 0")
        screen.keys("C-c")
    screen.wait(rf"is over .stopped by {'SIGTERM' if first == STOPPED else 'the user'}")
    assert_restored(screen)


@pytest.mark.parametrize("setting", [{"PYTHONIOENCODING": "ascii"}, {"TERM": "xterm-color"}])
def test_a_terminal_without_unicode_and_a_notebook_get_plain_lines(
    terminal: Open, setting: dict[str, str]
) -> None:
    screen = terminal(100, 30, **setting)
    screen.type(
        f"{sys.executable} -c 'from gpusched.cli import attach; print(attach.has_screen())'"
    )
    screen.wait("False")


def test_a_rehearsal_shows_where_it_is_and_ctrl_c_ends_its_daemon(
    terminal: Open, tmp_path: Path
) -> None:
    """A rehearsal was silent for up to ten minutes; its daemon trained on after Ctrl-C, and nothing showed it."""
    (tmp_path / "slow.py").write_text(
        "import time, gpusched\ngpusched.init().track()\ntime.sleep(600)\n"
    )
    recipe = tmp_path / "slow.yaml"
    recipe.write_text(
        "script: slow.py\ndeadline: 1h\nmetric: accuracy\nspace: {lr: 1}\ndevices: cpu:2\n"
    )
    screen = terminal(100, 30)
    screen.type(f"{sys.executable} -m gpusched validate {recipe} --rehearse --dir {tmp_path}")
    screen.wait("rehearsing .* trial 0 starts on 1 atom")
    screen.keys("C-c")
    screen.wait(rf"{PROMPT}\s*$")
    assert_restored(screen)
    wait_until(lambda: not [*tmp_path.glob(".rehearsals/*/*/daemon.sock")], "its end")

"""``gpusched run`` before its search starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpusched.cli import main, run
from gpusched.daemon.start import make_experiment, start_daemon
from gpusched.driver.assemble import Beginning
from gpusched.errors import InputError
from gpusched.recipe.load import load_recipe

RECIPE = "script: train.py\nmetric: m\ndeadline: 1m\nspace: {lr: {uniform: [0, 1]}}\n"


def help_into(output: int) -> tuple[int, str]:
    """Run ``gpusched --help`` with this standard output; return its exit code and what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "gpusched", "--help"],
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(output)
    return done.returncode, done.stderr


def test_a_reader_that_has_gone_is_no_failure() -> None:
    """The last lines of ``gpusched ls | head`` are written when ``head`` may be over: code 120, and words of Python."""
    reading, writing = os.pipe()
    os.close(reading)
    assert help_into(writing) == (0, "")


def test_output_that_a_full_disk_does_not_take_is_no_defect() -> None:
    said = "gpusched: No space left on device; make room and run the command again\n"
    assert help_into(os.open("/dev/full", os.O_WRONLY)) == (1, said)


@pytest.mark.parametrize("runs", ["/proc/none", "search.yaml"])
def test_a_folder_that_takes_no_experiment_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("search.yaml").write_text(RECIPE)
    Path("train.py").touch()
    said = rf"^{runs}: a search cannot be written here \(.*'--dir' names another folder"
    with pytest.raises(InputError, match=said):
        make_experiment(Path(runs), load_recipe(Path("search.yaml")), Beginning.now())


def test_a_resume_does_not_begin_without_its_script_and_folder(tmp_path: Path) -> None:
    """Where a project had moved, and its script alone was corrected, each trial failed for good."""
    source, script, work = (tmp_path / name for name in ("search.yaml", "train.py", "work"))
    source.write_text(f"{RECIPE}cwd: work\n")
    script.touch()
    work.mkdir()
    recipe = load_recipe(source)
    paths = make_experiment(tmp_path / "runs", recipe, Beginning.now(), source)
    script.rename(tmp_path / "moved.py")
    work.rmdir()
    with pytest.raises(InputError, match=r"any more: script .*train\.py, cwd .*work; put it back"):
        start_daemon(paths, resume=True)
    assert not paths.log.exists(), "no daemon was started"


def test_a_resume_waits_for_the_end_of_a_search_that_is_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``deadline`` pointed to ``resume`` then, and that back to ``deadline``."""
    (tmp_path / "journal.db").touch()
    done: list[str] = []
    monkeypatch.setattr(run.find, "has_daemon", lambda _: True)
    monkeypatch.setattr(run.session, "view", lambda _: {"state": "stopping"})
    for place, name in ((run.common, "wait_for_end"), (run.launchpad, "start_daemon")):
        monkeypatch.setattr(place, name, lambda *_, name=name, **_more: done.append(name))
    monkeypatch.setattr(run.attach, "begin", lambda *_: 0)
    assert main(["resume", str(tmp_path), "--deadline", "+20m"]) == 0
    assert done == ["wait_for_end", "start_daemon"]

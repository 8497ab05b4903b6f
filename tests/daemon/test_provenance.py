"""The code of a search: recorded at its start, compared later."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpusched.daemon import provenance
from gpusched.folder.paths import ExperimentPaths


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that is committed."""
    made = tmp_path / "code" / "train.py"
    made.parent.mkdir()
    made.write_text("print(1)\n")
    git(made.parent, "init", "-q")
    git(made.parent, "add", ".")
    git(made.parent, "commit", "-qm", "first")
    return made


@pytest.fixture
def paths(tmp_path: Path) -> ExperimentPaths:
    (tmp_path / "run").mkdir()
    return ExperimentPaths(tmp_path / "run")


def test_what_is_as_it_was_does_not_differ(paths: ExperimentPaths, script: Path) -> None:
    provenance.record(paths, script)
    assert provenance.differences(paths, script) == []
    assert not paths.diff.exists(), "nothing is uncommitted"
    known = provenance.recorded(paths)
    assert len(known["commit"]) == 40
    assert "torch" in known["packages"]
    assert provenance.in_words(known).startswith(f"commit {known['commit'][:10]}, torch ")


def test_a_changed_script_and_another_commit_are_told(paths: ExperimentPaths, script: Path) -> None:
    script.write_text("print(2)\n")
    provenance.record(paths, script)
    assert "+print(2)" in paths.diff.read_text()
    assert "uncommitted changes" in provenance.in_words(provenance.recorded(paths) or {})
    script.write_text("print(3)\n")
    differ = "others than then: the script"
    assert provenance.differences(paths, script) == [f"{differ}, the uncommitted changes"]
    git(script.parent, "commit", "-qam", "second")
    assert "the script, the commit" in provenance.differences(paths, script)[0]


def test_a_script_that_git_does_not_know_is_in_the_diff(
    paths: ExperimentPaths, script: Path
) -> None:
    other = script.with_name("other.py")
    other.write_text("print('new')\n")
    provenance.record(paths, other)
    assert "+print('new')" in paths.diff.read_text()


def test_without_git_packages_and_script_are_compared(
    paths: ExperimentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    script = tmp_path / "train.py"
    script.write_text("1")
    provenance.record(paths, script)
    known = json.loads(paths.code.read_bytes())
    assert "commit" not in known
    packages = {f"p{n}": "1" for n in range(9)}
    known["packages"].update({"torch": "1.0", **packages})
    paths.code.write_text(json.dumps({**known, "python": "3.0.0"}))
    (told,) = provenance.differences(paths, script)
    assert told == "others than then: Python, torch, p0, p1, 7 more packages"


def test_an_edit_during_the_search_is_told_once(paths: ExperimentPaths, script: Path) -> None:
    provenance.record(paths, script)
    edits = provenance.Edits(paths, script)
    assert edits.look() is None
    os.utime(script, ns=(1, 1))
    assert edits.look() is None, "touched, and not edited"
    content = script.read_text()
    script.unlink()
    assert edits.look() is None, "an editor replaces the file"
    script.write_text(f"{content}# more\n")
    assert (edits.look() or "").startswith(
        f"{script} was edited: trials that start or continue now"
    )
    assert edits.look() is None
    told_again = provenance.Edits(paths, script).look()
    assert told_again is not None, "a daemon that resumes the search tells it as well"

"""The code of a search: recorded at its start, and an edit during the search."""

from __future__ import annotations

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


def told(paths: ExperimentPaths, script: Path) -> str:
    provenance.record(paths, script, None)
    return provenance.in_words(provenance.recorded(paths))


def test_commit_and_packages_are_told_in_one_line(paths: ExperimentPaths, script: Path) -> None:
    line = told(paths, script)
    known = provenance.recorded(paths)
    assert len(known["commit"]) == 40
    assert line.startswith(f"commit {known['commit'][:10]}, torch ")


def test_what_is_not_committed_is_told(paths: ExperimentPaths, script: Path) -> None:
    other = script.with_name("other.py")
    other.write_text("print('new')\n")
    assert "with uncommitted changes" in told(paths, other), "git does not know it"
    script.write_text("print(2)\n")
    assert "with uncommitted changes" in told(paths, script)


def test_without_git_the_packages_are_told(
    paths: ExperimentPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert told(paths, tmp_path / "train.py").startswith("torch ")
    paths.code.unlink()
    assert provenance.in_words(provenance.recorded(paths)) == ""


def test_a_resume_tells_of_an_edited_recipe(paths: ExperimentPaths, script: Path) -> None:
    """People edit the recipe of a search that failed, and resume it: nothing said that this changes nothing."""
    recipe = script.with_name("recipe.yaml")
    recipe.write_text("deadline: 1h\n")
    provenance.record(paths, script, recipe)
    assert provenance.recipe_edits(paths) == []
    recipe.write_text("deadline: 2h\n")
    assert "this search continues as it began" in provenance.recipe_edits(paths)[0]
    recipe.unlink()
    assert provenance.recipe_edits(paths) == []


def test_an_edit_is_told_once_by_each_daemon(
    paths: ExperimentPaths, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = script.with_name("model.py")
    # A package beside the script, and one of src/ on the path: their edits were not told.
    layers, own = script.with_name("nets") / "layers.py", tmp_path / "src/own/deep/loss.py"
    for file in (beside, layers, own):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("width = 1\n")
        os.utime(file, ns=(1, 1))
    (tmp_path / "src/own/__init__.py").touch()
    script.with_name("another.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "src")
    content = "import model, torch\nfrom nets.layers import (\n  Net)\nimport own.deep\n"
    script.write_text(content)
    provenance.record(paths, script, None)
    edits = provenance.Edits(paths)
    assert edits.look() is None
    os.utime(script, ns=(1, 1))
    assert edits.look() is None, "touched, and not edited"
    script.unlink()
    assert edits.look() is None, "an editor replaces the file"
    script.with_name("another.py").write_text("import os\n")
    assert edits.look() is None, "the script does not name it"
    for file in (script, beside, layers, own):
        file.write_text(f"{content}# more\n")
        assert (edits.look() or "").startswith(f"{file} was edited: trials that start or continue")
        assert edits.look() is None
    told_again = provenance.Edits(paths, ["model"]).look() or ""
    assert f"{beside}, {layers} and 1 more was edited" in told_again, "by a resume as well"
    assert "new code (modules of `preload` after a stop and a resume)" in told_again
    words = provenance.in_words(provenance.recorded(paths))
    assert words.endswith(", edited during the search"), "the commit is that of its start"

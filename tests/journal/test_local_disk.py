"""The journal of a search whose folder other machines share: on a disk of the daemon's, a copy in the folder."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from gpusched.errors import InputError
from gpusched.folder.files import sync
from gpusched.journal import local_disk
from gpusched.journal.local_disk import Home
from gpusched.journal.log import Journal
from tests.journal_samples import META, read, write


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The disk of this machine."""
    monkeypatch.setenv("GPUSCHED_JOURNALS", str(tmp_path / "disk"))
    return tmp_path / "disk"


@pytest.fixture
def link(tmp_path: Path, disk: Path) -> Path:
    (tmp_path / "shared" / "digits").mkdir(parents=True)
    return tmp_path / "shared" / "digits" / "journal.db"


def moved_in(link: Path) -> Home:
    home = Home(link, is_wanted=True)
    home.move_in()
    return home


def test_only_a_link_lies_in_the_shared_folder(link: Path, disk: Path) -> None:
    """No log, no shared memory and no mark are there: the file system could not keep them right."""
    moved_in(link)
    entries = write(link, 20)
    journal = Journal.open(link)
    assert {file.name for file in link.parent.iterdir()} == {link.name}
    assert link.resolve().is_relative_to(disk)
    assert read(link) == entries
    journal.close()
    moved_in(link)
    assert read(link) == entries


def test_at_the_end_the_journal_is_a_file_of_its_folder_until_the_search_goes_on(
    link: Path, disk: Path
) -> None:
    home = moved_in(link)
    entries = write(link, 20)
    home.move_out()
    assert [file.name for file in link.parent.iterdir()] == [link.name]
    assert not link.is_symlink()
    assert not [file for file in disk.rglob("*") if file.is_file()]
    assert read(link) == entries
    moved_in(link)
    assert link.is_symlink()
    assert read(link) == entries


def test_the_home_survives_a_power_loss_before_the_link_takes_the_journals_place(
    link: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, synced = write(link, 20), list[Path]()

    def noted(place: Path) -> None:
        sync(place)
        if not link.is_symlink():
            synced.append(place)

    monkeypatch.setattr(local_disk, "sync", noted)
    moved_in(link)
    file = link.readlink()
    assert synced == [file, *file.parents[:3]], "the copy, and each name on the way to it"
    assert read(link) == entries


def test_a_place_that_is_not_ones_own_is_refused_with_what_to_do(
    link: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that others use as well anybody may have made a folder of that name."""
    (disk / f"gpusched-{os.getuid()}").mkdir(parents=True)
    (disk / f"gpusched-{os.getuid()}").chmod(0o777)
    with pytest.raises(InputError, match=r"others may write there; name a folder .*_JOURNALS"):
        moved_in(link)
    monkeypatch.setenv("GPUSCHED_JOURNALS", "journals")
    with pytest.raises(InputError, match=r"GPUSCHED_JOURNALS=journals: name .* whole path"):
        moved_in(link)
    assert not link.is_symlink()


def test_a_removed_experiment_leaves_no_home(link: Path, disk: Path) -> None:
    home = moved_in(link)
    Journal.create(link, META).close()
    assert link.resolve().is_relative_to(disk)
    assert link.is_file()
    home.remove()
    assert not [file for file in disk.rglob("*") if file.is_file()]


@pytest.mark.parametrize("place", ["its own folder", "a link of the user's own"])
def test_a_search_on_one_machine_keeps_its_journal(tmp_path: Path, place: str) -> None:
    path = tmp_path / "journal.db"
    if place != "its own folder":
        (tmp_path / "elsewhere").mkdir()
        path.symlink_to(tmp_path / "elsewhere" / "journal.db")
    home = Home(path, is_wanted=False)
    home.move_in()
    entries = write(path, 5)
    home.move_out()
    home.remove()
    assert path.is_symlink() == (place != "its own folder")
    assert read(path) == entries


def test_another_machine_is_told_which_one_has_the_journal(
    link: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved_in(link)
    write(link, 20)
    shutil.rmtree(disk)
    with pytest.raises(InputError, match=r"its journal was in .* and is gone"):
        read(link)
    first = link.readlink().parent.name.partition(":")[0]
    monkeypatch.setattr(socket, "gethostname", lambda: "second")
    for refused in (lambda: moved_in(link), lambda: Journal.open(link), lambda: read(link)):
        with pytest.raises(InputError, match=rf"disk of {first} .*: run this command there"):
            refused()

"""Flipped bits and torn files: found and named, or harmless."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.errors import DamagedState
from gpusched.journal.log import Journal
from gpusched.journal.rows import Entry
from tests.journal_samples import META, read, sample, write


def _same_or_damaged(path: Path, entries: list[Entry]) -> str:
    """What reading gives: "same", or "damaged" in a message. Anything else fails the test."""
    try:
        journal = Journal.open(path)
    except DamagedState as error:
        return _named(path, error)
    try:
        found = list(journal.entries())
        meta = journal.meta
    except DamagedState as error:
        return _named(path, error)
    finally:
        journal.close()
    assert found == entries, "silently different"
    assert meta == META, "silently different meta"
    return "same"


def _named(path: Path, error: DamagedState) -> str:
    assert str(path) in str(error), "the message does not say where"
    return "damaged"


def _copies(source: Path, target: Path) -> Iterator[Path]:
    """Fresh copies of a journal and what lies beside it."""
    number = 0
    while True:
        folder = target / str(number)
        folder.mkdir(parents=True)
        for file in source.parent.glob(source.name + "*"):
            if file.is_file():
                (folder / file.name).write_bytes(file.read_bytes())
        yield folder / source.name
        for file in folder.iterdir():
            file.unlink()
        number += 1


def _snapshot_of_a_live_journal(folder: Path, count: int) -> tuple[Path, list[Entry]]:
    """A journal as kill -9 leaves it: with a write-ahead log that holds everything."""
    live = folder / "live" / "journal.db"
    live.parent.mkdir(parents=True)
    journal = Journal.create(live, META)
    entries = []
    for seq, (event, commands) in enumerate(sample(count), 1):
        journal.append(event, commands)
        entries.append(Entry(seq, event, commands))
        if seq % 5 == 0:
            journal.commit()
    journal.commit()
    kept = folder / "kept"
    kept.mkdir()
    for file in live.parent.iterdir():
        (kept / file.name).write_bytes(file.read_bytes())
    journal.close()
    return kept / "journal.db", entries


def _flip_bits(
    original: Path, entries: list[Entry], victim: str, flips: int, seed: int, folder: Path
) -> dict[str, int]:
    rng = random.Random(seed)
    size = (original.parent / victim).stat().st_size
    outcomes = {"same": 0, "damaged": 0}
    copies = _copies(original, folder)
    for _ in range(flips):
        copy = next(copies)
        place, bit = rng.randrange(size), rng.randrange(8)
        file = copy.parent / victim
        data = bytearray(file.read_bytes())
        data[place] ^= 1 << bit
        file.write_bytes(data)
        try:
            outcomes[_same_or_damaged(copy, entries)] += 1
        except BaseException as error:
            error.add_note(f"bit {bit} of byte {place} of {victim}, seed {seed}")
            raise
    return outcomes


def test_flipped_bits_in_the_database_are_found_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "journal.db"
    path.parent.mkdir()
    entries = write(path, 60)
    outcomes = _flip_bits(path, entries, "journal.db", 400, 1, tmp_path / "flipped")
    assert outcomes["damaged"] > 100, outcomes


@pytest.mark.parametrize(
    ("victim", "flips", "at_least"),
    [("journal.db-wal", 300, 100), ("journal.db-shm", 60, 0), ("journal.db-mark", 60, 0)],
)
def test_flipped_bits_beside_it_are_found_or_harmless(
    tmp_path: Path, victim: str, flips: int, at_least: int
) -> None:
    path, entries = _snapshot_of_a_live_journal(tmp_path, 60)
    outcomes = _flip_bits(path, entries, victim, flips, 2, tmp_path / "flipped")
    assert outcomes["damaged"] >= at_least, outcomes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_ten_thousand_flipped_bits(tmp_path: Path, seed: int) -> None:
    path, entries = _snapshot_of_a_live_journal(tmp_path, 60)
    _flip_bits(path, entries, "journal.db-wal", 1000, seed, tmp_path / "log")
    closed = tmp_path / "closed" / "journal.db"
    closed.parent.mkdir()
    _flip_bits(closed, write(closed, 60), "journal.db", 1500, seed, tmp_path / "flipped")


def test_a_torn_end_is_found(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "journal.db"
    path.parent.mkdir()
    entries = write(path, 60)
    size, copies = path.stat().st_size, _copies(path, tmp_path / "torn")
    for length in [*range(0, size, 509), size - 1]:
        copy = next(copies)
        copy.write_bytes(path.read_bytes()[:length])
        assert _same_or_damaged(copy, entries) == "damaged", length


def test_a_torn_log_is_found(tmp_path: Path) -> None:
    path, entries = _snapshot_of_a_live_journal(tmp_path, 60)
    log = path.with_name("journal.db-wal")
    size, copies = log.stat().st_size, _copies(path, tmp_path / "torn")
    for length in [*range(0, size, 1021), size - 1]:
        copy = next(copies)
        copy.with_name(log.name).write_bytes(log.read_bytes()[:length])
        assert _same_or_damaged(copy, entries) == "damaged", length
    copy = next(copies)
    copy.with_name(log.name).unlink()
    assert _same_or_damaged(copy, entries) == "damaged"


@pytest.mark.parametrize("leftover", ["journal.db-shm", "journal.db-mark"])
def test_what_is_lost_beside_it_is_made_again(tmp_path: Path, leftover: str) -> None:
    path, entries = _snapshot_of_a_live_journal(tmp_path, 30)
    path.with_name(leftover).unlink()
    assert read(path) == entries

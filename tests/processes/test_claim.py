"""``shim.json``: exactly one claim can be made; what is in it is not trusted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpusched.processes.claim import add_ranks, make_claim, read_claim
from gpusched.processes.identity import Identity, boot_id, start_time

HERE = Identity(os.getpid(), start_time(os.getpid()) or 0)


def test_a_claim_and_its_ranks(tmp_path: Path) -> None:
    path = tmp_path / "shim.json"
    assert read_claim(path) is None
    assert make_claim(path, HERE)
    claim = read_claim(path)
    assert (claim.shim, claim.ranks, claim.is_alive) == (HERE, (), True)
    ranks = (Identity(12, 34), Identity(56, 78))
    add_ranks(path, HERE, ranks)
    claim = read_claim(path)
    assert claim.leaders == (HERE, *ranks)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["shim.json"]


def test_one_of_many_at_once(tmp_path: Path) -> None:
    path = tmp_path / "shim.json"
    results = []
    for _ in range(8):
        read, write = os.pipe()
        if os.fork() == 0:
            os.close(read)
            os.write(write, b"1" if make_claim(path, HERE) else b"0")
            os._exit(0)
        os.close(write)
        results.append(read)
    won = [os.read(read, 1) for read in results]
    for read in results:
        os.close(read)
        os.wait()
    assert sorted(won) == [b"0"] * 7 + [b"1"]


def test_a_pid_of_another_process_or_boot_is_not_the_shim(tmp_path: Path) -> None:
    path = tmp_path / "shim.json"
    for changed in ({"boot_id": "other"}, {"shim": [HERE.pid, 1]}):
        record = {"shim": HERE, "boot_id": boot_id(), "ranks": [[1, 2]], **changed}
        path.write_text(json.dumps(record))
        claim = read_claim(path)
        assert not claim.is_alive
        assert (claim.leaders == ()) == ("boot_id" in changed)


@pytest.mark.parametrize(
    "changed",
    [
        *({"ranks": ranks} for ranks in (None, 5, "x", [[1]], [["1", 2]], [{}])),
        *({"shim": 5}, {"shim": [1, "x"]}, {"boot_id": None}),
    ],
)
def test_what_is_no_claim(tmp_path: Path, changed: object) -> None:
    record = {"shim": HERE, "boot_id": boot_id(), "ranks": [[1, 2]]}
    (tmp_path / "shim.json").write_text(json.dumps(record))
    assert read_claim(tmp_path / "shim.json") is not None
    (tmp_path / "shim.json").write_text(json.dumps({**record, **changed}))
    assert read_claim(tmp_path / "shim.json") is None

from __future__ import annotations

import errno
import hashlib
import io
import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from gpusched.worker import checkpoint
from gpusched.worker.checkpoint import CheckpointStore, Damaged, verify


def tensor_file(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


FACTS = {"iteration": 1, "world_size": 1}


def commit(store: CheckpointStore, step: int, size: int = 100) -> int:
    files = {"state.pt": bytes([step]) * size, "rank-0.pt": b"rng"}
    return store.write(step, files, FACTS)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


def test_committed_whole_private_and_with_a_manifest_of_the_contract(
    store: CheckpointStore,
) -> None:
    size = commit(store, 12)
    folder = store.folder / "step-00000012"
    assert names(store.folder) == ["step-00000012"]
    assert names(folder) == ["manifest.json", "rank-0.pt", "state.pt"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["step"], manifest["world_size"]) == (12, 1)
    assert manifest["files"]["state.pt"]["bytes"] == 100
    assert len(manifest["files"]["state.pt"]["sha256"]) == 64
    assert size == sum(path.stat().st_size for path in folder.iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())


def test_two_generations_stay(store: CheckpointStore) -> None:
    for step in (1, 2, 5, 9):
        commit(store, step)
    assert names(store.folder) == ["step-00000005", "step-00000009"]
    found = store.newest()
    assert (found.step, found.facts["iteration"]) == (9, 1)
    assert found.files == ("state.pt", "rank-0.pt")


def test_a_full_disk_takes_the_older_generation(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step could be saved any more, the best neither, on a disk that was full of generations."""
    write = checkpoint._write_file

    def refuse(path: Path, content: bytes) -> dict[str, Any]:
        if len(names(store.folder)) > 2:  # room for one beside the one that is written
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return write(path, content)

    monkeypatch.setattr(checkpoint, "_write_file", refuse)
    for step in (1, 2, 3):
        commit(store, step)
    assert names(store.folder) == ["step-00000002", "step-00000003"]


def test_a_course_of_training_that_was_given_up_does_not_come_back(store: CheckpointStore) -> None:
    """Training went back to step 2 and has come to 3: what it had made of 9 is not the newest."""
    for step in (1, 2, 9, 3):
        commit(store, step)
    assert names(store.folder) == ["step-00000002", "step-00000003"]


def test_the_same_step_again_replaces_it(store: CheckpointStore) -> None:
    commit(store, 3, size=100)
    commit(store, 3, size=200)
    assert names(store.folder) == ["step-00000003"]
    assert (store.folder / "step-00000003" / "state.pt").stat().st_size == 200


def test_nothing_there(store: CheckpointStore) -> None:
    assert store.newest() is None
    store.folder.mkdir()
    (store.folder / "step-of-another-kind").mkdir()
    assert store.newest() is None


def damage(kind: str, folder: Path) -> None:
    state, manifest = folder / "state.pt", folder / "manifest.json"
    if kind == "flipped bit":
        data = bytearray(state.read_bytes())
        data[50] ^= 1
        state.write_bytes(data)
    elif kind == "truncated":
        state.write_bytes(state.read_bytes()[:-1])
    elif kind == "missing":
        state.unlink()
    elif kind == "no manifest":
        manifest.unlink()
    elif kind == "another step":
        folder.rename(folder.with_name("step-00000099"))
    elif kind == "edited":
        manifest.write_text(manifest.read_text().replace('"iteration": 1', '"iteration": 2'))
    elif kind == "path":
        manifest.write_text(manifest.read_text().replace("state.pt", "../../x"))


KINDS = ["flipped bit", "truncated", "missing", "no manifest", "another step", "edited", "path"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_one_is_said_set_aside_and_the_older_used(
    store: CheckpointStore,
    kind: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "FRESH_S", -1.0)
    commit(store, 8)
    commit(store, 9)
    (store.folder / ".staged-00000010-0").mkdir()  # as a crash leaves it
    damage(kind, store.folder / "step-00000009")
    found = store.newest()
    assert found.step == 8
    told = capfd.readouterr().err
    assert "is damaged" in told
    assert "looking for an older one" in told
    assert [n for n in names(store.folder) if n.startswith(".damaged-step-")]
    commit(store, 10)
    assert names(store.folder) == ["step-00000008", "step-00000010"]


def test_one_that_was_committed_a_moment_ago_on_this_boot_is_not_hashed_again(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(store, 1)
    hashed: list[str] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *of: hashed.append(of[1]) or digest(*of))
    assert store.newest()
    assert not hashed
    for name, value in (("FRESH_S", -1.0), ("boot_id", lambda: "another")):
        with monkeypatch.context() as later:
            later.setattr(checkpoint, name, value)
            assert store.newest()
        assert hashed
        hashed.clear()


def test_one_that_was_being_replaced_outlives_a_write_that_fails(store: CheckpointStore) -> None:
    """Killed between the two renames; the next incarnation has gone on from elsewhere, and the disk refuses."""
    commit(store, 5)
    (store.folder / "step-00000005").rename(store.folder / ".replaced-step-00000005")
    with pytest.raises(OSError, match="too long"):
        store.write(6, {"x" * 300: b""}, FACTS)
    assert names(store.folder) == ["step-00000005"]


def test_tensors_are_read_back_without_unpickling_code(store: CheckpointStore) -> None:
    proof = store.folder.parent / "was-here"

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (proof,)

    store.write(
        1, {"state.pt": tensor_file({"w": torch.ones(3)}), "evil.pt": tensor_file(Evil())}, FACTS
    )
    found = store.newest()
    assert torch.equal(found.load("state.pt")["w"], torch.ones(3))
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        found.load("evil.pt")
    assert not proof.exists()


def test_garbage_as_a_manifest(store: CheckpointStore) -> None:
    commit(store, 1)
    manifest = store.folder / "step-00000001" / "manifest.json"
    for text in (
        '{"check": 1}',
        '{"check": 1, "files": 2}',
        "",
        "[]",
        "[" * 5000,
        '{"files": {"a": 1}, "check": ""}',
    ):
        manifest.write_text(text)
        with pytest.raises(Damaged):
            verify(manifest.parent, 1)

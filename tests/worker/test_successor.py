"""An incarnation that is set up beside the one before it: where it waits, from what it goes on, when it counts."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import gpusched
from gpusched.protocol import Answer, Handed, Report, Restore
from gpusched.protocol.lines import encode, from_rank, from_stranger
from gpusched.worker import handover
from gpusched.worker.handover import Outbox, Received, Snapshot, memory_name
from tests.rig import PATIENCE_S
from tests.worker.fakes import Bench, FakeDaemon, Ranks, run_rank, run_ranks


class Relay(FakeDaemon):
    """Has incarnation 1 yield at step 3, and tells incarnation 2 of what it hands over."""

    def _talk(self, line: socket.socket) -> None:
        with suppress(OSError), line, line.makefile("rb") as stream:
            self.frames.append(from_stranger(next(stream)))
            if self.frames[-1].incarnation == 2:
                self.waits = line
                self.arrived.set()
            for text in stream:
                frame = from_rank(text)
                self.frames.append(frame)
                if isinstance(frame, Handed):
                    self.tell(frame)
                elif isinstance(frame, Report):
                    if frame.step == 3:
                        assert self.arrived.wait(PATIENCE_S)
                    line.sendall(
                        encode(Answer(frame.seq, "yield" if frame.step == 3 else "continue"))
                    )

    def __post_init__(self) -> None:
        self.arrived = threading.Event()
        self.waits: socket.socket | None = None
        super().__post_init__()

    def tell(self, handed: Handed | None) -> None:
        self.waits.sendall(encode(Restore(handed)))


@contextmanager
def relay(bench: Bench) -> Iterator[Relay]:
    fake = Relay(bench.root)
    try:
        yield fake
    finally:
        fake.close()
        (bench.root / "daemon.sock").unlink(missing_ok=True)


def train() -> list[Any]:
    """As scripts are, with everything that goes on from somewhere."""
    trial = gpusched.init()
    model = trial.wrap(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trial.scale_lr(optimizer)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    loader = trial.loader(TensorDataset(torch.arange(20.0).view(10, 2) / 20), batch_size=4)
    trial.track(model=model, opt=optimizer, sched=schedule)
    for epoch in trial.steps(limit=6):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x + 0.1 * torch.rand_like(x)).square().mean().backward()
            optimizer.step()
        trial.report(accuracy=epoch / 10)
        schedule.step()
    return [trial.step, loader.epoch, model.weight.detach().flatten().tolist()]


def waiting(body: Any) -> Any:
    def run() -> Any:
        os.environ["GPUSCHED_WAITS"] = "1"
        return body()

    return run


def test_it_goes_on_to_the_last_bit_and_is_heard_when_it_counts(bench: Bench) -> None:
    bench.paths.waits.write_text("{}")
    with relay(bench) as fake:
        second = Ranks(waiting(train), 1, bench, 2)
        first = run_rank(train, bench, incarnation=1)
        told = [(report.seq, report.step) for report in fake.of_kind(Report)]
        assert told == [(1, 1), (2, 2), (3, 3)]
        assert [line["i"] for line in bench.reports()] == [1, 1, 1]
        assert bench.last_word(1) == {"why": "yielded", "step": 3, "saved_step": 3}
        assert bench.checkpoints() == ["step-00000003"]
        bench.paths.waits.unlink()
        (after,) = second.wait()
    assert first.value[0] == 3
    assert not after.error, after.error
    assert after.value[:2] == [6, 6]
    lines = [(line["i"], line["n"], line["k"]) for line in bench.reports()]
    assert lines == [(1, 1, 1), (1, 2, 2), (1, 3, 3), (2, 4, 4), (2, 5, 5), (2, 6, 6)]
    whole = Bench(bench.root.with_name("whole"))
    whole.prepare()
    assert after.value[2] == pytest.approx(run_rank(train, whole).value[2], abs=1e-7)
    assert bench.last_word(2) == {"why": "finished", "step": 6, "saved_step": 6}


def ask_early() -> list[int]:
    trial = gpusched.init()
    loader = trial.loader(TensorDataset(torch.zeros(8, 1)), batch_size=4)
    found = [loader.epoch, trial.step]
    trial.track(layer=nn.Linear(1, 1))
    return found


def three_epochs() -> None:
    trial = gpusched.init()
    loader = trial.loader(TensorDataset(torch.zeros(8, 1)), batch_size=4)
    trial.track(layer=nn.Linear(1, 1))
    for _ in trial.steps(limit=3):
        for _ in loader:
            pass
        trial.report(accuracy=0.0)


def test_whatever_depends_on_where_it_stands_waits(bench: Bench) -> None:
    run_rank(three_epochs, bench)
    bench.paths.waits.write_text("{}")
    with relay(bench) as fake:
        second = Ranks(waiting(ask_early), 1, bench, 2)
        assert fake.arrived.wait(PATIENCE_S)
        assert not second.has_one_ended()
        bench.paths.waits.unlink()
        fake.tell(None)
        assert second.wait()[0].value == [3, 3]


def report_at_once() -> None:
    gpusched.init().report(accuracy=0.0)


def test_what_trains_before_it_can_wait_fails(bench: Bench) -> None:
    bench.paths.waits.write_text("{}")
    (ended,) = run_ranks(waiting(report_at_once), 1, bench, 2)
    assert "before trial.track(...) or trial.steps()" in ended.error
    assert bench.reports() == []


def test_without_a_daemon_it_never_begins(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "_PATIENCE_S", 0.1)
    bench.paths.waits.write_text("{}")
    (ended,) = run_ranks(waiting(train), 1, bench, 2)
    assert ended.code == 1
    assert bench.last_word(2) is None


def test_told_that_it_counts_before_the_daemon_died_it_goes_on_from_the_disk(bench: Bench) -> None:
    run_rank(three_epochs, bench)
    bench.paths.waits.write_text("{}")
    with relay(bench) as fake:
        second = Ranks(waiting(ask_early), 1, bench, 2)
        assert fake.arrived.wait(PATIENCE_S)
    bench.paths.waits.unlink()
    assert second.wait()[0].value == [3, 3]


def test_where_the_one_before_has_gone_already_it_goes_on_from_what_that_committed(
    bench: Bench,
) -> None:
    run_rank(three_epochs, bench)
    bench.paths.waits.write_text("{}")
    with relay(bench) as fake:
        second = Ranks(waiting(ask_early), 1, bench, 2)
        assert fake.arrived.wait(PATIENCE_S)
        fake.tell(Handed(3, 2**22 + 1, 5, 6))  # a number that no process has
        assert not second.has_one_ended(wait_s=0.2)
        bench.paths.waits.unlink()
        assert second.wait()[0].value == [3, 3]


def test_what_was_handed_over_is_restored_from_memory_alone() -> None:
    weights = torch.rand(1000)
    snapshot, outbox = Snapshot(memory_name(3)), Outbox(3)
    snapshot.take({"weights": weights})
    parcel = outbox.pack(7, snapshot.file, 5, [b"one", b"", b"three"])
    assert parcel is not None
    found = Received(parcel, 3)
    assert (found.step, found.facts) == (7, {"iteration": 5, "world_size": 3})
    assert found.files == ("state.pt", "rank-0.pt", "rank-1.pt", "rank-2.pt")
    assert torch.equal(found.load("state.pt")["weights"], weights)
    found.close()
    found.close()


def test_memory_of_another_trial_or_of_nobody_is_refused() -> None:
    snapshot, outbox = Snapshot(memory_name(3)), Outbox(3)
    snapshot.take({})
    parcel = outbox.pack(7, snapshot.file, 5, [])
    assert parcel is not None
    with pytest.raises(ValueError, match="is not this trial's"):
        Received(parcel, 4)
    with pytest.raises(OSError, match="No such file"):
        Received(Handed(7, parcel.pid, 999_999, parcel.rest), 3)


def test_nothing_of_a_larger_state_stays_behind_the_archive() -> None:
    snapshot = Snapshot()
    larger = snapshot.take({"weights": torch.ones(1000)}).nbytes
    data = snapshot.take({"weights": torch.ones(10)})
    assert os.fstat(snapshot.file).st_size == data.nbytes < larger

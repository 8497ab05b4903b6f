"""Trainers of libraries on real ranks: what is reported, and which rates, do not depend on the number of ranks."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import gpusched
from gpusched.protocol import Remark
from tests.conftest import with_libraries
from tests.worker.fakes import (
    END,
    Bench,
    at_step,
    daemon,
    if_it_leaves,
    run_ranks,
    through,
    values,
)

pytestmark = with_libraries("lightning", "transformers", "accelerate", "jsonargparse")
if find_spec("lightning"):  # torchvision that is built for other operators (recipes/vision_ops.py)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "recipes")
        __import__("vision_ops")


@pytest.fixture
def bench(folder: Path) -> Bench:
    made = Bench(folder / "run")
    made.prepare()
    return made


# ---------------------------------------------------------------- transformers


def with_transformers(kind: str, epochs: int = 4) -> list[float]:
    """Gradient norms; a causal model takes ``num_items_in_batch``, a classifier takes it and does not use it."""
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers as hf

    from gpusched.transformers import Search

    search = Search()
    torch.manual_seed(0)
    rows = [{"input_ids": s + torch.arange(8)} for s in torch.randint(0, 32, (32,))]
    small: dict[str, Any] = {"vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2}
    still = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout"), 0.0)
    config = hf.GPT2Config(n_positions=8, **small, **still, pad_token_id=0, num_labels=3)
    if kind != "classifier":
        model: Any = hf.GPT2LMHeadModel(config)
        rows = [{**row, "labels": row["input_ids"]} for row in rows]
    else:
        model = hf.GPT2ForSequenceClassification(config)
        rows = [{**row, "labels": row["input_ids"][0] % 3} for row in rows]
    options = hf.TrainingArguments(
        output_dir="out",
        num_train_epochs=epochs,
        per_device_train_batch_size=8,
        learning_rate=0.01,
        eval_strategy="steps" if kind == "by length" else "epoch",
        eval_steps=6,
        train_sampling_strategy="group_by_length" if kind == "by length" else "random",
        eval_on_start=True,
        logging_steps=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="epoch",
        save_only_model=kind == "model only",
        load_best_model_at_end=kind == "classifier",
    )
    arguments = search.arguments(options)
    several: dict[str, Any] = {"held": rows, "seen": rows}
    one: dict[str, Any] = {"one": 1.0}
    scores = {"several": {**one, "table": [[1, 2]]}, "classifier": {} if search.trial.rank else one}
    trainer = hf.Trainer(
        model,
        arguments,
        train_dataset=rows,
        eval_dataset=several if kind == "several" else rows,
        compute_metrics=(lambda _: scores[kind]) if kind in scores else None,
        callbacks=[search],
    )
    if kind == "evaluated":
        trainer.evaluate()
    if kind == "leaves":
        if_it_leaves(lambda: trainer.state.global_step)
    trainer.train(resume_from_checkpoint=search.checkpoint)
    trainer.evaluate()
    return [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]


@pytest.mark.parametrize("kind", ["model only", "classifier", "by length"])
def test_transformers_evaluates_and_trains_alike_on_two_ranks(bench: Bench, kind: str) -> None:
    """An evaluation before or after training is of no new step; what follows training runs once.

    The last report is answered by "yield" in a search. Rank 0 alone may compute the metric; 16 steps are evaluated at
    6, 12 and 16; samples that are grouped by length came in other batches after a pause in mid-epoch.
    """
    seen = []
    most = 3 if kind == "by length" else 4
    for name, plan in (("alone", [(1, END)]), ("resized", [(1, 1), (2, most - 1), (1, most)])):
        one = bench.beside(name, metric="eval_one" if kind == "classifier" else "eval_loss")
        *left, (norms,) = through(one, with_transformers, plan, kind)
        assert not any(any(ranks) for ranks in left)
        seen.append(([line["m"]["eval_loss"] for line in one.reports()], norms))
        assert one.reports()[0]["l"] == most
    assert len(seen[0][0]) == most
    assert seen[1][0] == pytest.approx(seen[0][0], rel=1e-3)
    assert seen[1][1] == pytest.approx(seen[0][1], rel=1e-3)


def test_of_several_data_sets_the_one_with_the_metric_is_reported(bench: Bench) -> None:
    """Of several data sets one makes the report; tables are no metrics. One must have the metric."""
    bench.prepare(metric="eval_seen_loss")
    values(run_ranks(with_transformers, 1, bench, 1, ("several",)))
    told = [line["m"] for line in bench.reports()]
    assert len(told) == 4
    assert {"eval_seen_loss", "seen_loss", "seen_one"} <= set(told[0])
    for kind in ("causal", "several"):
        lacking = bench.beside(kind, metric="eval_nothing")
        (rank,) = run_ranks(with_transformers, 1, lacking, 1, (kind,))
        assert "but not 'eval_nothing'" in rank.error
        assert lacking.reports() == []


def test_transformers_that_evaluates_first_and_then_trains_ranks_apart_is_refused(
    bench: Bench,
) -> None:
    """As under plain torchrun (transformers 5.23): its evaluation keeps ``train`` from wrapping the model."""
    bench.prepare(metric="eval_loss")
    with daemon(bench, at_step(**{"yield": 1})) as heard:
        (alone,) = run_ranks(with_transformers, 1, bench, 1, ("evaluated", 1))
        told = [frame.text for frame in heard.of_kind(Remark)]
        apart = run_ranks(with_transformers, 2, bench, 2, ("evaluated",))
    assert not alone.error
    for begins in ("trainer.evaluate() before trainer.train()", "the search hears of a trial once"):
        assert any(text.startswith(begins) for text in told)
    assert all("have trained apart" in rank.error for rank in apart)


def test_transformers_leaves_at_once_where_nothing_is_to_be_saved(bench: Bench) -> None:
    """The trainer trained on until it was killed, and held its GPU for as long."""
    bench.prepare(metric="eval_loss")
    with daemon(bench, at_step(leave=1)):
        trained = values(run_ranks(with_transformers, 1, bench, 1, ("leaves",)))
    assert trained == [4], "of 16 steps"


# ---------------------------------------------------------------- lightning


def lightning_module(kind: str, seen: list[Any], epochs: int) -> Any:
    import lightning as L

    class Net(L.LightningModule):
        def __init__(self, hp: Any = None) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))

        def training_step(self, batch: Any, index: int) -> Any:
            x, y = batch
            seen.append(
                (self.current_epoch, x[:, 0].tolist(), self.lr_schedulers().get_last_lr()[0])
            )  # type: ignore[union-attr]
            return nn.functional.mse_loss(self.net(x), y)

        def validation_step(self, batch: Any, index: int) -> None:
            x, y = batch
            self.log("val_loss", nn.functional.mse_loss(self.net(x), y), sync_dist=True)

        test_step = validation_step

        def configure_optimizers(self) -> Any:
            opt = torch.optim.SGD(self.parameters(), lr=0.1)
            steps = self.trainer.estimated_stepping_batches
            made = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=int(steps))
            return [opt], [{"scheduler": made, "interval": "step"}]

    return Net(gpusched.init().hparams)


def with_lightning(kind: str, epochs: int = 4) -> list[Any]:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    from lightning.pytorch.callbacks import ModelCheckpoint

    from gpusched.lightning import Search

    search = Search()
    torch.manual_seed(0)
    data = TensorDataset(x := torch.rand(36, 4), x.sum(1, keepdim=True))
    seen: list[Any] = []
    if_it_leaves(lambda: seen)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": kind == "kept"}
    kept = ModelCheckpoint(monitor="val_loss", mode="max") if kind == "kept" else None
    trainer = search.trainer(max_epochs=epochs, strategy="auto", callbacks=kept, **quiet)
    train, val = DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=4)
    model = lightning_module(kind, seen, epochs)
    trainer.validate(model, val, verbose=False)
    trainer.fit(model, train, val)
    assert kept is None or "epoch=0" in kept.best_model_path, "the best of all launches"
    for path in ("best", None):
        trainer.test(ckpt_path=path, dataloaders=val, verbose=False)
    (search.trial.folder / "tests").open("a").write("one ")
    return seen


@pytest.mark.parametrize("ranks", [(1, 2, 1), (2, 2, 1)])
def test_lightning_by_itself_keeps_order_schedule_and_a_test_at_the_end(
    bench: Bench, ranks: tuple[int, int, int]
) -> None:
    """``strategy="auto"``, a schedule as long as ``estimated_stepping_batches``, tests of the best and the last model.

    A module's hyperparameters were refused at a resume, and where ModelCheckpoint kept the best model, as torch reads
    tensors and plain values alone by default. With a logger ModelCheckpoint's best was that of the last launch.
    """
    bench.prepare(metric="val_loss")
    plan = list(zip(ranks, (1, 3, 4), strict=True))  # as in a search, the last report too
    launches = through(bench, with_lightning, plan, "kept" if ranks[0] == 2 else "plain")
    orders = [tuple(map(tuple, (s for _, s, _ in launch[0][:9]))) for launch in launches]
    assert len(set(orders)) == 3, "each launch begins with an epoch of its own"
    course = torch.optim.lr_scheduler.CosineAnnealingLR(
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1), T_max=36
    )
    rates: list[float] = []
    for _ in range(36):
        rates += course.get_last_lr()
        course.optimizer.step()
        course.step()
    epochs: list[int] = []
    for atoms, launch in zip(ranks, launches, strict=True):
        for epoch, _, rate in launch[0]:
            if epoch not in epochs:
                epochs.append(epoch)
                base_step = 9 * epoch
            assert rate == pytest.approx(rates[base_step], abs=1e-9)
            base_step += atoms
    assert epochs == [0, 1, 2, 3]
    assert bench.last_word(3)["why"] == "finished"  # type: ignore[index]
    assert [line["k"] for line in bench.reports()] == [1, 2, 3, 4]
    assert (bench.paths.own / "tests").read_text() == "one ", "once, when training is over"


def with_lightning_otherwise(kind: str) -> tuple[int, int]:
    """Validation every other epoch; a stream, which Lightning gives to every rank whole; a part of the data.

    Return the length of the schedule, and where it has ended.
    """
    warnings.simplefilter("ignore")
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    from gpusched.lightning import Search

    search = Search()
    torch.manual_seed(0)
    data: Any = TensorDataset(x := torch.rand(36, 4), x.sum(1, keepdim=True))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    part = {"a part": 0.4, "batches": 3, "more": 6}.get(kind, 1.0)
    most = {"max_epochs": -1, "max_steps": 30} if kind == "steps" else {"max_epochs": 4}
    more: dict[str, Any] = {"check_val_every_n_epoch": 2}
    if kind in ("within", "averaged"):
        more = {"val_check_interval": 0.5 if kind == "within" else 1.0}
    if kind == "averaged":
        more["callbacks"] = StochasticWeightAveraging(0.1, swa_epoch_start=2)
    trainer = search.trainer(limit_train_batches=part, **more, **most, **quiet)
    train: Any = DataLoader(data, batch_size=4, shuffle=True)
    if kind == "stream":
        train = DataLoader(Stream(data), batch_size=4)
    model = lightning_module(kind, [], 4)
    trainer.fit(model, train, DataLoader(data, batch_size=4))
    if kind == "twice":
        search.trainer(max_epochs=2, **quiet).fit(model, train, DataLoader(data, batch_size=4))
    schedule = trainer.lr_scheduler_configs[0].scheduler
    return getattr(schedule, "T_max", 0), schedule.last_epoch


class Stream(IterableDataset[Any]):
    def __init__(self, data: Any) -> None:
        self.data = data

    def __iter__(self) -> Any:
        return iter(self.data)


@pytest.mark.parametrize(("kind", "steps"), [("seldom", [2, 4]), ("averaged", [1, 2, 3, 4, 5])])
def test_lightning_reports_the_epochs_that_are_validated(
    bench: Bench, kind: str, steps: list[int]
) -> None:
    """The first epoch had no metric, and every trial failed; averaged weights take an epoch more for batch norms."""
    bench.prepare(metric="val_loss")
    through(bench, with_lightning_otherwise, [(1, 2), (1, 4)], kind)
    assert [line["k"] for line in bench.reports()] == steps
    assert bench.last_word(2)["why"] == "finished"  # type: ignore[index]


TOLD = {"within": ["epochs shorter: limit_train_batches"], "twice": ["one fit"], "seldom": []}


@pytest.mark.parametrize("kind", TOLD)
def test_what_of_lightning_a_search_does_not_follow_is_told(bench: Bench, kind: str) -> None:
    bench.prepare(metric="val_loss")
    with daemon(bench) as heard:
        run_ranks(with_lightning_otherwise, 1, bench, 1, (kind,))
    told = [remark.text for remark in heard.of_kind(Remark)]
    assert all(words in text for words, text in zip(TOLD[kind], told, strict=True)), told


@pytest.mark.parametrize(
    ("kind", "steps", "end"),
    [("a part", 12, 12), ("batches", 12, 12), ("more", 24, 22), ("steps", 30, 30)],
)
def test_a_part_of_the_data_makes_a_schedule_of_as_many_steps_at_any_size(
    bench: Bench, kind: str, steps: int, end: int
) -> None:
    """Two ranks, with 5 batches an epoch, had a schedule of other steps, or another count: a resize was refused."""
    bench.prepare(metric="val_loss")
    _, resized = through(bench, with_lightning_otherwise, [(1, 2), (2, END)], kind)
    assert resized == [(steps, end)] * 2


def test_lightning_with_a_stream_that_every_rank_reads_whole_is_refused(bench: Bench) -> None:
    bench.prepare(metric="val_loss")
    for rank in run_ranks(with_lightning_otherwise, 2, bench, 1, ("stream",)):
        assert "train on the same samples" in rank.error


def by_command_line() -> list[Any]:
    warnings.simplefilter("ignore")
    import lightning as L
    from lightning.pytorch.cli import LightningCLI

    from gpusched.lightning import Search

    class Data(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            data = TensorDataset(x := torch.rand(32, 4), x.sum(1, keepdim=True))
            return DataLoader(data, batch_size=4, shuffle=True)

        val_dataloader = train_dataloader

    seen: list[Any] = []
    if_it_leaves(lambda: seen)
    net = type(lightning_module("plain", seen, 2))
    sys.argv = ["cli.py", "fit", "--trainer.max_epochs=3", "--trainer.logger=false"]
    LightningCLI(net, Data, trainer_class=Search().trainer, save_config_callback=None)
    return seen


def test_lightnings_command_line_takes_the_trainer_and_continues(bench: Bench) -> None:
    bench.prepare(metric="val_loss")
    launches = through(bench, by_command_line, [(1, 1), (1, END)])
    assert [len(seen) for (seen,) in launches] == [8, 16]


# ---------------------------------------------------------------- accelerate


def with_accelerate(epochs: int = 3) -> None:
    """As ``*_no_trainer.py``: a linear warm-up, as long as there are ranks, and decay."""
    warnings.simplefilter("ignore")
    import transformers as hf

    from gpusched.accelerate import Accelerator

    accelerator = Accelerator(cpu=False)  # as of an option, --cpu
    torch.manual_seed(0)
    model: Any = nn.Linear(4, 1)
    opt: Any = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = TensorDataset(x := torch.rand(32, 4), x.sum(1, keepdim=True))
    loader: Any = DataLoader(data, batch_size=4, shuffle=True)
    warmup = 10 * accelerator.num_processes
    made = hf.get_linear_schedule_with_warmup(opt, warmup, epochs * len(loader))
    model, opt, loader, schedule = accelerator.prepare(model, opt, loader, made)
    for _ in accelerator.trial.steps(epochs):
        for x, y in loader:
            accelerator.backward(nn.functional.mse_loss(model(x), y))
            opt.step()
            schedule.step()
            opt.zero_grad()
        accelerator.trial.report(accuracy=0)


def test_accelerates_warm_up_with_the_number_of_ranks_is_refused(bench: Bench) -> None:
    with daemon(bench, at_step(**{"yield": 1})):
        run_ranks(with_accelerate, 1, bench)
    for rank in run_ranks(with_accelerate, 2, bench, 2):
        assert "leave the number of ranks out of them (accelerator.num_processes too)" in rank.error


def with_split_batches() -> int:
    from accelerate import DataLoaderConfiguration

    from gpusched.accelerate import Accelerator

    made = Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))
    return made.trial.base_batches


def test_accelerates_split_batches_keep_the_global_batch_and_its_rate(bench: Bench) -> None:
    assert values(run_ranks(with_split_batches, 2, bench)) == [1, 1]


def with_a_scaler() -> float:
    from gpusched.accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)  # as with fp16
    accelerator.scaler = scaler
    model: Any = nn.Linear(1, 1)
    model, opt = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in accelerator.trial.steps(4):
        accelerator.backward(model(torch.ones(1, 1)).sum())
        opt.step()
        accelerator.trial.report(accuracy=0)
        accelerator.prepare(DataLoader([0.0]))  # for an evaluation, say: nothing that is tracked
    return float(scaler.get_scale())


def test_accelerates_gradient_scaler_continues_where_it_was(bench: Bench) -> None:
    assert through(bench, with_a_scaler, [(1, 2), (1, END)])[-1] == [64.0]

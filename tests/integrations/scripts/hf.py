"""A script with Hugging Face's Trainer: a tiny GPT-2 from scratch; rate and loss of every step written down."""

import json
import os
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import gpusched

search = gpusched.transformers.Search()  # <-
trial, hp = search.trial, search.trial.hparams
EPOCHS = 40
is_to_move = hp.get("place") == "moved" and os.environ.get("GPUSCHED_INCARNATION") in ("1", "2")
torch.manual_seed(0)
starts = torch.randint(0, 32, (128,))
rows = [{"input_ids": s + torch.arange(8), "labels": s + torch.arange(8)} for s in starts]


class Written(Trainer):
    def training_step(self, model, inputs, *args, **more):
        loss = super().training_step(model, inputs, *args, **more)
        row = {"global_step": self.state.global_step, "lr": self.optimizer.param_groups[0]["lr"]}
        row |= {"rank": trial.rank, "ranks": trial.world_size, "loss": loss.item()}
        row |= {"epoch": int(self.state.epoch), "samples": inputs["input_ids"][:, 0].tolist()}
        with (trial.folder / "steps.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        if is_to_move and row["epoch"] >= EPOCHS // 2:  # the other ranks are being set up
            time.sleep(0.1)
        return loss


config = GPT2Config(
    vocab_size=40, n_positions=8, n_embd=16, n_layer=1, n_head=2,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
)  # fmt: skip
options = TrainingArguments(
    output_dir="out",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=hp.batch,  # of all ranks together
    learning_rate=hp.lr,
    lr_scheduler_type="linear",
    eval_strategy="epoch",
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
)
model = GPT2LMHeadModel(config)
trainer = Written(
    model,
    train_dataset=rows,
    eval_dataset=rows,
    args=search.arguments(options),
    callbacks=[search],  # <-
)
trainer.train(resume_from_checkpoint=search.checkpoint)  # <-

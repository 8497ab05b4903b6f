"""As nanoGPT trains: DDP by hand, evaluation before the first update, micro-batches, a cosine by iteration."""

import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from gpusched import trial

EVERY, MOST, WARMUP, RATE, BATCH, CONTEXT = 5, 100, 10, 3e-3, 8, 16
gradient_accumulation_steps = 4
ddp, seed_offset = int(os.environ.get("RANK", -1)) != -1, 0
if ddp:
    if not dist.is_initialized():  # <-
        dist.init_process_group(backend="gloo")
    seed_offset, ddp_world_size = dist.get_rank(), dist.get_world_size()
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
torch.manual_seed(1337 + seed_offset)
text = torch.randint(0, 20, (64,), generator=torch.Generator().manual_seed(0)).repeat(50)


def batch(generator=None):
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
    return torch.stack([text[s : s + CONTEXT] for s in starts]), torch.stack(
        [text[s + 1 : s + CONTEXT + 1] for s in starts]
    )


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 32)
        self.mix = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, 20)

    def forward(self, tokens, targets):
        found = self.head(self.mix(self.embedding(tokens))[0])
        return nn.functional.cross_entropy(found.flatten(0, 1), targets.flatten())


def rate(iteration):
    if iteration < WARMUP:
        return RATE * (iteration + 1) / (WARMUP + 1)
    share = min(1.0, (iteration - WARMUP) / (MOST - WARMUP))
    return 0.1 * RATE + 0.45 * RATE * (1.0 + math.cos(math.pi * share))


@torch.no_grad()
def estimate(model):
    model.eval()
    fixed = torch.Generator().manual_seed(1)
    loss = sum(model(*batch(fixed)) for _ in range(4)) / 4
    model.train()
    return loss


torch.manual_seed(0)
raw_model = model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
if ddp:
    model = DDP(model)
iteration = trial.track(model=model, optimizer=optimizer)  # <-
while True:
    for group in optimizer.param_groups:
        group["lr"] = rate(iteration)
    if iteration % EVERY == 0:  # <- on every rank
        trial.report(step=iteration, loss=estimate(raw_model))  # <-
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        (model(*batch()) / gradient_accumulation_steps).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iteration += 1
    if iteration > MOST:
        break
if ddp:
    dist.destroy_process_group()

"""As nanoGPT trains: evaluation before the first update, micro-batches, a cosine by iteration, random batches."""

import math

import torch
from torch import nn

import gpusched

trial = gpusched.init()  # <-
EVERY, MOST, WARMUP, RATE, BATCH, CONTEXT = 5, 100, 10, 3e-3, 8, 16
MICRO = trial.local_batch(
    4
)  # <- micro-batches of all ranks together, which nanoGPT divides by their number
torch.manual_seed(1337 + trial.rank)
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
model = trial.wrap(Model())  # <-
optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
trial.track(model=model, optimizer=optimizer)  # <-
iteration = trial.step  # <-
while iteration <= MOST:
    for group in optimizer.param_groups:
        group["lr"] = rate(iteration)
    if iteration % EVERY == 0:
        trial.report(step=iteration, loss=estimate(model))  # <-
    for _ in range(MICRO):
        (model(*batch()) / MICRO).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iteration += 1

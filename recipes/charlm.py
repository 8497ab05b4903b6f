"""A small transformer that learns to continue a text of yours, byte by byte.

    gpusched run charlm.yaml --set space.text=~/book.txt     # the search
    python charlm.py --text ~/book.txt --max-steps 10        # one configuration alone

Without a text it takes the source code of Python's own standard library. The last tenth of the text is held back; the
search goes by how many bits the model needs for a byte of it (fewer is better; 8 is knowing nothing).

A step is ``updates`` optimizer steps, not an epoch, so that a text may have any length. The sizes are meant for CPUs,
where a step takes a few seconds; a GPU has room for widths of 256 to 512 and a context of 256.
"""

import math
import sysconfig
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import gpusched

DEFAULTS = {
    "lr": 1e-3,
    "weight_decay": 0.1,
    "dropout": 0.1,
    "width": 64,
    "depth": 2,
    "heads": 4,
    "context": 64,
    "batch": 32,
    "updates": 50,
    "text": "stdlib",  # or a file
}
BYTES = 256
RAMP = 100  # optimizer steps over which the learning rate rises at the beginning
HELD_BACK, SAMPLES = 0.1, 500


def read_text(hp, device):
    """The text as a tensor of bytes; where there is none, the script ends with what to do about it."""
    if hp.text == "stdlib":
        paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = b"".join(path.read_bytes() for path in paths)
        source = "Python's standard library"
    else:
        source = (Path(__file__).parent / Path(hp.text).expanduser()).resolve()
        text = source.read_bytes() if source.is_file() else b""
    enough = 20 * (hp.context + 1)
    if len(text) < enough:
        what = f"{source} has {len(text)} bytes" if text else f"There is no text in {source}"
        raise SystemExit(
            f"{what}: give a plain text of {enough} bytes at least, better of a million, such as a book from "
            "https://www.gutenberg.org. Say where it is: with gpusched run, --set space.text=FILE; with the script "
            "alone, --text FILE."
        )
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)


class Windows:
    """Stretches of ``context`` bytes, one after the other, each with the byte that follows."""

    def __init__(self, text, context):
        self.text = text
        self.context = context
        self.line = torch.arange(context + 1, device=text.device)

    def __len__(self):
        return (len(self.text) - 1) // self.context

    def batch(self, numbers, shift):
        """Bytes and the bytes that follow them; ``shift``: each window begins up to half its length away."""
        begins = numbers * self.context
        if shift:
            half = self.context // 2
            begins = begins + torch.randint(-half, half + 1, begins.shape, device=begins.device)
            begins = begins.clamp(0, len(self.text) - self.context - 1)
        window = self.text[begins[:, None] + self.line].long()
        return window[:, :-1], window[:, 1:]


class Block(nn.Module):
    """Causal attention, then a layer of ``4 * width``; each normalised before and added after."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.before_attention, self.before_layer = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.layer = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.drop(self.attention(self.before_attention(x)))
        return x + self.drop(self.layer(self.before_layer(x)))

    def attention(self, x):
        samples, length, width = x.shape
        parts = self.query_key_value(x).view(samples, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        # Without dropout of its own: with it a CPU has no fused kernel for this, and takes twice as long.
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.attended(found.transpose(1, 2).reshape(samples, length, width))

    def drop(self, x):
        return F.dropout(x, self.dropout, self.training)


class Transformer(nn.Module):
    """Bytes (N, length) to the logits of the byte that follows each."""

    def __init__(self, hp):
        super().__init__()
        self.byte = nn.Embedding(BYTES, hp.width)
        self.place = nn.Parameter(torch.zeros(hp.context, hp.width))
        self.blocks = nn.Sequential(
            *(Block(hp.width, hp.heads, hp.dropout) for _ in range(hp.depth))
        )
        self.last = nn.LayerNorm(hp.width)
        self.following = nn.Linear(hp.width, BYTES)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        nn.init.normal_(self.place, std=0.02)

    def forward(self, text):
        x = self.byte(text) + self.place[: text.shape[1]]
        return self.following(self.last(self.blocks(x)))


def bits(model, text, following):
    """Mean bits a byte; bfloat16 on a GPU, float32 on a CPU."""
    device = text.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        logits = model(text)
    return F.cross_entropy(logits.float().flatten(0, 1), following.flatten()) / math.log(2)


def endless(loader):
    """Batches, epoch after epoch, beginning with what is left of the one that the trial is in."""
    while True:
        yield from loader


@torch.no_grad()
def evaluate(trial, net, windows, loader):
    """Bits a byte of the text held back."""
    net.eval()
    total, seen = torch.zeros((), device=trial.device), 0
    for numbers in loader:
        total += bits(net, *windows.batch(numbers, shift=False)) * len(numbers)
        seen += len(numbers)
    net.train()
    return trial.mean(total, seen)


def train(trial):
    hp = trial.hparams
    text = read_text(hp, trial.device)
    kept = int(len(text) * (1 - HELD_BACK))
    training, held_back = Windows(text[:kept], hp.context), Windows(text[kept:], hp.context)

    net = Transformer(hp)
    model = trial.wrap(net)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=hp.lr, betas=(0.9, 0.95), weight_decay=hp.weight_decay, fused=True
    )
    trial.scale_lr(optimizer)
    loader = trial.loader(range(len(training)), batch_size=hp.batch, pin_memory=False)
    ramp = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / RAMP))
    schedule = trial.schedule(ramp)  # by step: counted as one atom would count
    some = range(0, len(held_back), math.ceil(len(held_back) / SAMPLES))
    test_loader = trial.eval_loader(some, batch_size=100, pin_memory=False)
    trial.track(model=model, optimizer=optimizer, schedule=schedule)

    batches = endless(loader)
    for _ in trial.steps():
        sum_of_bits = torch.zeros((), device=trial.device)
        for numbers in islice(batches, hp.updates):
            loss = bits(model, *training.batch(numbers, shift=True))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            sum_of_bits += loss.detach()
        trained = trial.mean(sum_of_bits, hp.updates)
        trial.report(bits=evaluate(trial, net, held_back, test_loader), trained=trained)


if __name__ == "__main__":
    train(gpusched.init(DEFAULTS))

"""A small CNN on the handwritten digits that ship with scikit-learn: 1,797 real images, 8x8 pixels, 10 classes.

    gpusched run digits.yaml                                 # search for a minute
    python digits.py --lr 0.1 --max-steps 10                 # one configuration, alone
    torchrun --nproc-per-node 2 digits.py --max-steps 10     # the same on two ranks

Four fifths of the images are held out and never trained on: the accuracy on them is what the search is for, and with
so few to learn from the choice of hyperparameters matters. The lines that begin with ``trial`` are all that gpusched
asks of a training script.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import gpusched

DEFAULTS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "width": 16, "dropout": 0.2}
VIEWS = 16  # an epoch shows each image so often, shifted differently each time
BATCH = 256  # an atom


def load_images(device):
    """Training and held-out images (N, 1, 8, 8) in [0, 1] with their labels; always the same split."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32, device=device).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, device=device)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(device)
    held_out, training = order.tensor_split([4 * len(order) // 5])
    return (images[training], labels[training]), (images[held_out], labels[held_out])


def shift(images):
    """Move each image by up to one pixel in each direction."""
    count, device = len(images), images.device
    padded = F.pad(images.squeeze(1), (1, 1, 1, 1))
    down, right = torch.randint(0, 3, (2, count, 1, 1), device=device)
    each, pixel = torch.arange(count, device=device), torch.arange(8, device=device)
    return padded[each[:, None, None], down + pixel[:, None], right + pixel].unsqueeze(1)


def convolution(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def network(width, dropout):
    return nn.Sequential(
        convolution(1, width),
        convolution(width, width),
        nn.MaxPool2d(2),
        convolution(width, 2 * width),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(8 * width, 10),
    )


@torch.no_grad()
def evaluate(trial, model, loader, images, labels):
    """The share of the images that are told right; each counts once, however many ranks share the work."""
    model.eval()
    right = total = 0
    for numbers in loader:
        right += (model(images[numbers]).argmax(1) == labels[numbers]).sum()
        total += len(numbers)
    return trial.mean(right, total)


def train(trial):
    hp = trial.hparams
    (images, labels), (test_images, test_labels) = load_images(trial.device)

    model = trial.wrap(network(hp.width, hp.dropout))
    opt = torch.optim.SGD(
        model.parameters(),
        hp.lr,
        hp.momentum,
        weight_decay=hp.weight_decay,
        nesterov=hp.momentum > 0,
    )
    trial.scale_lr(opt)
    # All images lie in memory already, so the loaders need only say which ones are next.
    loader = trial.loader(range(VIEWS * len(labels)), batch_size=BATCH)
    test_loader = trial.eval_loader(range(len(test_labels)))
    trial.track(model=model, opt=opt)

    for _ in trial.steps():
        model.train()
        for numbers in loader:
            chosen = numbers % len(labels)
            loss = F.cross_entropy(model(shift(images[chosen])), labels[chosen])
            opt.zero_grad()
            loss.backward()
            opt.step()

        accuracy = evaluate(trial, model, test_loader, test_images, test_labels)
        trial.report(accuracy=accuracy, loss=loss)


if __name__ == "__main__":
    train(gpusched.init(DEFAULTS))

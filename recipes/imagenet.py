"""ImageNet with ResNet50, as in HyperSched (SoCC'19), section 6.4: a report every 100 updates.

    gpusched run imagenet.yaml                                                 # the search
    torchrun --nproc-per-node 8 imagenet.py --data FOLDER --max-steps 9000     # one configuration alone

An epoch takes far too long to wait for a decision, so a step is 100 updates, wherever the epoch stands then, and a look
at 20 validation batches, always the same. A trial that has to leave saves; its next launch, on however many GPUs, goes
on with exactly the images of the epoch that are left: ``trial.loader`` sees to that.

Workers decode and crop; what they hand over is bytes, which the GPU normalises.
"""

import os
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import Subset
from vision_ops import datasets, models, transforms

import gpusched

DEFAULTS = {
    "model": "resnet50",
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "data": "data/imagenet",
    "side": 224,
    "batch": 128,
    "updates": 100,
    "validation_batches": 20,
    "workers": 8,
}
DECAY_EPOCHS = (60, 120, 160)
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def open_images(folder, side):
    """Training and validation images; where there are none, the script ends with what to do about it."""
    for_training = transforms.Compose(
        [
            transforms.RandomResizedCrop(side),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),
        ]
    )
    for_validation = transforms.Compose(
        [
            transforms.Resize(round(side / 0.875)),
            transforms.CenterCrop(side),
            transforms.PILToTensor(),
        ]
    )
    try:
        training = datasets.ImageFolder(str(folder / "train"), for_training)
        validation = datasets.ImageFolder(str(folder / "val"), for_validation)
    except FileNotFoundError as error:
        why = f"no folder {error.filename}" if error.filename else error
        raise SystemExit(
            f"There is no ImageNet in {folder} ({why}): get ILSVRC 2012 from https://www.image-net.org "
            "and lay it out there as train/n01440764/*.JPEG and val/n01440764/*.JPEG, one folder a class in both. Or "
            "say which folder has train and val: with gpusched run, --set space.data=FOLDER; with the script alone, "
            "--data FOLDER."
        ) from None
    if training.classes != validation.classes:
        odd = sorted(set(training.classes) ^ set(validation.classes))
        raise SystemExit(
            f"{folder}: train and val must have the same classes; {len(odd)} are in one only, such as {odd[0]}. "
            "The validation archive of ILSVRC 2012 is flat: move its images into one folder a class."
        )
    return training, validation


def some_of(validation, count):
    """The same ``count`` images, of all classes, in every trial and every report."""
    shuffled = torch.randperm(len(validation), generator=torch.Generator().manual_seed(0))
    return Subset(validation, shuffled[:count].tolist())


class Normalise:
    """From bytes as they come from the loader to what the model takes, on ``device``."""

    def __init__(self, device):
        self.mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1) * 255
        self.deviation = torch.tensor(DEVIATION, device=device).view(1, 3, 1, 1) * 255

    def __call__(self, images):
        images = images.to(memory_format=torch.channels_last).float()
        return (images - self.mean) / self.deviation


def endless(loader):
    """Batches, epoch after epoch, beginning with what is left of the one that the trial is in."""
    while True:
        yield from loader


def mixed_precision(device):
    """bfloat16 on a GPU; float32 on a CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


@torch.no_grad()
def accuracy(trial, net, normalise, loader):
    """The share of the images that is classified rightly, by the model as a checkpoint would hold it."""
    if dist.is_initialized():  # each rank's batch norm has means of its own; rank 0's are saved
        for buffer in net.buffers():
            dist.broadcast(buffer, 0)
    net.eval()
    right = torch.zeros((), device=trial.device)
    seen = 0
    for images, labels in loader:
        with mixed_precision(trial.device):
            right += (net(normalise(images)).argmax(1) == labels).sum()
        seen += len(labels)
    net.train()
    return trial.mean(right, seen)


def main():
    trial = gpusched.init(DEFAULTS)
    hp = trial.hparams
    folder = (Path(__file__).parent / Path(hp.data).expanduser()).resolve()
    training, validation = open_images(folder, hp.side)
    validation = some_of(validation, hp.validation_batches * hp.batch)
    workers = min(hp.workers, len(os.sched_getaffinity(0)) - 1)  # of the cores that this rank has
    options = {"num_workers": workers, "persistent_workers": workers > 0}

    net = models.get_model(hp.model, num_classes=len(training.classes))
    net = net.to(memory_format=torch.channels_last)
    model = trial.wrap(net)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=hp.lr,
        momentum=hp.momentum,
        weight_decay=hp.weight_decay,
        fused=True,
    )
    trial.scale_lr(optimizer)
    loader = trial.loader(training, batch_size=hp.batch, **options)
    some = trial.eval_loader(validation, batch_size=hp.batch, **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda _: 0.2 ** sum(loader.epoch >= epoch for epoch in DECAY_EPOCHS)
    )
    trial.track(model=model, optimizer=optimizer, schedule=schedule)

    normalise = Normalise(trial.device)
    batches = endless(loader)
    for _ in trial.steps():
        loss_sum = torch.zeros((), device=trial.device)
        for images, labels in islice(batches, hp.updates):
            with mixed_precision(trial.device):
                loss = F.cross_entropy(model(normalise(images)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        schedule.step()
        mean_loss = trial.mean(loss_sum, hp.updates)
        trial.report(accuracy=accuracy(trial, net, normalise, some), loss=mean_loss)


if __name__ == "__main__":
    main()

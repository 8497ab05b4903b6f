"""CIFAR-10 with ResNet18, 50, 101 or ShuffleNetV2, as in HyperSched (SoCC'19), sections 6.3.1 and 6.3.2.

    gpusched run cifar10.yaml                                          # the search
    python cifar10.py --lr 0.05 --max-steps 30                         # one configuration alone
    torchrun --nproc-per-node 2 cifar10.py --lr 0.05 --max-steps 30    # the same on two GPUs

At 32x32 pixels a GPU trains faster than any data loader can decode, crop and copy. So all images lie on the GPU, and
selecting a batch, cropping and flipping it is one gather there; the loader hands out the numbers of images alone.

As in the paper, the search goes by the accuracy on the 10,000 test images. For a figure to publish, hold some of the
training images back and search by those.
"""

import fcntl
import io
import pickle
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from vision_ops import datasets, models

import gpusched

DEFAULTS = {
    "model": "resnet18",  # resnet50, resnet101, shufflenet_v2
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "data": "data/cifar10",
}
TRAINING = [f"data_batch_{number}" for number in range(1, 6)]
TESTING = ["test_batch"]
SIDE, BORDER, CLASSES = 32, 4, 10
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the training images


def fetch(folder):
    """Download and unpack the archive into ``folder``, once for all trials; without a network, end with what to do."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".fetching").open("w") as lock:
        fcntl.flock(
            lock, fcntl.LOCK_EX
        )  # trials and ranks that begin together wait for the first of them
        if (folder / "cifar-10-batches-py").exists():
            return
        about = datasets.CIFAR10
        print(f"downloading CIFAR-10 (170 MB) from {about.url} to {folder}", flush=True)
        try:
            datasets.utils.download_and_extract_archive(
                about.url, str(folder), filename=about.filename, md5=about.tgz_md5
            )
        except (OSError, RuntimeError) as error:
            raise SystemExit(
                f"There is no CIFAR-10 in {folder}, and it could not be downloaded ({error}). On a machine with a "
                f"network, get its python version, {about.url}, and unpack it in {folder}. Or name the folder that has "
                "cifar-10-batches-py: with gpusched run, --set space.data=FOLDER; with the script alone, --data FOLDER."
            ) from None


class PlainArrays(pickle.Unpickler):
    """Reads lists, texts, numbers and numpy arrays; a pickle that asks for anything else is refused, not run."""

    def find_class(self, module, name):
        if module.startswith("numpy") and name in ("_reconstruct", "ndarray", "dtype"):
            place = "numpy._core.multiarray" if name == "_reconstruct" else "numpy"
            return super().find_class(place, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no images need")


def read_file(path):
    """Pixels (N, 3, 32, 32) as bytes, and labels, of one file of the archive's python version."""
    batch = PlainArrays(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    pixels = np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, SIDE, SIDE)
    labels = np.asarray(batch[b"labels"], np.int64)
    if len(pixels) != len(labels) or not np.isin(labels, range(CLASSES)).all():
        raise ValueError("its labels do not fit its images")
    return torch.from_numpy(pixels), torch.from_numpy(labels)


def read_images(folder, names):
    """All of these files; where that cannot be, the script ends with what to do about it."""
    parts = []
    for path in (folder / name for name in names):
        try:
            parts.append(read_file(path))
        except FileNotFoundError:
            raise SystemExit(
                f"{path} is missing. Remove {folder}, and the whole archive is downloaded."
            ) from None
        except Exception as error:
            raise SystemExit(
                f"{path} is damaged, or no file of CIFAR-10's python version: {error}. "
                "Unpack the archive anew."
            ) from None
    pixels, labels = zip(*parts, strict=True)
    return torch.cat(pixels), torch.cat(labels)


class Images:
    """Labelled images on ``device``: bytes, channels last, with the black border that random crops reach into."""

    def __init__(self, pixels, labels, device):
        bordered = F.pad(pixels, (BORDER, BORDER, BORDER, BORDER))
        self.pixels = bordered.permute(0, 2, 3, 1).contiguous().to(device)
        self.labels = labels.to(device)
        self.line = torch.arange(SIDE, device=device)
        self.mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1) * 255
        self.deviation = torch.tensor(DEVIATION, device=device).view(1, 3, 1, 1) * 255

    def __len__(self):
        return len(self.labels)

    def batch(self, numbers, augment):
        """Normalised images (channels last in memory) and labels; ``augment``: each cropped and flipped at random."""
        rows = columns = (BORDER + self.line).expand(len(numbers), SIDE)
        if augment:
            top, left = torch.randint(
                0, 2 * BORDER + 1, (2, len(numbers), 1), device=self.line.device
            )
            flip = torch.rand(len(numbers), 1, device=self.line.device) < 0.5
            rows = top + self.line
            columns = left + torch.where(flip, self.line.flip(0), self.line)
        chosen = self.pixels[numbers[:, None, None], rows[:, :, None], columns[:, None, :]]
        images = chosen.permute(0, 3, 1, 2).float()
        return (images - self.mean) / self.deviation, self.labels[numbers]


def build(name):
    """A model of torchvision for 32x32: the first convolution keeps the size, and no pooling follows it."""
    if name == "shufflenet_v2":
        net = models.shufflenet_v2_x1_0(num_classes=CLASSES)
        net.conv1[0] = nn.Conv2d(3, 24, kernel_size=3, padding=1, bias=False)
    elif name in ("resnet18", "resnet50", "resnet101"):
        net = models.get_model(name, num_classes=CLASSES)
        net.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
    else:
        raise SystemExit(
            f"model: {name!r} is not one of resnet18, resnet50, resnet101, shufflenet_v2"
        )
    net.maxpool = nn.Identity()
    return net.to(memory_format=torch.channels_last)


def mixed_precision(device):
    """bfloat16 on a GPU; float32 on a CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def train(trial, model, images, loader, optimizer):
    """One epoch; the mean loss over all ranks."""
    model.train()
    total = torch.zeros((), device=trial.device)
    seen = 0
    for numbers in loader:
        pixels, labels = images.batch(numbers, augment=True)
        with mixed_precision(trial.device):
            loss = F.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(numbers)
        seen += len(numbers)
    return trial.mean(total, seen)


@torch.no_grad()
def accuracy(trial, net, images, loader):
    """The share of ``images`` that is classified rightly, by the model as a checkpoint would hold it."""
    if dist.is_initialized():  # each rank's batch norm has means of its own; rank 0's are saved
        for buffer in net.buffers():
            dist.broadcast(buffer, 0)
    net.eval()
    right = torch.zeros((), device=trial.device)
    seen = 0
    for numbers in loader:
        pixels, labels = images.batch(numbers, augment=False)
        with mixed_precision(trial.device):
            right += (net(pixels).argmax(1) == labels).sum()
        seen += len(numbers)
    return trial.mean(right, seen)


def main():
    trial = gpusched.init(DEFAULTS)
    hp = trial.hparams
    folder = (Path(__file__).parent / Path(hp.data).expanduser()).resolve() / "cifar-10-batches-py"
    if not folder.exists():
        fetch(folder.parent)
    training = Images(*read_images(folder, TRAINING), trial.device)
    testing = Images(*read_images(folder, TESTING), trial.device)

    net = build(hp.model)
    model = trial.wrap(net)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=hp.lr,
        momentum=hp.momentum,
        weight_decay=hp.weight_decay,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [60, 120, 160], gamma=0.2)
    trial.scale_lr(optimizer)
    numbers = trial.loader(range(len(training)), batch_size=128, pin_memory=False)
    test_numbers = trial.eval_loader(range(len(testing)), batch_size=1000, pin_memory=False)
    trial.track(model=model, optimizer=optimizer, schedule=schedule)

    for _ in trial.steps():
        loss = train(trial, model, training, numbers, optimizer)
        schedule.step()
        trial.report(accuracy=accuracy(trial, net, testing, test_numbers), loss=loss)


if __name__ == "__main__":
    main()

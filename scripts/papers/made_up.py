"""Ten synthetic training runs for judging hyperparameter search: pure functions of configuration, step and noise.

Each maps `(hp, step, random)` to the validation metric after that step and the seconds the step took. The luck of a
configuration (its seed) is hashed from `hp`, so it is the same at every step; `random` gives only the noise of one
report. No workload keeps state, so steps may be asked in any order.
"""

import hashlib
import json
import math
from collections.abc import Callable
from random import Random
from statistics import NormalDist

TOTAL = 200  # training steps of a full run; the schedules end here

SPACE: dict[str, tuple] = {
    "lr": ("loguniform", 1e-5, 1e0),
    "weight_decay": ("loguniform", 1e-6, 1e-1),
    "batch": ("choice", [16, 32, 64, 128, 256]),
    "width": ("choice", [64, 128, 256, 512]),
    "depth": ("choice", [2, 4, 6, 8, 12]),
    "dropout": ("uniform", 0.0, 0.6),
    "warmup": ("uniform", 0.0, 0.2),
    "optimizer": ("choice", ["sgd", "momentum", "adamw", "lion"]),
    "schedule": ("choice", ["constant", "step", "linear", "cosine"]),
}

# Decades by which the best peak learning rate of an optimizer lies above AdamW's.
_SHIFT = {"sgd": 2.2, "momentum": 1.4, "adamw": 0.0, "lion": -0.7}


def _unit(hp: dict, tag: str) -> float:
    """A number in (0, 1) that depends on the configuration and `tag` alone: the luck of its seed."""
    text = tag + json.dumps(hp, sort_keys=True)
    digest = hashlib.sha256(text.encode()).digest()
    return (int.from_bytes(digest[:6], "big") + 0.5) / 2**48


def _normal(hp: dict, tag: str) -> float:
    """Standard normal luck of the configuration."""
    return NormalDist().inv_cdf(_unit(hp, tag))


def _excess(hp: dict, adamw: float) -> float:
    """Decades by which the learning rate is above the best one, given AdamW's best at the middle of SPACE.

    The best grows with the batch (its root for adaptive methods) and falls with width (most for them) and depth.
    """
    adaptive = hp["optimizer"] in ("adamw", "lion")
    best = math.log10(adamw) + _SHIFT[hp["optimizer"]]
    best += (0.5 if adaptive else 1.0) * math.log10(hp["batch"] / 64)
    best -= (0.8 if adaptive else 0.3) * math.log10(hp["width"] / 192)
    best -= 0.4 * math.log10(hp["depth"] / 6)
    return math.log10(hp["lr"]) - best


def _scale(hp: dict, step: int) -> float:
    """Learning rate at `step` as a share of its peak: linear warmup, then the schedule (drops at 50% and 75%)."""
    done = step / TOTAL
    rise = min(1.0, done / max(hp["warmup"], 1e-9))
    if hp["schedule"] == "step":
        return rise * (1.0 if done <= 0.5 else 0.1 if done <= 0.75 else 0.01)
    if hp["schedule"] == "cosine":
        return rise * 0.5 * (1.0 + math.cos(math.pi * done))
    return rise * (1.0 - done) if hp["schedule"] == "linear" else rise


def _travel(hp: dict, step: int) -> float:
    """Steps at the peak rate that would move the weights as far as the schedule has by `step`."""
    s, warm = float(step), max(hp["warmup"] * TOTAL, 1e-6)
    late = s - s * s / (2 * warm) if s < warm else warm / 2
    if hp["schedule"] == "step":
        s = min(s, 100.0) + 0.1 * min(max(s - 100.0, 0.0), 50.0) + 0.01 * max(s - 150.0, 0.0)
    elif hp["schedule"] == "linear":
        s -= s * s / (2 * TOTAL)
    elif hp["schedule"] == "cosine":
        s = 0.5 * s + TOTAL / (2 * math.pi) * math.sin(math.pi * s / TOTAL)
    return max(s - late, 0.0)


def _moved(hp: dict, step: int, x: float, cap: float) -> float:
    """Useful distance by `step` at an excess of `x` decades; heat above `cap` moves the weights no further."""
    return _travel(hp, step) * 10 ** (0.75 * min(x, cap))


def _decay(hp: dict) -> float:
    """Decimal logarithm of the weight decay."""
    return math.log10(hp["weight_decay"])


def _size(hp: dict) -> float:
    """Binary logarithm of the number of parameters over that of the middle of SPACE."""
    return math.log2(hp["width"] ** 2 * hp["depth"] / 2**18)


def _bump(value: float, best: float, spread: float) -> float:
    """Squared distance from the best value in units of `spread`, flattened far out: 0 at best, tends to 4."""
    square = ((value - best) / spread) ** 2
    return 4 * square / (4 + square)


def _sigmoid(value: float) -> float:
    """The logistic function, safe for large arguments."""
    return 0.5 * (1.0 + math.tanh(value / 2))


def _seconds(hp: dict, random: Random, width: float, depth: float, batch: float) -> float:
    """Seconds of a step: a power law in the sizes, clamped to a ratio of about 4.5, with 3% of jitter."""
    cost = (hp["width"] / 192) ** width * (hp["depth"] / 6) ** depth * (hp["batch"] / 64) ** batch
    return min(max(cost, 0.5), 2.2) * math.exp(random.gauss(0.0, 0.03))


def image_classifier(hp: dict, step: int, random: Random) -> tuple[float, float]:
    """Top-1 accuracy of a small residual network on ten classes, near 0.95 when well tuned and 0.10 by chance.

    A hot learning rate leaves a noise floor that goes when the rate drops, so step schedules jump at 50% and 75% and
    overtake. Weight decay acts through its product with the rate; too hot a rate without warmup stays at chance.
    """
    x = _excess(hp, 2e-3)
    seconds = _seconds(hp, random, 0.5, 0.4, 0.3)
    if x > 0.9 + 2.5 * hp["warmup"] + 0.1 * _normal(hp, "image-luck"):
        return 0.1 + abs(random.gauss(0.0, 0.004)), seconds
    floor = 0.03 + 0.012 * 2 ** (-_size(hp) / 3) + 0.02 * _bump(x, 0.1, 0.8)
    floor += 0.012 * _bump(x + _decay(hp), -3.3, 1.0) + 0.01 * _bump(hp["dropout"], 0.1, 0.2)
    floor += 0.003 * math.log2(hp["batch"] / 16) + 0.002 * _normal(hp, "image")
    fall = (1 + _moved(hp, step, x, 0.3) / 4) ** -1.1
    heat = 0.11 * 10 ** (0.6 * x) * _scale(hp, step) ** 0.8 * min(1.0, step / 10)
    error = floor + (0.9 - floor) * fall + heat * random.gauss(1.0, 0.15)
    return 1 - min(max(error + random.gauss(0.0, 0.0025), 0.02), 0.9), seconds


def cosine_transformer(hp: dict, step: int, random: Random) -> tuple[float, float]:
    """Top-1 error in percent of a vision transformer on a thousand classes whose rate is always annealed to zero.

    A high rate hides what was learned under noise, so the hot runs that win look worst until the last fifth. Cosine
    and linear reveal it gradually, "step" in a late stair, "constant" (warmup-stable-decay) over the last 12%.
    """
    x = _excess(hp, 8e-4)
    seconds = _seconds(hp, random, 0.6, 0.5, 0.2)
    if x > 1.0 + 2.0 * hp["warmup"]:
        return 99.9 - abs(random.gauss(0.0, 0.05)), seconds
    done = step / TOTAL
    curve = {"linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
    curve |= {"step": 1.0 if done <= 0.85 else 0.08, "constant": min(1.0, (1 - done) / 0.12)}
    floor = 21.5 - 0.9 * _size(hp) + 5.0 * _bump(x, 0.25, 0.6) + 0.25 * _normal(hp, "cosine")
    floor += 1.5 * _bump(hp["dropout"], 0.1 + 0.03 * _size(hp), 0.15)
    floor += 1.2 * _bump(_decay(hp), -1.7, 1.2) + 2.0 * _bump(hp["warmup"], 0.09, 0.1)
    floor += {"cosine": 0.0, "linear": 0.3, "step": 1.4, "constant": 0.5}[hp["schedule"]]
    fall = (1 + step * 10 ** (0.75 * min(x, 0.3)) / 8) ** -1.3
    heat = 19.0 * 10 ** (0.5 * x) * curve[hp["schedule"]] ** 0.9 * min(1.0, done / 0.1)
    error = floor + (99.9 - floor) * fall + heat + random.gauss(0.0, 0.25 + 0.02 * heat)
    return min(max(error, 5.0), 99.9), seconds


def language_model(hp: dict, step: int, random: Random) -> tuple[float, float]:
    """Validation loss in nats per token: a floor plus power laws in parameters and in tokens seen, from ln(50257).

    Hot rates learn fastest and lead until they diverge; warmup and a shallow network raise the limit. Beyond it the
    loss climbs for good to about 7.5 to 8.5, past the unigram level; just below it a run spikes once and recovers.
    """
    x = _excess(hp, 1.5e-3)
    seconds = _seconds(hp, random, 0.6, 0.5, 0.5)
    limit = 0.65 + 2.5 * hp["warmup"] - 0.12 * math.log2(hp["depth"]) + 0.12 * _normal(hp, "limit")
    tokens = _moved(hp, step, x, 0.5) * (hp["batch"] / 64) ** 0.7
    floor = 2.0 + 0.7 * 2 ** (-0.17 * _size(hp)) + 0.6 * hp["dropout"] ** 1.5
    floor += {"sgd": 0.7, "momentum": 0.35, "adamw": 0.0, "lion": 0.02}[hp["optimizer"]]
    floor += 0.03 * _bump(x, 0.0, 0.7) + 0.05 * _bump(_decay(hp), -1.2, 1.5)
    loss = floor + (10.82 - floor) * (1 + tokens / 0.6) ** -0.6 + 0.01 * _normal(hp, "lm")
    loss += 0.3 * 10 ** (0.5 * x) * _scale(hp, step)
    if x > limit:
        onset = 4 + 110 * math.exp(-2.5 * (x - limit)) * _unit(hp, "onset")
        if step > onset:
            loss += max(7.5 + 0.5 * min(x, 2.0) - loss, 0.0) * (1 - math.exp((onset - step) / 4))
            return loss + random.gauss(0.0, 0.12), seconds
    elif x > limit - 0.35:
        since = step - (20 + 120 * _unit(hp, "spike"))
        loss += 1.8 * math.exp(-since / 8) if since >= 0 else 0.0
    return loss + random.gauss(0.0, 0.012), seconds


def small_data(hp: dict, step: int, random: Random) -> tuple[float, float]:
    """Validation cross-entropy of a twenty-class network on a few thousand examples, which overfits.

    The loss falls from ln(20), is best in the middle and then rises as the network grows sure of its mistakes, past
    the start for wide and unregularised ones. Fast learners are best early and end worst, so curves cross.
    """
    x = _excess(hp, 7e-4)
    seconds = _seconds(hp, random, 0.4, 0.4, 0.4)
    if x > 1.3 + 0.3 * _normal(hp, "small-limit"):
        return 3.05 + 0.3 * (x - 1.0) + abs(random.gauss(0.0, 0.15)), seconds
    moved, capacity, decay = _moved(hp, step, x, 0.7), 2.5 + 0.5 * _size(hp), _decay(hp) + 6
    hold = 0.6 + 2.5 * hp["dropout"] + 0.025 * decay**2 + 0.06 * math.log2(256 / hp["batch"])
    best = 0.95 - 0.06 * capacity + 0.07 * _bump(hp["dropout"], 0.15 + 0.07 * capacity, 0.2)
    best += 0.07 * _bump(x, 0.0, 0.6) + 0.05 * _bump(decay, 3.7, 1.5) + 0.015 * _normal(hp, "small")
    fit = (3.0 - best) * math.exp(-((moved / (5 + 12 * hp["dropout"])) ** 0.8))
    over = 0.13 * (1 + 0.45 * capacity) / hold * max(0.0, moved / (12 * hold) - 0.5) ** 0.65
    return best + fit + over + random.gauss(0.0, 0.02 + 0.01 * over), seconds


def reinforcement(hp: dict, step: int, random: Random) -> tuple[float, float]:
    """Mean return of an actor-critic agent that must land a craft: -200 crashing, about -20 hovering, 250 solved.

    It stays on a plateau until the agent suddenly finds the next skill, at a time set largely by its seed; many never
    do. Hot rates often collapse, and only some recover. A report averages a few episodes, so it is noisy.
    """
    x = _excess(hp, 4e-4)
    slow = 0.5 * _bump(x, 0.1, 0.55) + 0.25 * _bump(math.log2(hp["width"]), 7.6, 1.2)
    slow += 0.2 * _bump(hp["depth"], 3, 3.0) + 2.2 * hp["dropout"]
    slow += {"sgd": 0.9, "momentum": 0.4, "adamw": 0.0, "lion": 0.15}[hp["optimizer"]]
    hover = 14 * math.exp(0.7 * slow + 0.3 * _normal(hp, "hover"))
    solve = hover + 22 * math.exp(0.8 * slow + 0.5 * _normal(hp, "solve"))
    peak = 265 - 22 * slow + 10 * _normal(hp, "peak")
    base = -195 + 25 * _normal(hp, "start") - 110 * math.exp(-step / 4)
    gain = (-20 - base) * _sigmoid((step - hover) / 2.5)
    value = base + gain + (peak + 20) * _sigmoid((step - solve) / 3.5)
    risk = _sigmoid(3.5 * (x - 0.25)) * (0.6 if hp["schedule"] in ("linear", "cosine") else 1.0)
    if _unit(hp, "collapse") < risk:
        since = step - (solve + 8 + 70 * _unit(hp, "when"))
        back = _sigmoid((since - 30) / 5) if _unit(hp, "recover") < 0.35 else 0.0
        value -= (value + 150) * (1 - math.exp(-max(since, 0.0) / 3)) * (1 - back)
    value -= 90.0 if random.random() < 0.08 else 0.0
    value += random.gauss(0.0, 38 - 20 * _sigmoid((value - 150) / 30))
    return max(value, -600.0), _seconds(hp, random, 0.25, 0.25, 0.35)


def grokking(hp: dict, step: int, random: Random) -> tuple[float, float]:
    """Validation accuracy on modular arithmetic, where generalisation comes long after the training set is known.

    It stays near chance (1/97) until weight decay has cleaned the circuits up, then jumps to about 1; most runs never
    get there. Wide runs with little decay creep early to a useless 0.1 to 0.25, ahead of the silent winners.
    """
    x = _excess(hp, 2e-3)
    seconds = _seconds(hp, random, 0.4, 0.5, 0.3)
    slow = 0.4 * _bump(x, 0.1, 0.6) + 0.35 * _bump(_decay(hp), -1.5, 1.0)
    slow += 0.15 * _bump(hp["depth"], 3, 3.0) + 0.2 * _bump(hp["dropout"], 0.15, 0.2)
    slow += {"sgd": 1.2, "momentum": 0.7, "adamw": 0.0, "lion": 0.1}[hp["optimizer"]]
    when = 48 * math.exp(0.75 * slow + 0.2 * _normal(hp, "grok"))
    creep = 0.06 * math.log2(hp["width"] / 32) * _sigmoid(-1.5 * (_decay(hp) + 3.2))
    creep *= _sigmoid(3 * (x + 1))
    value = 1 / 97 + creep * (1 - math.exp(-step / 15)) * (1 if x < 1 else 0)
    top = 0.997 - 0.012 * _bump(x, 0.0, 0.6) - 0.25 * max(0.0, hp["dropout"] - 0.35)
    jump = _sigmoid((_travel(hp, step) - when) / (2.5 + 0.05 * when)) if x < 0.9 else 0.0
    value += (top - value) * jump
    if x > 0.2 and hp["optimizer"] in ("adamw", "lion") and random.random() < 0.07:
        value -= 0.4 * value * random.random()
    value += random.gauss(0.0, 0.003 + 0.06 * jump * (1 - jump))
    return min(max(value, 0.0), 1.0), seconds


def tabular(hp: dict, step: int, random: Random) -> tuple[float, float]:
    """Area under the ROC curve of a network on a credit table, where labels are noisy and nothing passes 0.79.

    Good runs saturate within some forty steps and then differ in the third decimal, little more than a report's
    noise; deep ones lose a trace to overfitting. Poor ones are too cold to arrive, or so hot that the units die.
    """
    x = _excess(hp, 1.5e-3)
    seconds = _seconds(hp, random, 0.2, 0.25, 0.45)
    if x > 1.2 + 0.2 * _normal(hp, "tabular-limit"):
        return 0.5 + 0.1 * _unit(hp, "dead") + random.gauss(0.0, 0.003), seconds
    moved = _moved(hp, step, x, 0.5)
    top = 0.7875 - 0.0009 * _bump(hp["dropout"], 0.25, 0.2) - 0.0014 * _bump(x, -0.1, 0.6)
    top -= 0.0006 * _bump(_decay(hp) + 0.5 * x, -3.5, 1.2) + 0.0005 * _bump(hp["depth"], 4, 3.0)
    top -= 0.0004 * _bump(math.log2(hp["width"]), 7.5, 1.0) - 0.0004 * _normal(hp, "tabular")
    over = 0.0025 * (1 - 1.4 * hp["dropout"]) * math.log1p(moved / 80) * hp["depth"] / 6
    heat = 0.003 * 10 ** (0.7 * x) * _scale(hp, step)
    value = 0.5 + (top - 0.5) * (1 - 0.85 * math.exp(-moved / 3) - 0.15 * math.exp(-moved / 0.4))
    return value - over - heat + random.gauss(0.0, 0.0005 + 0.3 * heat), seconds


def gan_fid(hp: dict, step: int, random: Random) -> tuple[float, float]:
    """Frechet inception distance of an image generator: about 400 for noise, below 15 for a good one.

    The two players chase each other, so the score swings with the learning rate and settles only if that is annealed.
    Some runs lose their modes for a while or for good, so the best step is seldom the last.
    """
    x = _excess(hp, 3e-4)
    base = 9 + 5 * _bump(x, 0.0, 0.5) + 400 * math.log2(512 / hp["batch"]) / (64 + hp["width"])
    base += {"sgd": 45.0, "momentum": 28.0, "adamw": 0.0, "lion": 6.0}[hp["optimizer"]]
    base += 40 * hp["dropout"] ** 2 + 3 * _bump(hp["depth"], 7, 3.0) + _bump(_decay(hp), -4.5, 1.5)
    base *= math.exp(0.06 * _normal(hp, "fid"))
    score = base + (400 - base) * (1 + _moved(hp, step, x, 0.4) / 6) ** -1.8
    swing = 0.32 * 10 ** (0.5 * min(x, 1.0)) * (0.15 + 0.85 * _scale(hp, step))
    turn = 2 * math.pi * (step / (18 + 40 * _unit(hp, "period")) + _unit(hp, "phase"))
    swing *= (math.sin(turn) + 0.5 * math.sin(2.3 * turn + 1)) * min(1.0, step / 20)
    if _unit(hp, "collapse") < _sigmoid(4 * (x - 0.2)):
        since = step - (15 + 170 * _unit(hp, "when"))
        heal = math.exp(-max(since, 0.0) / 14) if x < 0.5 else 1.0
        score += (90 + 130 * _unit(hp, "modes")) * _sigmoid(since / 2) * heal
    score *= math.exp(swing + random.gauss(0.0, 0.035))
    return min(score, 520.0), _seconds(hp, random, 0.6, 0.4, 0.4)


def segmentation(hp: dict, step: int, random: Random) -> tuple[float, float]:
    """Validation loss (cross-entropy plus Dice) of a half-precision U-Net on medical scans, from 1.7 down to 0.3.

    Hot, wide and deep runs overflow half precision: the loss is infinite for two reports and NaN for ever after, often
    while leading. Small batches hurt normalisation; a plateau comes first, while only background is predicted.
    """
    x = _excess(hp, 1e-3)
    seconds = _seconds(hp, random, 0.6, 0.4, 0.5)
    load = x + 0.25 * math.log2(hp["width"] * hp["depth"] / 1152) - 2.0 * hp["warmup"]
    load += 0.25 * _normal(hp, "load") - 0.1 * (_decay(hp) + 4)
    if load > 0.4:
        onset = 3 + 150 * math.exp(-1.2 * (load - 0.4)) * _unit(hp, "overflow")
        if step > onset:
            return (math.inf if step <= onset + 2 else math.nan), seconds
    moved = _moved(hp, step, x, 0.4)
    floor = 0.27 + 0.03 * math.log2(256 / hp["batch"]) ** 1.3 / 2 + 0.04 * _bump(x, 0.1, 0.6)
    floor += 0.02 * _bump(math.log2(hp["width"]), 8, 1.2) + 0.02 * _bump(hp["depth"], 8, 4.0)
    floor += 0.03 * _bump(hp["dropout"], 0.2, 0.2) + 0.008 * _normal(hp, "seg")
    blank = _sigmoid((4 + 10 * _unit(hp, "background") - moved) / 2)
    loss = floor + (0.75 - floor) / (1 + moved / 10) + 0.45 * blank + 0.5 * math.exp(-moved)
    heat = 0.07 * 10 ** (0.5 * x) * _scale(hp, step)
    return loss + heat * math.exp(random.gauss(0.0, 0.4)) + random.gauss(0.0, 0.006), seconds


def fine_tuning(hp: dict, step: int, random: Random) -> tuple[float, float]:
    """Accuracy in percent of a pretrained encoder on a two-class task whose larger class makes up 52.7%.

    A good run is nearly final after five to twenty steps (its warmup); the rest is slow gain and noise. Big models are
    better but up to four times slower, and more of their seeds never leave the majority class unless warmed up. Too
    hot a rate forgets the pretraining: up quickly, then down to 52.7.
    """
    x = _excess(hp, 1e-4)
    seconds = _seconds(hp, random, 0.55, 0.45, 0.25)
    if _unit(hp, "stuck") < _sigmoid(3 * (x - 0.6) + 0.35 * _size(hp) - 14 * hp["warmup"]):
        return 52.7 + random.choice([0.0, 0.0, 0.0, 0.2, -0.4, 0.7]), seconds
    moved = _moved(hp, step, x, 0.5) + 0.7 * _sigmoid(2 * (x + 1)) * min(1.0, step / 3)
    top = 80.5 + 1.6 * _size(hp) - 1.6 * _bump(x, 0.0, 0.6) - 1.2 * _bump(hp["dropout"], 0.1, 0.2)
    top -= 0.5 * _bump(_decay(hp), -2, 1.5) - 0.8 * _normal(hp, "tune")
    gain = 0.93 * (1 - math.exp(-moved / 1.2)) + 0.07 * (1 - math.exp(-moved / 60))
    forget = math.exp(-max(0.0, x - 0.45) * _travel(hp, step) / 25)
    value = 52.7 + (top - 52.7) * gain * forget + random.gauss(0.0, 0.55)
    return round(min(max(value, 40.0), 100.0) * 2.77) / 2.77, seconds


WORKLOADS: dict[str, tuple[Callable[[dict, int, Random], tuple[float, float]], str]] = {
    "image_classifier": (image_classifier, "max"),
    "cosine_transformer": (cosine_transformer, "min"),
    "language_model": (language_model, "min"),
    "small_data": (small_data, "min"),
    "reinforcement": (reinforcement, "max"),
    "grokking": (grokking, "max"),
    "tabular": (tabular, "max"),
    "gan_fid": (gan_fid, "min"),
    "segmentation": (segmentation, "min"),
    "fine_tuning": (fine_tuning, "max"),
}

"""The panels below or beside the table: an overview, curves, one trial, and decisions. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from rich.text import Text

from gpusched.dashboard import devices, marks
from gpusched.dashboard.marks import QUIET, DrawnCurve, Points, chart, clicking, styled
from gpusched.dashboard.model import DeviceRow, Standing, TrialRow
from gpusched.text import (
    clean,
    count,
    hparam_texts,
    sentence,
    show_clock,
    show_duration,
    show_metric,
)


def overview(view: Standing, width: int, rows: int) -> list[Text]:
    """Compose devices, rungs and the last decisions, the newest first; in little room the rungs are one line."""
    lines: list[Text] = []
    has_rungs = any(rung.count for rung in view.rungs)
    if any(device.utilisation is not None for device in view.devices) and rows >= 12:
        drawn, room = devices.lines(view, width), rows // 3
        if len(drawn) > room:
            drawn[room - 1 :] = [styled(f"and {len(drawn) - room + 1} more", QUIET)]
        lines += [marks.heading("devices", width), *drawn, Text()]
    if has_rungs and rows >= 12:
        lines += [marks.heading("rungs", width), *rungs(view, width)[: rows // 3], Text()]
    elif has_rungs:
        lines.append(rungs_line(view))
    notes = styled(" · ".join(view.notes), "cyan")
    if notes and notes.cell_len + len("── decisions ── ──") + 2 > width:
        lines.append(marks.heading("decisions", width))
        lines += [marks.fit(styled(note, "cyan"), width) for note in view.notes]
    else:
        lines.append(marks.heading("decisions", width, notes))
    recent = decisions(view, (), 1000)[::-1][: max(1, rows - len(lines))]
    return [*lines, *(marks.fit(line.copy(), width) for line in recent)]


# ---------------------------------------------------------------- rungs


def _cutoff(view: Standing, cutoff: float | None) -> str:
    better = "≥" if view.mode == "max" else "≤"
    return "-" if cutoff is None else f"{better} {show_metric(cutoff)}"


def rungs_line(view: Standing) -> Text:
    """Put all rungs in one line: ``rungs  1: 12 ≥ 0.8712   4: 5 ≥ 0.9401``."""
    line, gap = styled("rungs", QUIET), "  "
    for rung in view.rungs:
        if rung.count:
            line.append(gap).append(f"{rung.milestone}: ", QUIET).append(str(rung.count))
            gap = "   "
            if rung.cutoff is not None:
                line.append(f" {_cutoff(view, rung.cutoff)}", "cyan")
    return line


def rungs(view: Standing, width: int) -> list[Text]:
    """Draw a ladder, the highest rung on top: how many trials came, how many wait there, and the cut-off."""
    lines = [styled("  step  trials  waiting     kept if", QUIET)]
    most = max((rung.count for rung in view.rungs), default=1)
    for rung in reversed(view.rungs):
        line = styled(f"{rung.milestone:>6}  ", "bold" if rung.count else QUIET)
        if rung.count:
            line.append(f"{rung.count:>6}  ")
            line.append(f"{rung.waiting or '-':>7}  ", "blue" if rung.waiting else QUIET)
            line.append(f"{_cutoff(view, rung.cutoff):>10}  ", "cyan")
            parts = [(rung.count - rung.waiting, "green"), (rung.waiting, "blue")]
            line.append_text(marks.stacked(parts, most, min(24, width - line.cell_len)))
        else:
            line.append(f"{'-':>6}", QUIET)
        lines.append(line)
    return lines


# ---------------------------------------------------------------- decisions


def decisions(view: Standing, history: Sequence[tuple[float, str]], width: int) -> list[Text]:
    """Word the decisions, the newest last, wrapped. ``history``: all since the beginning, where they are known."""
    told = list(history) or [
        (decision.at, sentence(decision.trial, decision.text)) for decision in view.decisions
    ]
    column = max((len(show_clock(at)) for at, _ in told[-1:]), default=0)
    found = (_decision(at, _by_name(text, view.devices), column, width) for at, text in told)
    return [line for lines in found for line in lines] or [styled("none yet", QUIET)]


@lru_cache(maxsize=1 << 14)
def _decision(at: float, text: str, column: int, width: int) -> tuple[Text, ...]:
    """Word one decision; kept, as all but the last few are the same from one frame to the next."""
    told, indent = f"{show_clock(at):>{column}}  {text.replace('->', '→')}", " " * (column + 2)
    lines = [Text(part) for part in textwrap.wrap(told, width, subsequent_indent=indent)]
    lines[0].stylize(QUIET, 0, column)
    word, _, rest = text.partition(" ")
    number = rest.partition(" ")[0].rstrip(":")
    if word == "trial" and number.isdecimal():
        lines[0].stylize("bold", column + 2, column + 2 + len(f"trial {number}"))
        for line in lines:
            clicking(line, f"choose({number})")
    return tuple(lines)


def _by_name(text: str, known: Sequence[DeviceRow]) -> str:
    """Name a GPU as on the screen, once, instead of by its UUID."""
    for device in known:
        if device.id in text and (name := devices.name_of(device)) != device.id:
            named = text.replace(device.id, name)
            named = named.replace(f"quarantined: {name}: ", "quarantined: ")
            return named.replace(f"quarantined: {devices.gpu_of(device)}: ", "quarantined: ")
    return text


# ---------------------------------------------------------------- curves


def curves(
    view: Standing,
    selected: int | None,
    width: int,
    rows: int,
    timed: Mapping[int, Points] | None = None,
) -> list[Text]:
    """Draw every trial's metric over its steps, or where ``timed`` is given over time; the selected one on top."""
    on_top = view.trial(selected) or view.trial(view.best.trial if view.best else None)
    lines = []
    for trial in sorted(view.trials, key=lambda trial: (trial is on_top, trial.is_live)):
        points = _by_step(trial) if timed is None else timed.get(trial.id, ())
        style = "bold yellow" if trial is on_top else marks.CURVE if trial.is_live else marks.LINE
        lines.append(DrawnCurve(points, style))
    title = styled(f"{view.metric} over {'steps' if timed is None else 'time'}", "bold")
    if on_top is not None:
        title.append(f"  trial {on_top.id}", "bold yellow")
        title.append(f" of {len(view.trials)}, now {show_metric(on_top.metric)}", QUIET)
    words = (lambda step: f"step {step:.0f}") if timed is None else show_clock
    return [title, *chart(lines, width, rows - 1, words)]


def _by_step(trial: TrialRow) -> Points:
    """Return (step, metric); a view's curve is evenly spaced over the reports."""
    last = max(1, len(trial.curve) - 1)
    first = 1 if len(trial.curve) > 1 else trial.step
    return tuple(
        (first + (trial.step - first) * place / last, value)
        for place, value in enumerate(trial.curve)
    )


# ---------------------------------------------------------------- one trial


def detail(view: Standing, trial: TrialRow | None, story: Sequence[str], width: int) -> list[Text]:
    """Compose one trial in full, with the story that ``explain`` tells, or until that comes the last decisions."""
    if trial is None:
        return [styled("select a trial with ↑ and ↓, or click it", QUIET)]
    lines = [_title(trial)]
    if trial.error:
        lines += [styled(part, "bold red") for part in _paragraph(trial.error, width)]
    lines += _wrapped(_facts(view, trial), width)
    hparams = _wrapped((f"{name}={value}" for name, value in hparam_texts(trial.hparams)), width)
    for line in hparams:
        line.highlight_regex(r"(?:^|(?<=   ))[^= ]+=", QUIET)
    told = story or [f"{show_clock(d.at)}  {d.text}" for d in view.decisions if d.trial == trial.id]
    told = [part for text in told if text for part in _paragraph(text, width)]
    return [*lines, *hparams, marks.heading("story", width), *map(Text, told)]


def _title(trial: TrialRow) -> Text:
    glyph, style = marks.state_of(trial.state)
    line = styled(f"trial {trial.id}  ", "bold").append(f"{glyph} {trial.state}", style)
    if trial.atoms:
        line.append(f" on {count(trial.atoms, 'atom')}")
    if trial.incarnation:
        line.append(f", launch {trial.incarnation}", QUIET)
    if trial.held_by_user:
        line.append(", held by the user", "yellow")
    return line


def _facts(view: Standing, trial: TrialRow) -> Iterator[str]:
    yield f"step {trial.step}"
    if trial.metric is not None:
        yield f"{view.metric} {show_metric(trial.metric)}"
    elif trial.step:
        yield f"{view.metric} is not a number"
    if trial.best_metric is not None and trial.best_step != trial.step:
        yield f"best {show_metric(trial.best_metric)} at step {trial.best_step}"
    for name, value in trial.metrics.items():
        if name != view.metric:
            yield f"{name} {value if isinstance(value, str) else show_metric(float(value))}"
    if trial.step_time_s is not None:
        yield f"{show_duration(trial.step_time_s)} a step"
    if trial.training_s:
        yield f"{show_duration(trial.training_s)} of training"
    if trial.saved_step:
        age = "" if trial.saved_age_s is None else f", {show_duration(trial.saved_age_s)} ago"
        yield f"saved at step {trial.saved_step}{age}"
    held = [d.id for d in view.devices if d.trial == trial.id and d.state == "held"]
    if held:
        yield "on " + " ".join(held[:8]) + (" .." if len(held) > 8 else "")
    if trial.after:
        yield f"then: {trial.after}"


def _wrapped(items: Iterator[str], width: int) -> list[Text]:
    """Join items three blanks apart, over as many lines as they need."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + 3 + len(item) <= width:
            lines[-1] += f"   {item}"
        else:
            lines.append(item)
    return [Text(line) for line in lines]


def _paragraph(text: str, width: int) -> list[str]:
    text = clean(text).replace("->", "→")
    return textwrap.wrap(text, max(20, width), subsequent_indent="    ") or [""]

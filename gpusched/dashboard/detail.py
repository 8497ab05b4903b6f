"""One trial in full (configuration, reports, story), and the help. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from gpusched.dashboard import marks
from gpusched.dashboard.header import block
from gpusched.dashboard.marks import QUIET, styled
from gpusched.dashboard.model import DeviceView, TrialView, View
from gpusched.text import clean, count, hparam_texts, show_clock, show_duration, show_metric


def detail(view: View, trial: TrialView | None, story: Sequence[str], width: int) -> list[Text]:
    """Compose one trial in full; its story is what ``explain`` tells, or while that is awaited the last decisions."""
    if trial is None:
        return [styled("select a trial with ↑ and ↓, or click it", QUIET)]
    lines = [_title(trial)]
    if trial.error:
        lines += [styled(part, "bold red") for part in _paragraph(trial.error, width)]
    lines += _wrapped(list(_facts(view, trial)), width)
    hparams = _wrapped([f"{name}={value}" for name, value in hparam_texts(trial.hparams)], width)
    for line in hparams:
        line.highlight_regex(r"(?:^|(?<=   ))[^= ]+=", QUIET)
    lines += [*hparams, marks.heading("story", width)]
    told = story or [
        f"{show_clock(decision.at)}  {decision.text}"
        for decision in view.decisions
        if decision.trial == trial.id
    ]
    return lines + [Text(part) for text in told if text for part in _paragraph(text, width)]


def _title(trial: TrialView) -> Text:
    glyph, style = marks.state_of(trial.state)
    line = styled(f"trial {trial.id}  ", "bold").append(f"{glyph} {trial.state}", style)
    if trial.atoms:
        line.append(f" on {count(trial.atoms, 'atom')}")
    if trial.incarnation:
        line.append(f", launch {trial.incarnation}", QUIET)
    if trial.held_by_user:
        line.append(", held by the user", "yellow")
    return line


def _facts(view: View, trial: TrialView) -> Iterator[str]:
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


def _wrapped(items: list[str], width: int) -> list[Text]:
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


# ---------------------------------------------------------------- help


def help_lines(keys: Sequence[tuple[str, str]], width: int) -> list[Text]:
    """List the keys and the meaning of the glyphs."""
    column = max(len(key) for key, _ in keys) + 2
    lines = []
    for key, what in keys:
        parts = textwrap.wrap(what, max(10, width - column - 2))
        lines.append(styled(f"  {key:<{column}}", "cyan").append(parts[0]))
        lines += [Text(" " * (column + 2) + part) for part in parts[1:]]
    lines.append(marks.heading("trials", width))
    row = Text(" ")
    for state, (glyph, style) in marks.TRIAL.items():
        if row.cell_len + 13 > width:
            lines.append(row)
            row = Text(" ")
        row.append(f" {glyph} {state:<10}", style)
    lines += [row, marks.heading("atoms", width)]
    meanings = {
        "held": "held by trial 7",
        "free": "free",
        "draining": "trial 7 has left it, its release is being confirmed",
        "quarantined": "not used until it is readmitted ('gpusched gpus --readmit')",
    }
    for state, meaning in meanings.items():
        drawn = block(DeviceView(id="", state=state, trial=7), 7, {7: "color(110)"})
        lines.append(Text("  ").append_text(drawn).append(f"  {meaning}"))
    return lines

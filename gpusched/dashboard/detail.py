"""One trial in full (configuration, reports, curve, story, end of its log), and the help."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.text import Text

from gpusched.dashboard import marks
from gpusched.dashboard.header import block
from gpusched.dashboard.marks import QUIET, styled
from gpusched.dashboard.model import DeviceView, TrialView, View
from gpusched.dashboard.ui import KEYS, Detail, UiState
from gpusched.text import clean, count, hparam_texts, show_clock, show_duration, show_metric


def detail(view: View, trial: TrialView | None, extra: Detail, width: int, rows: int) -> list[Text]:
    """Compose at most ``rows`` lines; the curve, the story and the log share the rows that the facts leave."""
    if trial is None:
        return [marks.heading("trial", width), styled("select a trial with ↑ and ↓", QUIET)]
    lines = [marks.rule(_title(trial), Text(), width)]
    if trial.error:
        lines.append(styled(trial.error, "bold red"))
    lines += _wrapped(list(_facts(view, trial)), width, 5)
    lines += _hparams(trial, width)
    left = rows - len(lines)
    if left >= 12 and len(trial.curve) > 1:
        lines += curve(trial, width, min(9, left // 4))
    lines += _story_and_log(view, trial, extra, width, rows - len(lines))
    return lines[:rows]


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


def _wrapped(items: list[str], width: int, rows: int) -> list[Text]:
    """Join items three blanks apart, over at most ``rows`` lines."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + 3 + len(item) <= width:
            lines[-1] += f"   {item}"
        else:
            lines.append(item)
    return [Text(line) for line in lines[:rows]]


def _hparams(trial: TrialView, width: int) -> list[Text]:
    lines = _wrapped([f"{name}={value}" for name, value in hparam_texts(trial.hparams)], width, 4)
    for line in lines:
        line.highlight_regex(r"(?:^|(?<=   ))[^= ]+=", QUIET)
    return lines


def curve(trial: TrialView, width: int, rows: int) -> list[Text]:
    """Draw a chart with the range at its left and the steps below."""
    known = [point for point in trial.curve if point is not None]
    if not known or rows < 2:
        return []
    high, low = show_metric(max(known)), show_metric(min(known))
    margin = max(len(high), len(low))
    lines = []
    for place, drawn in enumerate(marks.chart(trial.curve, max(1, width - margin - 2), rows)):
        mark = high if place == 0 else low if place == rows - 1 else ""
        lines.append(styled(f"{mark:>{margin}} │", QUIET).append_text(drawn))
    last = f"step {trial.step}"
    room = max(1, width - margin - 2 - len("1") - len(last))
    lines.append(styled(f"{'':>{margin + 2}}1{'':>{room}}{last}", QUIET))
    return lines


def _story_and_log(
    view: View, trial: TrialView, extra: Detail, width: int, rows: int
) -> list[Text]:
    """Give half the rows to each, more to one if the other needs less; each opens with a rule."""
    why, story = _told(view, trial, extra, width)
    wanted = len(why) + len(story) + 1
    for_log = min(len(extra.log) + 1, max(rows // 2, rows - wanted)) if extra.log else 0
    for_story = min(rows - for_log, wanted)
    lines: list[Text] = []
    if why + story and for_story >= 2:
        lines.append(marks.heading("story", width))
        shown = why[: for_story - 1]
        room = for_story - 1 - len(shown)
        lines += [Text(text) for text in [*shown, *story[max(0, len(story) - room) :]]]
    if extra.log and rows - len(lines) >= 2:
        name = styled("log ", "bold").append(extra.log_name, QUIET)
        lines.append(marks.rule(name, Text(), width))
        room = rows - len(lines)
        lines += [Text(text) for text in extra.log[-room:]]
    return lines


def _told(view: View, trial: TrialView, extra: Detail, width: int) -> tuple[list[str], list[str]]:
    """Split a story into why the trial is where it is (up to the first blank line of ``explain``) and what happened.

    While that is not there (yet): what the view's decisions say of it.
    """
    if not extra.story:
        return [], [
            part for text in _from_decisions(view, trial) for part in _paragraph(text, width)
        ]
    told = list(extra.story)
    end = told.index("") if "" in told else 0
    why = [part for text in told[:end] for part in _paragraph(text, width)]
    events = (text for text in told[end:] if text and not text.endswith("story:"))
    return why, [part for text in events for part in _paragraph(text, width)]


def _paragraph(text: str, width: int) -> list[str]:
    text = clean(text).replace("->", "→")
    return textwrap.wrap(text, max(20, width), subsequent_indent="    ") or [""]


def _from_decisions(view: View, trial: TrialView) -> list[str]:
    """While the whole story is not there (yet): what the view's decisions say of it."""
    decisions = (decision for decision in view.decisions if decision.trial == trial.id)
    return [f"{show_clock(decision.at)}  {decision.text}" for decision in decisions]


# ---------------------------------------------------------------- help


def help_lines(view: View, ui: UiState, width: int) -> list[Text]:
    """List the keys and the meaning of the glyphs."""
    keys = [*KEYS, ("Ctrl-C", ui.interrupt)] if ui.interrupt else [*KEYS]
    column = max(len(key) for key, _ in keys) + 2
    lines = [marks.heading("keys", width)]
    lines += [styled(f"  {key:<{column}}", "cyan").append(what) for key, what in keys]
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
        device = DeviceView(id="", state=state, trial=7)
        drawn = block(device, 7, {7: "color(110)"})
        lines.append(Text("  ").append_text(drawn).append(f"  {meaning}"))
    return lines

"""The top of the screen: what runs, how long still, how good so far, and which trial holds which atom. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from rich.text import Text

from gpusched.dashboard import marks, panels
from gpusched.dashboard.marks import QUIET, clicking, fit, styled
from gpusched.dashboard.model import LIVE, DeviceView, View
from gpusched.text import count, show_clock, show_duration, show_hparams, show_metric

LABEL = "atoms  "


def top(view: View, width: int, height: int, away_s: float | None = None) -> list[Text]:
    """Compose the header and the strip of atoms for a screen of this size. ``away_s``: silence of the daemon."""
    rows = 4 if height >= 20 else 3 if height >= 14 else 2
    lines = [marks.beside(_title(view, width), _standing(view, away_s), width)]
    if rows >= 3:
        lines.append(_progress(view, width, away_s))
    best, counts = _best(view, width), _counts(view)
    if best.cell_len + counts.cell_len + 3 <= width:
        lines.append(marks.beside(best, counts, width))
    else:
        lines += [best, counts] if rows >= 4 else [best]
    lines += atoms(view, width, rows=2 if height < 20 else 4 if height < 36 else 7)
    return [fit(line, width) for line in lines]


def _title(view: View, width: int) -> Text:
    title = styled(view.experiment, "bold")
    if width >= 60:
        title.append(f"  {view.policy}", "cyan")
    if width >= 100:
        title.append(f" on {count(view.atoms.total, 'atom')}", QUIET)
    return title


def _standing(view: View, away_s: float | None) -> Text:
    glyph, style = marks.EXPERIMENT.get(view.state, marks.UNKNOWN)
    if away_s is not None and not view.is_over:
        ago = show_duration(away_s)
        return styled(f"{glyph} daemon is away, last seen {ago} ago", "bold yellow")
    line = styled(f"{glyph} {view.state}", style)
    if view.state in ("running", "starting"):
        line.append(f"  {clock_left(view, away_s)}", "bold")
    elif view.ending:
        line.append(f": {view.ending}", style)
    return line


def time_left_s(view: View, away_s: float | None = None) -> float:
    """Return the time left; the clock runs on while the daemon is silent."""
    return max(0.0, view.time_left_s - (away_s or 0.0))


def clock_left(view: View, away_s: float | None = None) -> str:
    """Word the time left: ``0:41 left``."""
    return f"{show_clock(math.ceil(time_left_s(view, away_s)))} left"


def _progress(view: View, width: int, away_s: float | None) -> Text:
    over = view.is_over or view.state == "interrupted"
    passed_s = view.deadline_s - (view.time_left_s if over else time_left_s(view, away_s))
    share = passed_s / view.deadline_s if view.deadline_s > 0 else 1.0
    end = f" {show_clock(passed_s)} of {show_clock(view.deadline_s)}"
    style = "green" if share < 0.9 or over else "yellow"
    return marks.bar(share, max(4, width - len(end)), style).append(end, QUIET)


def _best(view: View, width: int) -> Text:
    line = styled("best   ", QUIET)
    best = view.best
    if best is None:
        return line.append("no model saved yet", QUIET)
    line.append(f"{view.metric} ").append(show_metric(best.metric), "bold green")
    line.append_text(
        clicking(Text(f"  trial {best.trial} at step {best.step}"), f"choose({best.trial})")
    )
    if width >= 120 and best.hparams:
        line.append(f"  {show_hparams(best.hparams)}", QUIET)
    return line


def _counts(view: View) -> Text:
    """``23 trials: 4 live, 17 paused, 1 failed``; a click on a count shows these trials alone."""
    counts = dict(view.trial_counts)
    live = sum(counts.pop(state, 0) for state in (*LIVE, "pending"))
    parts = {"live": (live, "green")} | {
        state: (number, marks.state_of(state)[1]) for state, number in counts.items()
    }
    line = clicking(styled(count(view.trials_total, "trial"), ""), "filter('')")
    for place, (state, (number, style)) in enumerate((s, p) for s, p in parts.items() if p[0]):
        part = clicking(styled(f"{number} {state}", style), f"filter('{state}')")
        line.append(": " if place == 0 else ", ").append_text(part)
    return line


# ---------------------------------------------------------------- atoms


def atoms(view: View, width: int, *, rows: int) -> list[Text]:
    """Draw blocks in the atoms' fixed order, named by their trial; below them why an atom cannot be used."""
    label = LABEL if width >= 60 else ""
    if not view.devices:
        return [styled(f"{label}waiting for the devices", QUIET)]
    room = width - len(label)
    strips = list(_strips(view, room, max(1, rows - 1)))
    counts = _atom_counts(view)
    if len(strips) == 1 and strips[0].cell_len + counts.cell_len + 2 <= room:
        strips[0].append("  ").append_text(counts)
    strips += _troubles(view, rows - len(strips))
    heads = [label, *(" " * len(label) for _ in strips)]
    return [
        styled(head, QUIET).append_text(strip) for head, strip in zip(heads, strips, strict=False)
    ]


def _troubles(view: View, rows: int) -> list[Text]:
    """Word quarantined atoms first, then those that somebody does not let go; equal reasons in one line."""
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for device in sorted(view.devices, key=lambda device: device.state != "quarantined"):
        if device.state == "quarantined" or device.stuck:
            names = reasons.setdefault((*panels.trouble(device), device.state), [])
            names.append(panels.name_of(device))
    lines = []
    for (said, reason, state), names in list(reasons.items())[: max(0, rows)]:
        more = f" and {len(names) - 4} more" if names[4:] else ""
        line = styled(" ".join(names[:4]) + more, "bold")
        lines.append(line.append(f" {said}: {reason}", marks.DEVICE.get(state, marks.UNKNOWN)[1]))
    return lines


def _atom_counts(view: View) -> Text:
    """``2 held, 1 draining after trial 7``."""
    counts = view.atoms
    if counts.held == counts.total:
        return styled(f"all {counts.total} held" if counts.total > 1 else "held", QUIET)
    line = Text()
    for name in ("held", "free", "draining", "quarantined"):
        number = getattr(counts, name)
        if not number:
            continue
        style = QUIET if name in ("held", "free") else marks.DEVICE[name][1]
        line.append(", " if line else "", QUIET).append(f"{number} {name}", style)
        left = {device.trial for device in view.devices if device.state == "draining"}
        if name == "draining" and (known := sorted(t for t in left if t is not None)[:3]):
            line.append(f" after trial {', '.join(map(str, known))}", style)
    return line


def _strips(view: View, width: int, rows: int) -> Iterator[Text]:
    """Draw the atoms' blocks, wrapped over several rows, or count atoms in words where the rows do not do."""
    devices, colours = view.devices, marks.colours(view)
    least = max(len(_label(device)) for device in devices) + 2
    cell = max(least, min(least + 4, width // len(devices)))
    across = width // cell
    if across < 1 or -(-len(devices) // across) > rows:
        yield _in_words(view)
        return
    for start in range(0, len(devices), across):
        line = Text()
        for _, run in groupby(devices[start : start + across], key=_kind):
            members = list(run)
            line.append_text(block(members[0], cell * len(members), colours))
        yield line


def _kind(device: DeviceView) -> tuple[str, int | None]:
    return device.state, device.trial if device.state in ("held", "draining") else None


def _label(device: DeviceView) -> str:
    if device.state in ("held", "draining"):
        return "?" if device.trial is None else str(device.trial)
    return {"free": "·", "quarantined": "✗"}.get(device.state, "?")


def block(device: DeviceView, width: int, colours: dict[int, str]) -> Text:
    """``[  7  ]``; hatched while it drains, crossed out in quarantine. A click chooses the trial."""
    label = _label(device)
    if width >= len(label) + 4:
        label = f" {label} "
    if device.state == "held":
        colour = colours.get(device.trial if device.trial is not None else -1, QUIET)
        line = styled("[", colour).append(label.center(width - 2), f"black on {colour}")
        line.append("]", colour)
    else:
        fill, style = marks.DEVICE.get(device.state, (" ", marks.UNKNOWN[1]))
        # Too narrow for the filling between the brackets: then it takes their place.
        left, right = "[]" if width - 2 > len(label) or not fill.strip() else (fill, fill)
        line = styled(left + label.center(width - 2, fill) + right, style)
    return line if device.trial is None else clicking(line, f"choose({device.trial})")


def _in_words(view: View) -> Text:
    """``trial 7 ×12, trial 12 ×4, 48 trials ×1``: for more atoms than there is room."""
    sizes = Counter(device.trial for device in view.devices if device.state == "held")
    parts = [f"trial {trial} ×{size}" for trial, size in sizes.most_common() if size > 1]
    single = sum(1 for size in sizes.values() if size == 1)
    if single:
        parts.append(f"{count(single, 'trial')} ×1")
    return Text(", ".join(parts) or "nobody holds any")

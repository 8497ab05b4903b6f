"""Words for idle atoms: which, since when and why, and at the end where the time of all atoms went. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpusched.dashboard.model import Standing
from gpusched.text import count, show_duration

#: Names of atoms, and reasons, that are written out.
MOST = 4


def now(view: Standing) -> Iterator[str]:
    """Word each group of idle atoms: ``GPU 2, GPU 3 idle for 12 s: quarantined (held by pid 311)``."""
    names = {device.id: device.name for device in view.devices}
    for row in view.idle:
        shown = [names.get(device, device) for device in row.devices[:MOST]]
        more = f" and {len(row.devices) - MOST} more" if row.devices[MOST:] else ""
        detail = row.detail.removeprefix(f"{shown[0]}: ") if shown else row.detail
        detail = f" ({detail})" if detail else ""
        yield f"{', '.join(shown)}{more} idle for {show_duration(row.idle_s)}: {row.reason}{detail}"


def spent(view: Standing) -> Iterator[str]:
    """Word the share of all atoms' time that was idle, and its reasons, the dearest first; not below one percent."""
    all_s = view.atoms.total * view.now_s
    reasons = sorted(view.idle_atom_s.items(), key=lambda item: -item[1])
    idle_s = sum(cost_s for _, cost_s in reasons)
    if not all_s or idle_s < 0.01 * all_s:
        return
    atoms = count(view.atoms.total, "atom")
    yield f"{idle_s / all_s:.0%} of the time of {atoms} was idle, {show_duration(idle_s)} in all:"
    for reason, cost_s in reasons[:MOST]:
        if cost_s >= 0.01 * all_s:
            yield f"  {cost_s / all_s:4.0%}  {reason}"

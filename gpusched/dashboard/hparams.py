"""Hyperparameters in the table: a column each, so that numbers stand under numbers and names are written once.

Only those that differ between trials are shown; as many columns as there is room for, in the recipe's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from gpusched.dashboard.marks import QUIET, fit, styled
from gpusched.dashboard.model import TrialView
from gpusched.text import clean, hparam_texts

GAP = 2
NAME_MOST, VALUE_MOST = 12, 12


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    title: str
    cells: int
    numeric: bool


class HparamColumns:
    """Made for the trials of one table."""

    def __init__(self, trials: Sequence[TrialView]) -> None:
        self._values = {trial.id: dict(hparam_texts(trial.hparams)) for trial in trials}
        names = list(dict.fromkeys(name for found in self._values.values() for name in found))
        if len(trials) > 1:
            differing = [name for name in names if self._differs(name)]
            names = differing or names
        self._parts = [self._part(name, names) for name in names]
        self.most = self.needed(len(self._parts))
        if any(trial.error for trial in trials):
            self.most = max(self.most, 60)

    def _differs(self, name: str) -> bool:
        return len({found.get(name) for found in self._values.values()}) > 1

    def _part(self, name: str, names: Sequence[str]) -> _Part:
        short = name.rpartition(".")[2]
        if sum(other.rpartition(".")[2] == short for other in names) > 1:
            short = name
        title = clean(short, NAME_MOST)
        values = [found[name] for found in self._values.values() if name in found]
        widest = max([cell_len(title), *(cell_len(value) for value in values)])
        numeric = all(_is_number(value) for value in values)
        return _Part(name, title, min(widest, max(VALUE_MOST, cell_len(title))), numeric)

    def needed(self, count: int) -> int:
        """Cells for the first ``count`` of them."""
        count = min(count, len(self._parts))
        return sum(part.cells + GAP for part in self._parts[:count]) - GAP if count else 0

    def _that_fit(self, cells: int) -> Sequence[_Part]:
        count = len(self._parts)
        while count > 1 and self.needed(count) > cells:
            count -= 1
        return self._parts[:count]

    def title(self, cells: int) -> str:
        parts = self._that_fit(cells)
        return (" " * GAP).join(_placed(part.title, part) for part in parts).rstrip()

    def cell(self, trial: TrialView, cells: int) -> Text:
        """The values; of a failed trial what made it fail."""
        if trial.error:
            return styled(trial.error, "red")
        values = self._values[trial.id]
        parts = self._that_fit(cells)
        line = (" " * GAP).join(_placed(values.get(part.name, ""), part) for part in parts)
        return styled(line.rstrip(), QUIET)


def _placed(text: str, part: _Part) -> str:
    text = fit(Text(text), part.cells).plain
    padding = " " * (part.cells - cell_len(text))
    return padding + text if part.numeric else text + padding


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

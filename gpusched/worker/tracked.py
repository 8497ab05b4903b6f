"""Forms in which a script's plain values and its objects without ``state_dict`` go into a checkpoint."""

from __future__ import annotations

import pickle
from typing import Any

STATE_NAME = "trial.state"
"""Name under which a checkpoint holds ``trial.state``."""


class PlainState(dict[str, Any]):
    """A dictionary of plain values that is saved with every checkpoint: counters, running means, what was logged last.

    Values are numbers, strings, None, lists, tuples, sets, dictionaries, numpy arrays or tensors; anything else raises
    TypeError when a checkpoint is saved, and the message says which.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the values as they are now."""
        return dict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take saved values over; names that the script has set before and the checkpoint lacks stay."""
        self.update(state)


class Pickled:
    """An object without ``state_dict`` that ``trial.track`` saves as a pickle. See ``gpusched.pickled``."""

    def __init__(self, value: Any) -> None:
        self.value = value
        if not (hasattr(value, "__dict__") or hasattr(type(value), "__setstate__")):
            raise TypeError(
                f"gpusched.pickled takes an object whose state can be put back into it; a {type(value).__name__} has "
                f"no __dict__: keep it in trial.state, or in an attribute of an object of your own"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the pickled state of the object, and its type's name."""
        state = self.value.__reduce_ex__(2)[2:3] or (None,)
        return {"type": _name_of(self.value), "pickle": pickle.dumps(state[0], protocol=5)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put a saved state back into the object, in place.

        Raises:
            ValueError: The state is of an object of another type.
        """
        if state["type"] != _name_of(self.value):
            raise ValueError(f"it was a {state['type']}, and is a {_name_of(self.value)} now")
        found = pickle.loads(state["pickle"])
        if hasattr(type(self.value), "__setstate__"):
            self.value.__setstate__(found)
            return
        attributes, slots = found if isinstance(found, tuple) else (found, None)
        vars(self.value).clear()
        vars(self.value).update(attributes or {})
        for name, entry in (slots or {}).items():
            setattr(self.value, name, entry)


def _name_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"

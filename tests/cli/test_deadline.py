"""``gpusched deadline``: how WHEN is read."""

from __future__ import annotations

import pytest

from gpusched.cli.steering import when as read
from gpusched.errors import InputError


def test_more_or_from_now_on() -> None:
    assert read("+30m") == {"add_s": 1800.0}
    assert read("45m") == {"in_s": 2700.0}
    assert 0 < read("18:30")["in_s"] <= 25 * 3600


@pytest.mark.parametrize("when", ["", "+", "soon", "+-5m", "2020-01-01 08:00", "+18:30"])
def test_what_it_is_not(when: str) -> None:
    with pytest.raises(InputError):
        read(when)

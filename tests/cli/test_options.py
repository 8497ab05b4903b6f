"""How values of options are read: ``deadline WHEN``, ``profile --sizes``."""

from __future__ import annotations

import pytest

from gpusched.cli import main
from gpusched.cli.common import numbers
from gpusched.cli.steering import when
from gpusched.errors import InputError


def test_more_time_or_a_time_from_now_on() -> None:
    assert (when("+30m"), when("45m")) == ({"add_s": 1800.0}, {"in_s": 2700.0})
    assert 0 < when("18:30")["in_s"] <= 25 * 3600


@pytest.mark.parametrize("text", ["", "+", "soon", "+-5m", "2020-01-01 08:00", "+18:30"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(InputError, match=r"or \+30m for half an hour more"):
        when(text)


@pytest.mark.parametrize("text", ["", "1,x", "0", "-1,2", "1;2", "1.5"])
def test_numbers_of_atoms(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert numbers("1,2, 4") == [1, 2, 4]
    assert main(["profile", "missing.yaml", f"--sizes={text}"]) == 2
    assert f"numbers of atoms such as 1,2,4, not {text!r}" in capsys.readouterr().err

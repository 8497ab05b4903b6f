"""``gpusched profile``: how ``--sizes`` is read."""

from __future__ import annotations

import pytest

from gpusched.cli import main
from gpusched.cli.profile import numbers


def test_numbers_of_atoms() -> None:
    assert numbers("1,2, 4") == [1, 2, 4]


@pytest.mark.parametrize("text", ["", "1,x", "0", "-1,2", "1;2", "1.5"])
def test_what_is_no_number_of_atoms_is_one_message(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "missing.yaml", f"--sizes={text}"]) == 2
    assert f"numbers of atoms such as 1,2,4, not {text!r}" in capsys.readouterr().err

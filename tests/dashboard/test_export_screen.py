"""``scripts/export_screen.py``: a screen of a simulated search, as SVG."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from tests.rig import run_python

ROOT = Path(__file__).resolve().parents[2]


def test_a_search_as_it_stood_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "screen.svg"
    size = ["--at", "12", "--columns", "100", "--rows", "30"]
    done = run_python("scripts/export_screen.py", *size, "--out", out, folder=ROOT)
    assert done.returncode == 0, done.stderr
    picture = ElementTree.parse(out)
    words = " ".join(text.text or "" for text in picture.iter("{http://www.w3.org/2000/svg}text"))
    words = words.replace("\xa0", " ")
    for part in ("digits (simulated)", "running", "0:12 of 1:00", "trial", "decisions"):
        assert part in words, part
    assert "url(http" not in out.read_text(), "a picture in a README loads nothing"

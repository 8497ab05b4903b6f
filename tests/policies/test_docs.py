"""``docs/policies.md`` names every policy and every option, and gives the defaults that are true."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from gpusched import policies

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "policies.md").read_text()


def section(name: str) -> str:
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"no section for {name}"
    return found[1]


@pytest.mark.parametrize("name", policies.names())
def test_every_option_is_explained(name: str) -> None:
    text = section(name)
    for option in dataclasses.fields(policies.options_type(name)):
        assert f"`{option.name}`" in text, f"{name}: {option.name}"


@pytest.mark.parametrize("name", policies.names())
def test_defaults_of_single_options_are_true(name: str) -> None:
    options = policies.options_type(name)()
    for names, given in re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", section(name), re.MULTILINE):
        keys = re.findall(r"`(\w+)`", names)
        values = [value.strip().strip("`") for value in given.split(",")]
        if len(keys) != len(values):
            continue
        for key, text in zip(keys, values, strict=True):
            true = getattr(options, key)
            if isinstance(true, bool):
                assert text == str(true).lower(), key
            elif isinstance(true, int | float):
                assert float(text) == true, key
            elif isinstance(true, str):
                assert text == true, key


def test_links_within_the_page_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lower()).strip().replace(" ", "-")
        for line in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= headings

"""JSON on the path of a report: compact and in ASCII, by an encoder and a decoder that are made once.

``json.dumps`` with options, and ``JSONEncoder.encode`` too, make the C encoder anew for each value, which costs more
than encoding a report. ``json.loads`` looks at bytes for their encoding, which is UTF-8 here.
"""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable
from typing import Any


def _encoder() -> Callable[[Any], str]:
    plain = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
    escape = json.encoder.encode_basestring_ascii
    try:
        make: Any = json.encoder.c_make_encoder  # type: ignore[attr-defined]
        chunks = make(None, plain.default, escape, None, ":", ",", False, False, False)
    except (AttributeError, TypeError):  # an interpreter that makes its encoder otherwise
        return plain.encode
    return lambda value: "".join(chunks(value, 0))


#: A value of dicts, lists, tuples, strings, finite numbers, truths and None as text. Raises TypeError, ValueError.
encode = _encoder()

_BLANKS = " \t\n\r"
_begin_of = json.JSONDecoder().raw_decode


def decode(text: str) -> Any:
    """Read the value of a text. Raises ValueError; RecursionError where values are nested too deeply."""
    text = text.strip(_BLANKS)
    value, end = _begin_of(text)
    if end != len(text):
        raise ValueError(f"no JSON from character {end} on")
    return value

"""YAML out: what the recipe's reader (``config_yaml``) reads back as exactly the same values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping


def write_yaml(data: Mapping[str, object], indent: str = "") -> str:
    """Maps in block style, everything else as JSON (which is YAML): reads back as exactly the same values."""
    lines = []
    for key, value in data.items():
        name = key if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key) else _json(key)
        if isinstance(value, Mapping) and value:
            lines.append(f"{indent}{name}:\n{write_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{name}: {_json(value)}\n")
    return "".join(lines)


def _json(value: object) -> str:
    """JSON, but a character beyond 16 bits is one YAML escape instead of JSON's two."""
    text = json.dumps(value, allow_nan=False, default=list)
    return re.sub(
        r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})",
        lambda pair: f"\\U{_code_point(int(pair[1], 16), int(pair[2], 16)):08x}",
        text,
    )


def _code_point(high: int, low: int) -> int:
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)

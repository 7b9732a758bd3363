"""JSON that every reader takes: numbers that are not finite become null."""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["json_text"]


def json_text(value: Any, *, indent: int = 2) -> str:
    """Write a document.

    Args:
        value: Dictionaries, lists and scalars.
        indent: Spaces of a level.

    Returns:
        The text.
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

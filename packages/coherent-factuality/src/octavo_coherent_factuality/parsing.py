"""Reading what language models write: JSON inside prose, LaTeX inside JSON, matrices, votes. Nothing is evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Int64
from octavo_core.errors import InvalidTypeError, InvalidValueError

__all__ = ["check_text", "check_texts", "json_values", "parse_claims", "parse_matrix", "parse_votes"]

_OPENING = {"{": "}", "[": "]"}
_MAX_LENGTH = 1_000_000
# LaTeX commands whose first letter makes a JSON escape (\n, \t, \b, \f, \r, \u) with the backslash before it.
_LATEX = re.compile(
    r"\\(?=(?:neq|neg|nabla|not(?:in)?|nmid|times|theta|tan|text\w*|tau|to|top|tfrac|triangle|frac|forall|beta|bar|"
    r"binom|bmod|begin|big\w*|boxed|bullet|bot|because|right\w*|rho|rangle|rceil|rfloor|root|underline|underbrace|"
    r"upsilon|uparrow)(?![a-z]))"
)
# Also \nu and \ne, which may be a line break and a symbol as well: "first\nu = 3".
_LATEX_OR_LINE = re.compile(_LATEX.pattern + r"|\\(?=n[eu](?![a-z]))")
# What speaks for LaTeX then: formulas, other commands, or a space before.
_HAS_LATEX = re.compile(_LATEX.pattern + r"|\$.*\$|[\s({]\\n[eu](?![a-z])", re.DOTALL)
_BAD_ESCAPE = re.compile(r"\\(?![\"\\/bfnrtu])|\\u(?![0-9a-fA-F]{4})")


def json_values(text: str) -> list[Any]:
    """Find the JSON objects and arrays in a text, outermost first.

    Prose around them, code fences, trailing commas and LaTeX with single backslashes are put up with. Brackets inside
    strings do not count.

    Args:
        text: What a model wrote.

    Returns:
        The values that can be read, in their order; those that cannot are left out.

    Raises:
        InvalidValueError: If the text has more than a million characters.
        InvalidTypeError: If it is no text.
    """
    check_text(text, "the text")
    if len(text) > _MAX_LENGTH:
        raise InvalidValueError(f"the text has {len(text):,} characters; at most {_MAX_LENGTH:,} are read")
    values = []
    position = 0
    # Brackets that are never closed would cost a scan to the end each: the work stays linear in the text.
    budget = 20 * len(text) + 100_000
    while position < len(text) and budget > 0:
        if text[position] in _OPENING:
            end = _balanced_end(text, position, position + budget)
            budget -= (end or len(text)) - position
            if end is not None:
                value = _loads(text[position:end])
                if value is not None:
                    values.append(value)
                    position = end
                    continue
        position += 1
    return values


def check_text(text: Any, what: str) -> None:
    """Check that something is a text.

    Args:
        text: What was given.
        what: Its name in the message.

    Raises:
        InvalidTypeError: If it is none.
    """
    if not isinstance(text, str):
        raise InvalidTypeError(f"{what} is a {type(text).__name__}; give a text")


def check_texts(texts: Any, what: str) -> list[str]:
    """Check that something is a list of texts, and not one text, whose letters would pass for a list.

    Args:
        texts: What was given.
        what: Its name in the message.

    Returns:
        The texts.

    Raises:
        InvalidTypeError: If it is none.
    """
    listed = list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str | bytes) else None
    if listed is None or not all(isinstance(text, str) for text in listed):
        raise InvalidTypeError(f"{what} are {str(texts)[:60]!r}; give a list of texts")
    return listed


def parse_claims(text: str, *, max_claims: int | None = None) -> list[tuple[str, float | None]]:
    """Read a list of claims with confidences from JSON lines, an array, or an object that holds one.

    Args:
        text: What a model wrote: objects with ``claim`` (or ``subclaim`` or ``text``) and, if known, ``confidence`` (or
            ``score``): from 0 to 1, a percentage such as "90%", or a number above 10 and up to 100, taken as one.
        max_claims: Claims beyond this number are left out.

    Returns:
        Texts with their confidences, ``None`` where it is missing or out of range.

    Raises:
        InvalidValueError: If there is no claim in it.
    """
    claims: list[tuple[str, float | None]] = []
    pending = list(reversed(json_values(_conclusion(text))))
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(reversed(value))
        elif isinstance(value, str) and value.strip():
            claims.append((value.strip(), None))
        elif isinstance(value, dict):
            name = next((n for n in ("claim", "subclaim", "text", "step") if isinstance(value.get(n), str)), None)
            if name is None:
                pending.extend(item for item in reversed(list(value.values())) if isinstance(item, list))
            elif value[name].strip():
                claims.append((value[name].strip(), _confidence(value)))
    if not claims:
        raise InvalidValueError(f"no claims in {text[:80]!r}; expected JSON objects with a field 'claim'")
    return claims[:max_claims]


def parse_matrix(text: str, num_claims: int) -> Int64[np.ndarray, "claims claims"]:
    """Read a square 0/1 matrix from what a model wrote.

    Of several matrices of this size the last one counts: a model that repeats an example, or thinks aloud, does so
    before it answers.

    Args:
        text: An array of rows with prose around it, an object that holds one, or lines of 0s and 1s. Entries are
            numbers, or true and false throughout.
        num_claims: Rows and columns expected.

    Returns:
        The matrix.

    Raises:
        InvalidValueError: If no matrix of this size is in it, e.g. because there are too many rows.
    """
    text = _conclusion(text)
    seen = []
    candidates = [
        value for found in json_values(text) for value in (found.values() if isinstance(found, dict) else [found])
    ]
    rows = [value for value in candidates if isinstance(value, list) and value and not isinstance(value[0], list)]
    lines = [re.findall(r"(?<![\d.])[01](?![\d.])", line) for line in text.splitlines()]
    lines = [
        [int(entry) for entry in found]
        for line, found in zip(text.splitlines(), lines, strict=True)
        if found and re.fullmatch(r"[\s01,;|\[\]]*", line)
    ]
    for candidate in [*reversed(candidates), rows, lines]:
        if not isinstance(candidate, list) or not candidate or not all(isinstance(row, list) for row in candidate):
            continue
        lengths = {len(row) for row in candidate}
        if len(candidate) != num_claims or lengths != {num_claims}:
            seen.append(f"{len(candidate)} rows of {'/'.join(map(str, sorted(lengths)))}")
            continue
        entries = [entry for row in candidate for entry in row]
        kinds = set(map(type, entries))
        if (kinds == {bool} or kinds <= {int, float}) and all(entry in (0, 1) for entry in entries):
            return np.array(candidate, np.int64)
        # An earlier matrix is not what the model means either.
        seen.append("entries other than 0 and 1")
        break
    found = f"; found {', '.join(dict.fromkeys(seen))}" if seen else ""
    raise InvalidValueError(f"no {num_claims} x {num_claims} matrix of 0 and 1 in {text[:80]!r}{found}")


def parse_votes(text: str, num_claims: int) -> Int64[np.ndarray, " claims"]:
    """Read which claims an alternative answer supports (+1), contradicts (-1) or does not touch (0).

    One bad entry costs that entry only; claims that are not mentioned count 0, numbers out of range are left out.

    Args:
        text: JSON lines or an array of objects with ``id`` (from 0) and ``score`` (or ``vote``).
        num_claims: Number of claims.

    Returns:
        One vote per claim.

    Raises:
        InvalidValueError: If there is no vote in it.
    """
    votes = np.zeros(num_claims, np.int64)
    found = False
    pending = list(json_values(_conclusion(text)))
    while pending:
        value = pending.pop(0)
        if isinstance(value, list):
            pending = [*value, *pending]
        elif isinstance(value, dict):
            numbers = {name: _number(entry) for name, entry in value.items()}
            index = next((numbers[n] for n in ("id", "claim", "index") if type(numbers.get(n)) is int), None)
            vote = next((numbers[n] for n in ("score", "vote", "support") if n in numbers), None)
            if index is None or type(vote) not in (int, float):
                pending = [*(item for item in value.values() if isinstance(item, list | dict)), *pending]
                continue
            if 0 <= index < num_claims and vote in (-1, 0, 1):
                votes[index] = int(vote)
                found = True
    if not found:
        raise InvalidValueError(f"no votes in {text[:80]!r}; expected objects with fields 'id' and 'score'")
    return votes


def _conclusion(text: str) -> str:
    """What a reasoning model says after it has thought; nothing if it was cut off before."""
    check_text(text, "the text")
    return text.rpartition("</think>")[2].partition("<think>")[0]


def _number(value: Any) -> Any:
    """The number that a short text such as "1" or "0.9" stands for; anything else as it is."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,9}(\.\d{1,9})?", value.strip(), re.ASCII):
        return float(value) if "." in value else int(value)
    return value


def _confidence(value: dict[str, Any]) -> float | None:
    for name in ("confidence", "gpt-score", "score"):
        given = value.get(name)
        percent = isinstance(given, str) and given.rstrip().endswith("%")
        number = _number(given.rstrip(" %") if percent else given)
        if isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= 100:
            # What is above 1 and not above 10 may be out of 10.
            share = number / 100 if percent or 10 < number <= 100 else float(number)
            if share <= 1:
                return share
    return None


def _balanced_end(text: str, start: int, stop: int) -> int | None:
    """Position after the bracket that closes the one at ``start``, ``None`` if there is none before ``stop``."""
    expected: list[str] = []
    in_string = False
    position = start
    while position < min(len(text), stop):
        character = text[position]
        if in_string:
            if character == "\\":
                position += 1
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in _OPENING:
            expected.append(_OPENING[character])
        elif character in "}]":
            if character != expected.pop():
                return None
            if not expected:
                return position + 1
        position += 1
    return None


def _loads(text: str) -> Any:
    """Read JSON as it is; then without trailing commas; then with LaTeX backslashes doubled."""
    mended = _without_trailing_commas(text)
    # LaTeX first: "\frac" is also valid JSON, with a form feed in it.
    parts = re.split(r"(\\\\)", mended)
    # A model that doubles the backslashes of commands means the single ones as they are.
    doubled = re.search(r"\\\\[A-Za-z]", mended)
    commands = _LATEX_OR_LINE if not doubled and any(map(_HAS_LATEX.search, parts)) else _LATEX
    latex = "".join(
        part if part == "\\\\" else _BAD_ESCAPE.sub(lambda m: "\\" + m[0], commands.sub(r"\\\\", part))
        for part in parts
    )
    for candidate in (latex, mended, text):
        try:
            return json.loads(candidate)
        except (ValueError, RecursionError):
            continue
    return None


def _without_trailing_commas(text: str) -> str:
    pieces = re.split(r'("(?:[^"\\]|\\.)*")', text)
    joined = [piece if index % 2 else re.sub(r",(\s*[\]}])", r"\1", piece) for index, piece in enumerate(pieces)]
    return "".join(joined)

"""The 23 tokens of prompts and chains of thought, and how inputs and outputs are written with them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from octavo_core.errors import InvalidTypeError, InvalidValueError

__all__ = ["PLAIN", "TOKENS", "TOKEN_IDS", "check_bits", "encode_input", "read_out", "token_ids", "tokenize"]

TOKENS = (
    *("^", "$", "#"),
    *("AL", "AR", "A0", "A1", "A!", "A?"),
    *("BL", "BR", "B0", "B1", "B!", "B?"),
    *("+", "-", "@", "/", "=", ":", "0", "1"),
)
"""All tokens, in the order of their ids (paper, Section 3; the order is the reference implementation's)."""

TOKEN_IDS = {token: index for index, token in enumerate(TOKENS)}
"""Id of each token."""

PLAIN = ("AL", "AR", "A0", "A1", "BL", "BR", "B0", "B1")
"""Instructions that move a head or write a bit; the model prints them as they are."""

_TOKEN = re.compile(r"[AB][LR01!?]|[\^$#+\-@/=:01]")
_SPACE = re.compile(r"\s+")


def tokenize(text: str) -> list[str]:
    """Split a prompt or a chain of thought into tokens; white space between tokens is skipped.

    Args:
        text: For example ``"^A!++@A1#$"``.

    Returns:
        The tokens.

    Raises:
        InvalidValueError: If some part of the text is not a whole token.

    Source:
        Paper, Section 3. No token is a prefix of another one, so the split is unique.
    """
    tokens, position = [], 0
    while position < len(text):
        if space := _SPACE.match(text, position):
            position = space.end()
            continue
        match = _TOKEN.match(text, position)
        if match is None:
            raise InvalidValueError(
                f"{text[position : position + 2]!r} at character {position} is not made of whole tokens; "
                f"the tokens are {' '.join(TOKENS)}"
            )
        tokens.append(match[0])
        position = match.end()
    return tokens


def token_ids(tokens: Iterable[str]) -> list[int]:
    """Look up the ids of tokens.

    Args:
        tokens: Tokens of :data:`TOKENS`.

    Returns:
        Their ids, 0 to 22.

    Raises:
        InvalidValueError: If a token is not one of the 23.
    """
    ids = []
    for index, token in enumerate(tokens):
        if token not in TOKEN_IDS:
            raise InvalidValueError(f"token {token!r} at index {index} is unknown; the tokens are {' '.join(TOKENS)}")
        ids.append(TOKEN_IDS[token])
    return ids


def check_bits(bits: object) -> str:
    """Accept a string of bits and nothing else.

    Args:
        bits: What a user gave as the input of a program.

    Returns:
        The same string.

    Raises:
        InvalidTypeError: If it is not a string.
        InvalidValueError: If it has characters other than 0 and 1.
    """
    if not isinstance(bits, str):
        raise InvalidTypeError(f"an input is a string of 0 and 1 such as '0110', got {type(bits).__name__}")
    for index, character in enumerate(bits):
        if character not in "01":
            raise InvalidValueError(
                f"input {bits[:40]!r} has {character!r} at index {index}; an input is a string of 0 and 1, or empty"
            )
    return bits


def encode_input(bits: str) -> list[str]:
    """Write an input as the tokens that the machine would print while putting it on tape A.

    Args:
        bits: String of 0 and 1, length n.

    Returns:
        None for n = 0; otherwise ``5n + ones`` instructions, then the jump ``= - ... - @`` back to the program's start.

    Raises:
        InvalidTypeError: If ``bits`` is not a string.
        InvalidValueError: If it has characters other than 0 and 1.

    Source:
        Paper, Section 3 (Shannon coding): cell 2j is the flag of bit j, cell 2j + 1 the bit.
    """
    if not check_bits(bits):
        return []
    tokens = ["AR"] * (2 * len(bits))
    for bit in reversed(bits):
        tokens += ["AL", "A1", "AL", "A1"] if bit == "1" else ["AL", "AL", "A1"]
    return [*tokens, "=", *("-" * len(tokens)), "@"]


def read_out(tokens: Sequence[str]) -> str | None:
    """Read the output from a chain of thought: what stands between its last ``:`` and its final ``$``.

    Args:
        tokens: The generated tokens.

    Returns:
        The output bits, or ``None`` if the chain of thought is not finished.

    Source:
        Paper, Section 3 (read-out).
    """
    if not tokens or tokens[-1] != "$" or ":" not in tokens:
        return None
    start = len(tokens) - 1 - tokens[::-1].index(":")
    return "".join(tokens[start + 1 : -1])

"""What the fetch head returns where no key matches: inside the prompt, and for a counter outside the program."""

from __future__ import annotations

import math

from octavo_prompt_turing.tokens import PLAIN, TOKEN_IDS

__all__ = ["nearest_fetch"]

_CONDITIONS = frozenset(TOKEN_IDS[token] for token in ("A!", "A?", "B!", "B?"))
_DOLLAR = TOKEN_IDS["$"]
_FETCHABLE = frozenset(TOKEN_IDS[token] for token in (*PLAIN, "A!", "A?", "B!", "B?", "-", "+", "@", "#"))


def nearest_fetch(ids: list[int], starts: list[int], counter: int, place: int | None) -> int:
    """Find the key with the largest score by comparing all scores in fixed point.

    Args:
        ids: Tokens read.
        starts: Positions, from 1, of the instructions read.
        counter: Program counter.
        place: Index inside a jump, ``None`` outside of one.

    Returns:
        Id of the token retrieved; -1 where it has no value row.

    Source:
        Paper, construction, look-up 13: cos(counter) + cos(place) + pe1(i)/k. A well-formed run needs this only
        before its first token is printed.
    """
    length = len(ids)
    delimiter = ids.index(_DOLLAR) + 1 if _DOLLAR in ids else 0
    point = 8 * length.bit_length() + 64
    p = math.isqrt((length * length + 1) * ((length + 1) ** 2 + 1) << (2 * point))
    tie = (1 << point) - ((length * (length + 1) + 1) << (2 * point)) // p
    instruction, jump_start = -1, 0
    best: tuple[int, int] | None = None
    for position, token in enumerate(ids, start=1):
        if instruction + 1 < len(starts) and starts[instruction + 1] == position:
            instruction += 1
            jump_start = position if token in _CONDITIONS else 0
        if delimiter and position > delimiter:
            # After "$" all tokens carry the last instruction. If it is plain, "$" stands for them; if it is a jump,
            # their indices go on counting, and only the one with the wanted index can be better.
            position = jump_start + place if jump_start and place is not None else 0
            if not delimiter < position <= length:
                break
            token = ids[position - 1]
        index = position - jump_start if jump_start and position > jump_start else None
        score = _cosine(counter, instruction, point) + _cosine(place, index, point) + tie // position
        if best is None or score > best[0]:
            best = (score, token)
        if delimiter and position > delimiter:
            break
    return best[1] if best is not None and best[1] in _FETCHABLE else -1


def _cosine(left: int | None, right: int | None, point: int) -> int:
    """Cosine of the directions of two integers in fixed point; ``None`` is the direction (1, 0)."""
    if left is None or right is None:
        finite = right if left is None else left
        if finite is None:
            return 1 << point
        dot, square = finite, finite * finite + 1
    else:
        dot, square = left * right + 1, (left * left + 1) * (right * right + 1)
    magnitude = math.isqrt((dot * dot << (2 * point)) // square)
    return magnitude if dot >= 0 else -magnitude

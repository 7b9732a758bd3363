"""How many bits a run of N tokens needs, and how long each engine is guaranteed to be right.

The smallest difference of two scores that decides a token is the tie-break between two neighbouring writes to one cell,
``pe1(i) (1/k - 1/(k + 1))``, about ``1 / (2 i^6)`` at the end of the sequence: 6 log2(N) + 1 bits.
"""

from __future__ import annotations

import math
from fractions import Fraction
from numbers import Real
from typing import SupportsFloat, SupportsIndex

from octavo_core.errors import InvalidStateError, InvalidValueError

from octavo_prompt_turing.arguments import check_integer, check_type

__all__ = [
    "ENGINES",
    "PrecisionError",
    "check_engine",
    "margin_bits",
    "max_length",
    "precision_bound",
    "smallest_gap",
]

ENGINES = ("exact", "deficit64", "reference", "float64", "float32")
"""Ways to evaluate the Transformer, see :func:`max_length`."""

_DEFAULT_TOLERANCE = {"float64": 4e-15, "float32": 1e-6}

# The sign test of "not found" compares the float64 values of a/sqrt(a^2 + 1), about 1/a^3 apart for neighbouring cells.
# Equal cells have equal values; different cells have different ones up to 2^17, which a test checks for every cell.
# Everything else lasts longer: scores of different integers a, b < 2^17 keep 34 bits, and ties are 1/N apart.
_DEFICIT_LENGTH = 2**17


class PrecisionError(InvalidStateError):
    """The sequence is longer than the engine is guaranteed for; the next token could be wrong, so none is printed."""


def check_engine(engine: str) -> str:
    """Accept the name of an engine and nothing else.

    Args:
        engine: One of :data:`ENGINES`.

    Returns:
        The same name.

    Raises:
        InvalidValueError: If there is no such engine.
    """
    if engine not in ENGINES:
        raise InvalidValueError(f"unknown engine {engine!r}; give one of {', '.join(ENGINES)}")
    return engine


def smallest_gap(length: SupportsIndex) -> Fraction:
    """Lower bound of the difference of two scores that decides a token, at any position up to ``length``.

    Args:
        length: Tokens N of prompt and chain of thought, at least 2.

    Returns:
        A rational within a part in a thousand of ``pe1(N) (1/(N-1) - 1/N)`` for N >= 40, and below it always.

    Raises:
        InvalidValueError: If the length is below 2.
        InvalidTypeError: If it is not a whole number.

    Source:
        Paper, precision theorem; the constant is beyond the paper, which states O(log N) bits.
    """
    length = check_integer("length", length)
    if length < 2:
        raise InvalidValueError(f"length {length} is too short; give 2 tokens or more")
    # pe1(i) = 1 / (P (P + Q)) with P^2 = (i^2 + 1)((i + 1)^2 + 1), Q = i (i + 1) + 1 and P < Q + 1 / (2 Q).
    q = length * (length + 1) + 1
    p = Fraction(q) + Fraction(1, 2 * q)
    return 1 / (p * (p + q)) / (length * (length - 1))


def precision_bound(length: SupportsIndex) -> int:
    """Bits after the binary point that suffice to compare scores without error up to ``length`` tokens.

    Args:
        length: Tokens N of prompt and chain of thought, at least 2.

    Returns:
        The least p with ``2**-p < smallest_gap(length)``, about 6 log2(N) + 1.

    Raises:
        InvalidValueError: If the length is below 2.
        InvalidTypeError: If it is not a whole number.

    Source:
        Paper, precision theorem (O(log(n + t(n))) bits).
    """
    gap = smallest_gap(length)
    return (gap.denominator // gap.numerator).bit_length()


def max_length(engine: str, *, tie_tolerance: SupportsFloat | None = None, bits: int | None = None) -> int | None:
    """Longest sequence for which an engine is guaranteed to print the right tokens.

    Args:
        engine: One of :data:`ENGINES`.
        tie_tolerance: For the ``float`` engines, largest difference of scores that counts as a tie.
        bits: For ``reference``, bits after the binary point of its comparisons; ``None`` when they grow as needed.

    Returns:
        A number of tokens, or ``None`` for no limit.

    Raises:
        InvalidValueError: If the engine is unknown or the tolerance is not positive.
        InvalidTypeError: If the tolerance is not a number.

    Source:
        Beyond the paper: it states O(log N) bits, a user needs the number.
    """
    check_engine(engine)
    if engine == "exact" or (engine == "reference" and bits is None):
        return None
    if engine == "deficit64":
        return _DEFICIT_LENGTH
    tolerance = Fraction(1, 2**bits) if bits is not None else Fraction(_tolerance(engine, tie_tolerance))
    low, high = 2, 4
    while smallest_gap(high) > tolerance:
        low, high = high, 2 * high
    if smallest_gap(low) <= tolerance:
        return 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if smallest_gap(middle) > tolerance else (low, middle)
    return low


def margin_bits(
    engine: str, length: SupportsIndex, *, tie_tolerance: SupportsFloat | None = None, bits: int | None = None
) -> float:
    """Bits to spare: how far the smallest deciding difference at a length is above what the engine takes for a tie.

    Args:
        engine: One of :data:`ENGINES`.
        length: Tokens of prompt and chain of thought.
        tie_tolerance: As in :func:`max_length`.
        bits: As in :func:`max_length`.

    Returns:
        log2 of the ratio; infinite for engines without limit, not positive beyond :func:`max_length`.

    Raises:
        InvalidValueError: If the engine is unknown.
    """
    check_engine(engine)
    length = check_integer("length", length)
    if engine == "exact" or (engine == "reference" and bits is None):
        return math.inf
    if engine == "deficit64":
        return 3 * math.log2(_DEFICIT_LENGTH / length) if length else math.inf
    gap = smallest_gap(max(2, length))
    compared = -math.log2(_tolerance(engine, tie_tolerance)) if bits is None or engine != "reference" else bits
    return math.log2(gap.numerator) - math.log2(gap.denominator) + compared


def _tolerance(engine: str, tie_tolerance: SupportsFloat | None) -> float:
    if tie_tolerance is None:
        return _DEFAULT_TOLERANCE[engine]
    check_type("tie_tolerance", tie_tolerance, Real, "a number in (0, 1)")
    tolerance = float(tie_tolerance)
    if not 0 < tolerance < 1:
        raise InvalidValueError(f"tie tolerance {tolerance} is not in (0, 1); for {engine} give for example 4e-15")
    return tolerance

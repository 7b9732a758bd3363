"""How likely a key is selected: the law that the importance weights divide by."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_magicpig.validation import check_integer

__all__ = ["collision_probability", "expected_fraction"]


def collision_probability(
    cosine: Tensor | float | int, key_bits: int | Any, num_tables: int | Any, min_hits: int | Any = 2
) -> Float[Tensor, ...]:
    """Probability that a key collides with the query in at least ``min_hits`` tables.

    One random plane separates two vectors with probability ``angle / pi``, a table of K planes keeps them together with
    ``P = (1 - angle / pi)^K``, and the number of such tables among L is binomial.

    Args:
        cosine: Cosine between query and key, any shape, clamped to [-1, 1]. Computed in its own dtype, or in float64
            when it is a Python number; half precision is raised to float32.
        key_bits: Bits of a table (K), 1 or more.
        num_tables: Tables (L), 1 or more.
        min_hits: Tables needed, 0 to ``num_tables``.

    Returns:
        Probabilities of the shape of ``cosine``. Rises with the cosine. Where fewer hits are expected than needed, the
        upper tail is summed, so that small ones do not cancel; binomials are taken as logarithms, so that none
        overflows.

    Raises:
        InvalidValueError: If a count is out of range.
        InvalidTypeError: If one is no integer.

    Source:
        Section 4.2, equation for u; the upper tail is beyond the paper, whose form loses all digits below 1e-7.
    """
    counts = {"key_bits": key_bits, "num_tables": num_tables, "min_hits": min_hits}
    key_bits, num_tables, min_hits = (check_integer(name, count, "a whole number") for name, count in counts.items())
    if key_bits < 1 or num_tables < 1 or not 0 <= min_hits <= num_tables:
        raise InvalidValueError(
            f"key_bits={key_bits}, num_tables={num_tables}, min_hits={min_hits} is not possible; "
            "give 1 or more bits and tables, and 0 to num_tables hits"
        )
    c = torch.as_tensor(cosine, dtype=None if isinstance(cosine, Tensor) else torch.float64)
    c = c if c.dtype in (torch.float32, torch.float64) else c.float()
    if min_hits == 0:
        return torch.ones_like(c)
    hit = (1 - torch.arccos(c.clamp(-1, 1)) / math.pi).clamp(0, 1) ** key_bits
    log_hit, log_miss = hit.log(), torch.log1p(-hit)

    def term(hits: int) -> Tensor:
        logarithm = torch.full_like(c, _log_binomial(num_tables, hits))
        for count, log in ((hits, log_hit), (num_tables - hits, log_miss)):
            if count:  # 0 log 0 is 0
                logarithm += count * log
        return logarithm.exp()

    fewer = torch.zeros_like(c)
    for hits in range(min_hits):
        fewer += term(hits)
    last = term(min_hits)
    tail, odds = last.clone(), hit / (1 - hit).clamp_min(1e-6)
    # With fewer than `min_hits` expected the terms fall; their spread is below sqrt(min_hits).
    for hits in range(min_hits, min(min_hits + 16 + 8 * math.isqrt(min_hits), num_tables)):
        last = last * odds * ((num_tables - hits) / (hits + 1))
        tail += last
    return torch.where(hit * num_tables < min_hits, tail, 1 - fewer).clamp(0, 1)


@cache
def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def expected_fraction(cosine: Tensor | float | int, key_bits: int, num_tables: int, min_hits: int = 2) -> float:
    """Share of keys with these cosines that a query is expected to select.

    Args:
        cosine: Cosines between queries and (centred) keys.
        key_bits: Bits of a table (K).
        num_tables: Tables (L).
        min_hits: Tables needed.

    Returns:
        The mean selection probability.

    Source:
        Beyond the paper, which measures it: follows from :func:`collision_probability`.
    """
    return float(collision_probability(cosine, key_bits, num_tables, min_hits).double().mean())

"""What a decode step did: how much was sampled, how well, and how much was read."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["CACHE_LINE", "AttendStats"]

CACHE_LINE = 64
"""Bytes that a random access brings."""


@dataclass(frozen=True)
class AttendStats:
    """What a decode step did, for each batch row and head. Derived figures are computed when they are asked for.

    Args:
        raw: What the kernel counted, in the order of :data:`octavo_magicpig.kernels.STATISTICS`.
        error: Estimated standard error of the output, in units of its norm; zero unless it was asked for. The estimate
            takes the keys as drawn independently; they share the planes.
        fell_back: Heads that were computed exactly because their estimated error exceeded the tolerance.
        hashed_tokens: Tokens under the tables.
        exact_keys: Keys read exactly by each kv head.
        fixed_bytes: Bytes that the step reads whatever is sampled: exact rows, planes, and bounds of the buckets.
        row_bytes: Bytes of a key and its value.
    """

    raw: Float[Tensor, "batch heads 6"]
    error: Float[Tensor, "batch heads"]
    fell_back: Bool[Tensor, "batch heads"]
    hashed_tokens: int
    exact_keys: int
    fixed_bytes: int
    row_bytes: int

    @property
    def selected(self) -> Float[Tensor, "batch heads"]:
        """Keys sampled."""
        return self.raw[..., 0]

    @property
    def fraction(self) -> Float[Tensor, "batch heads"]:
        """Keys sampled as a share of those under the tables; 0 where there are none."""
        return self.raw[..., 0] / max(self.hashed_tokens, 1)

    @property
    def empty(self) -> Bool[Tensor, "batch heads"]:
        """Heads that sampled nothing although there were keys to sample."""
        return (self.raw[..., 0] == 0) & (self.hashed_tokens > 0)

    @property
    def max_share(self) -> Float[Tensor, "batch heads"]:
        """Largest share of one sampled key in the attention."""
        return self.raw[..., 2]

    @property
    def effective_samples(self) -> Float[Tensor, "batch heads"]:
        """Effective sample size of the sampled part, ``(sum z)^2 / sum z^2``."""
        return self.raw[..., 3]

    @property
    def sampled_lse(self) -> Float[Tensor, "batch heads"]:
        """Log-sum-exp of the sampled part; ``-inf`` where nothing was sampled."""
        return self.raw[..., 5]

    @property
    def bytes_touched(self) -> int:
        """Bytes read by the step, all rows and heads together.

        Sampled rows in full with a cache line for the norm, and two bytes for each table entry, beside the fixed ones.
        """
        sampled, visited = (int(self.raw[..., column].double().sum()) for column in (0, 1))
        return self.fixed_bytes + sampled * (self.row_bytes + CACHE_LINE) + 2 * visited

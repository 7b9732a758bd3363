"""Where the points of each loss come from: regions of a box and Latin hypercubes on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Float64
from octavo_core.errors import InvalidValueError
from scipy.stats import qmc
from torch import Tensor

__all__ = ["Box", "LatinHypercube", "Region", "edges", "face", "faces", "inside", "periodic"]

_BLOCK_NUMBERS = 2**18


@dataclass(frozen=True)
class Box:
    """A box in coordinate space.

    Args:
        lower: Lower end of each coordinate.
        upper: Upper end of each coordinate, above the lower.

    Raises:
        InvalidValueError: If the ends differ in number, are not finite, or are not in order.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def __post_init__(self) -> None:
        ends = np.array([self.lower, self.upper], dtype=float) if len(self.lower) == len(self.upper) else None
        if ends is None or not np.isfinite(ends).all() or not (ends[0] < ends[1]).all():
            raise InvalidValueError(
                f"box {self.lower} to {self.upper} must have as many lower as upper ends, finite, lower below upper"
            )

    @property
    def widths(self) -> tuple[float, ...]:
        """Length of each side."""
        return tuple(high - low for low, high in zip(self.lower, self.upper, strict=True))


@dataclass(frozen=True)
class Region:
    """A union of pieces of a box, each with some coordinates held at an end.

    Args:
        box: The box.
        pieces: For each piece the coordinates that are fixed: pairs (index, value).
        shares: Share of the points that each piece gets; they sum to 1.
        together: Whether every piece repeats the same values of the free coordinates, as a periodic condition needs.
            The points then come piece by piece, equally many of each.
    """

    box: Box
    pieces: tuple[tuple[tuple[int, float], ...], ...]
    shares: tuple[float, ...]
    together: bool = False

    def counts(self, count: int) -> list[int]:
        """Split a number of points over the pieces, by largest remainder.

        Args:
            count: Number of points.

        Returns:
            Points for each piece; with ``together`` each piece gets ``count``, since it is paired point by point.
        """
        if self.together:
            return [count] * len(self.pieces)
        exact = np.array(self.shares) * count
        whole = np.floor(exact).astype(int)
        for index in np.argsort(whole - exact, kind="stable")[: count - whole.sum()]:
            whole[index] += 1
        return whole.tolist()


def inside(box: Box) -> Region:
    """Make the region of all points in a box.

    Args:
        box: The box.

    Returns:
        The region.
    """
    return Region(box, ((),), (1.0,))


def face(box: Box, coordinate: int, side: Literal["lower", "upper"]) -> Region:
    """Make one face of a box, such as the initial time.

    Args:
        box: The box.
        coordinate: Index of the coordinate that is fixed.
        side: The end at which it is fixed.

    Returns:
        The region.

    Raises:
        InvalidValueError: If the box has no such coordinate.
    """
    (index,) = _checked(box, (coordinate,))
    return Region(box, (((index, getattr(box, side)[index]),),), (1.0,))


def faces(box: Box, coordinates: Sequence[int]) -> Region:
    """Make the faces at both ends of some coordinates, each with points in proportion to its area.

    Args:
        box: The box.
        coordinates: Indices of the coordinates to fix in turn; the others, such as time, run freely.

    Returns:
        The region, with the lower face of each coordinate before its upper.

    Raises:
        InvalidValueError: If the box lacks a coordinate.
    """
    fixed = [((index, end),) for index in _checked(box, coordinates) for end in _ends(box, index)]
    # The area of a face is the volume of the box over the width that it lacks.
    areas = np.array([1.0 / box.widths[index] for ((index, _),) in fixed])
    return Region(box, tuple(fixed), tuple(areas / areas.sum()))


def edges(box: Box, coordinates: Sequence[int]) -> Region:
    """Make the edges where two of some coordinates are at an end, in proportion to their length.

    Args:
        box: The box.
        coordinates: Indices of the coordinates of which two at a time are fixed.

    Returns:
        The region.

    Raises:
        InvalidValueError: If the box lacks a coordinate.

    Source:
        What the official code does for Beltrami flow (points on the edges of the cube alone); kept for comparison.
    """
    pairs = combinations(_checked(box, coordinates), 2)
    fixed = [((i, a), (j, b)) for i, j in pairs for a, b in product(_ends(box, i), _ends(box, j))]
    sizes = np.array([1.0 / (box.widths[i] * box.widths[j]) for (i, _), (j, _) in fixed])
    return Region(box, tuple(fixed), tuple(sizes / sizes.sum()))


def periodic(box: Box, coordinate: int) -> Region:
    """Make the two opposite faces of a coordinate with the same other coordinates on both.

    The points of the lower face come first: ``fields("u").chunk(2)`` in a residual gives the two sides.

    Args:
        box: The box.
        coordinate: Index of the periodic coordinate.

    Returns:
        The region.

    Raises:
        InvalidValueError: If the box has no such coordinate.
    """
    (index,) = _checked(box, (coordinate,))
    low, high = _ends(box, index)
    return Region(box, (((index, low),), ((index, high),)), (0.5, 0.5), together=True)


class LatinHypercube:
    """Endless Latin hypercubes on a region: draw number ``n`` is a function of the seed and ``n`` alone.

    So the only state is a counter, and a resumed run sees the points that the uninterrupted run would have seen.

    Args:
        region: Where the points lie; each of its pieces is one Latin hypercube.
        count: Points in a draw (pairs of points for a periodic region).
        seed: Seed of the run.
        stream: Number that keeps the losses of a run apart.
        dtype: Floating-point type of the points.
        device: Device of the points.

    Raises:
        InvalidValueError: If there are fewer points than pieces.

    Source:
        The paper's study draws Latin hypercubes: ``scipy.stats.qmc.LatinHypercube`` for each loss, from one seed.
    """

    def __init__(
        self,
        region: Region,
        count: int,
        *,
        seed: int = 0,
        stream: int = 0,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> None:
        if min(region.counts(count), default=0) < 1:
            raise InvalidValueError(
                f"{count} points are too few for a region of {len(region.pieces)} pieces; give at least one for each"
            )
        self._region = region
        self._count = count
        self._seed = (seed, stream)
        self._dtype, self._device = dtype, device
        per_draw = sum(region.counts(count)) * len(region.box.lower)
        self._block_size = max(1, min(128, _BLOCK_NUMBERS // per_draw))
        self._block_index = -1
        self._block = torch.empty(0)

    def draw(self, number: int) -> Float[Tensor, "points coordinates"]:
        """Return the points of a draw.

        Args:
            number: Index of the draw, from 0.

        Returns:
            Points, one a row, piece by piece.
        """
        index, position = divmod(number, self._block_size)
        if index != self._block_index:
            # A copy, since NumPy aligns less than torch and matrix products may round by alignment.
            self._block = torch.tensor(self._draw_block(index), dtype=self._dtype, device=self._device)
            self._block_index = index
        return self._block[position]

    def _draw_block(self, index: int) -> Float64[np.ndarray, "draws points coordinates"]:
        box = self._region.box
        generator = np.random.default_rng(np.random.SeedSequence(self._seed[0], spawn_key=(self._seed[1], index)))
        parts: list[np.ndarray] = []
        for piece, count in zip(self._region.pieces, self._region.counts(self._count), strict=True):
            if self._region.together and parts:
                part = parts[0].copy()
            else:
                part = np.empty((self._block_size, count, len(box.lower)))
                fixed = {coordinate for coordinate, _ in piece}
                free = [i for i in range(len(box.lower)) if i not in fixed]
                if free:
                    # Columns of a Latin hypercube are independent, so one wide call holds a whole block of them.
                    wide = qmc.LatinHypercube(self._block_size * len(free), rng=generator).random(count)
                    unit = wide.reshape(count, self._block_size, len(free)).transpose(1, 0, 2)
                    part[:, :, free] = np.array(box.lower)[free] + unit * np.array(box.widths)[free]
            for coordinate, value in piece:
                part[:, :, coordinate] = value
            parts.append(part)
        return np.concatenate(parts, axis=1)


def _ends(box: Box, coordinate: int) -> tuple[float, float]:
    return box.lower[coordinate], box.upper[coordinate]


def _checked(box: Box, coordinates: Sequence[int]) -> Sequence[int]:
    for coordinate in coordinates:
        if not 0 <= coordinate < len(box.lower):
            raise InvalidValueError(f"the box has coordinates 0 to {len(box.lower) - 1}, got {coordinate}")
    return coordinates

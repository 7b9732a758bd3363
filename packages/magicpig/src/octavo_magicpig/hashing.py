"""Random hyperplanes and the codes they give: SimHash."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Float32, Int, Int64
from octavo_core.device import torch_generator
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_magicpig.config import LSHConfig
from octavo_magicpig.validation import check_count, check_finite

__all__ = ["Planes", "draw_planes", "hash_codes", "layer_planes", "simhash_codes"]

_PANEL = 64
_MAX_BITS = 63
_MIX = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Planes:
    """Hyperplanes of one layer.

    Args:
        matrix: Planes, (1 or kv_heads, head_dim, key_bits * num_tables), float32; plane ``table * key_bits + bit``
            gives that bit of that table, lowest bit first.
        key_bits: Bits of a table.
        num_tables: Tables.
    """

    matrix: Float32[Tensor, "sets dim planes"]
    key_bits: int
    num_tables: int

    @cached_property
    def largest_norm(self) -> float:
        """Largest norm of a plane, which bounds the rounding of a projection."""
        return float(self.matrix.double().norm(dim=1).max())

    @cached_property
    def panels(self) -> Float32[Tensor, "sets panels dim 64"]:
        """The planes in blocks of whole tables, at most 64 columns each: the layout of the compiled kernel."""
        sets, dim, _ = self.matrix.shape
        per_panel = _PANEL // self.key_bits
        count = math.ceil(self.num_tables / per_panel)
        columns = self.matrix.new_zeros(sets, dim, count * per_panel * self.key_bits)
        columns[..., : self.matrix.shape[-1]] = self.matrix
        blocks = columns.view(sets, dim, count, per_panel * self.key_bits).transpose(1, 2)
        panels = self.matrix.new_zeros(sets, count, dim, _PANEL)
        panels[..., : blocks.shape[-1]] = blocks
        return panels

    def without_last_row(self) -> Planes:
        """Return the planes without their last coordinate."""
        return Planes(self.matrix[:, :-1].contiguous(), self.key_bits, self.num_tables)


def draw_planes(
    head_dim: int,
    key_bits: int,
    num_tables: int,
    *,
    seed: int = 0,
    layer: int = 0,
    sets: int = 1,
    kind: str = "gaussian",
    device: str | torch.device = "cpu",
) -> Planes:
    """Draw the hyperplanes of a layer.

    Args:
        head_dim: Size of a key.
        key_bits: Bits of a table (K).
        num_tables: Tables (L).
        seed: Seed; the same seed and layer give the same planes on every device.
        layer: Index of the layer; each has its own planes.
        sets: 1 for planes shared by the kv heads, or the number of kv heads.
        kind: ``"gaussian"`` for independent normal planes, as in the paper; ``"hadamard"`` for rows of ``H D H D H D``
            with random signs D, orthogonal within a block of ``2^ceil(log2(head_dim))`` planes.
        device: Where to put them.

    Returns:
        The planes.

    Raises:
        InvalidValueError: If a size or the kind is not possible.

    Source:
        Section 4.1; the reference code shares one matrix. ``"hadamard"`` is beyond the paper (structured planes are
        cheaper to apply, and their collision law is checked in the tests).
    """
    if min(head_dim, key_bits, num_tables, sets) < 1:
        raise InvalidValueError(
            f"head_dim={head_dim}, key_bits={key_bits}, num_tables={num_tables}, sets={sets}: all must be 1 or more"
        )
    generator = torch_generator((seed + _MIX * layer) % 2**63)
    count = key_bits * num_tables
    if kind == "gaussian":
        matrix = torch.randn(sets, head_dim, count, generator=generator, dtype=torch.float32)
    elif kind == "hadamard":
        size = 1 << (head_dim - 1).bit_length()
        with torch.autocast("cpu", enabled=False):
            blocks = [_hadamard_block(size, generator) for _ in range(sets * math.ceil(count / size))]
        matrix = torch.stack(blocks).view(sets, -1, size)[:, :count, :head_dim].transpose(1, 2).contiguous()
    else:
        raise InvalidValueError(f"planes={kind!r} is unknown; give gaussian or hadamard")
    return Planes(matrix.to(device), key_bits, num_tables)


def layer_planes(
    config: LSHConfig,
    head_dim: int,
    num_kv_heads: int,
    *,
    layer: int = 0,
    given: Tensor | None = None,
    device: str | torch.device = "cpu",
) -> Planes:
    """Make the planes that a configuration asks for.

    Args:
        config: Settings.
        head_dim: Size of a key, before the transform.
        num_kv_heads: Key-value heads.
        layer: Index of the layer.
        given: Planes to use instead of drawing them, (size of a hashed key, key_bits * num_tables).
        device: Where to put them.

    Returns:
        The planes for (transformed) keys.

    Raises:
        InvalidValueError: If the given planes have another shape or are not finite.
    """
    size = head_dim + (config.transform == "simple")
    if given is None:
        return draw_planes(
            size,
            config.key_bits,
            config.num_tables,
            seed=config.seed,
            layer=0 if config.planes_per == "model" else layer,
            sets=num_kv_heads if config.planes_per == "head" else 1,
            kind=config.planes,
            device=device,
        )
    wanted = (size, config.key_bits * config.num_tables)
    if given.shape != wanted:
        raise InvalidValueError(f"planes of shape {tuple(given.shape)} do not fit; the shape must be {wanted}")
    if not bool(torch.isfinite(given).all()):
        raise InvalidValueError("planes hold NaN or infinite numbers; give finite ones")
    return Planes(given.float().to(device)[None].contiguous(), config.key_bits, config.num_tables)


def _hadamard_block(size: int, generator: torch.Generator) -> Tensor:
    hadamard = torch.ones(1, 1, dtype=torch.float32)
    while len(hadamard) < size:
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    block = torch.eye(size, dtype=torch.float32)
    for _ in range(3):
        signs = torch.randint(0, 2, (size,), generator=generator).float() * 2 - 1
        block = hadamard @ (signs[:, None] * block) / math.sqrt(size)
    return block * math.sqrt(size)


def simhash_codes(
    vectors: Float[Tensor, "*batch dim"],
    planes: Float[Tensor, "planedim planes"],
    key_bits: int | Any,
    num_tables: int | Any,
) -> Int64[Tensor, "*batch tables"]:
    """Hash vectors: bit j of table l is whether the projection on plane ``l * key_bits + j`` is positive.

    The sign is that of the exact projection: where a float32 product is within its rounding bound of zero, it is
    repeated in float64. Codes then depend neither on the number of threads nor on how many vectors are hashed together.

    Args:
        vectors: Vectors to hash, any floating-point dtype; only their direction matters.
        planes: Planes as columns.
        key_bits: Bits of a table (K), 1 to 63.
        num_tables: Tables (L).

    Returns:
        Codes in [0, 2^key_bits).

    Raises:
        InvalidValueError: If the shapes do not fit, there are too many bits, or a number is not finite.
        InvalidTypeError: If an input is not floating-point, or a count no integer.

    Source:
        Section 4.1; bit order of the reference code. The exact sign is beyond the paper.
    """
    key_bits, num_tables = check_count("key_bits", key_bits), check_count("num_tables", num_tables)
    if key_bits > _MAX_BITS:
        raise InvalidValueError(f"key_bits={key_bits} is too large for a code; give 1 to {_MAX_BITS}")
    if not (vectors.is_floating_point() and planes.is_floating_point()):
        raise InvalidTypeError(f"vectors of {vectors.dtype} and planes of {planes.dtype}: both must be floating-point")
    if vectors.shape[-1] != planes.shape[0] or planes.shape[1] != key_bits * num_tables:
        wanted = (vectors.shape[-1], key_bits * num_tables)
        raise InvalidValueError(
            f"planes of shape {tuple(planes.shape)} do not fit vectors of size {vectors.shape[-1]} with "
            f"key_bits={key_bits} and num_tables={num_tables}; the shape must be {wanted}"
        )
    check_finite("vectors", vectors)
    check_finite("planes", planes)
    return hash_codes(vectors, planes, key_bits, num_tables)


def hash_codes(vectors: Tensor, planes: Tensor, key_bits: int, num_tables: int) -> Tensor:
    """Hash vectors without looking at them; for callers that know they fit. See :func:`simhash_codes`.

    Args:
        vectors: Vectors to hash, (..., dim).
        planes: Planes as columns, (dim, key_bits * num_tables).
        key_bits: Bits of a table (K).
        num_tables: Tables (L).

    Returns:
        Codes, int64, (..., num_tables).
    """
    rows = vectors.reshape(-1, vectors.shape[-1]).float()
    signs = _exact_signs(rows, planes.float())
    weights = 2 ** torch.arange(key_bits, device=rows.device)
    codes = (signs.view(-1, num_tables, key_bits) * weights).sum(-1)
    return codes.view(*vectors.shape[:-1], num_tables)


def _exact_signs(rows: Float32[Tensor, "n dim"], planes: Float32[Tensor, "dim planes"]) -> Int[Tensor, "n planes"]:
    with torch.autocast(rows.device.type, enabled=False):
        if torch.get_float32_matmul_precision() != "highest":
            return (rows.double() @ planes.double() > 0).long()
        projections = rows @ planes
        # Any order of summation is within this of the exact sum.
        bound = (
            rows.norm(dim=1, keepdim=True) * planes.norm(dim=0).max() * (rows.shape[1] * torch.finfo(torch.float32).eps)
        )
        signs = projections > 0
        row, column = torch.nonzero(projections.abs() <= bound, as_tuple=True)
        exact = (rows[row].double() * planes.t()[column].double()).sum(1)
        signs[row, column] = exact > 0
        return signs.long()

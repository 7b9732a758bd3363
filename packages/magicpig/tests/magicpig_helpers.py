"""What the tests share: golden vectors, random layers, and the kernels that work here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from octavo_magicpig.kernels import native

DATA = Path(__file__).parent / "data"
GOLDEN = sorted(path.stem for path in DATA.glob("case_*.npz"))


def available_kernels() -> list[str]:
    names = ["torch"]
    if native.problem() is None:
        names.insert(0, "native")
    try:
        import numba  # noqa: F401
    except ImportError:
        return names
    return [*names, "numba"]


def from_bfloat16(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy((bits.astype(np.uint32) << 16).view(np.float32).copy())


def random_layer(
    tokens: int, *, batch: int = 1, kv_heads: int = 2, group: int = 2, dim: int = 32, seed: int = 0, dtype=torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A query near some keys, keys off centre, and values."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(batch, kv_heads, tokens, dim, generator=generator) + 0.5
    values = torch.randn(batch, kv_heads, tokens, dim, generator=generator)
    query = torch.randn(batch, kv_heads * group, dim, generator=generator)
    query += keys[:, :, tokens // 2].repeat_interleave(group, dim=1)
    return query, keys.to(dtype), values.to(dtype)

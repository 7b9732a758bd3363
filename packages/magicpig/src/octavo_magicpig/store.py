"""Keys and values in memory that grows geometrically."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from octavo_magicpig.kernels import native

__all__ = ["KeyValueStore", "in_plain_memory"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_GROWTH = 1.25
_STEP = 256
_LARGE = 2**22


def in_plain_memory(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function make tensors that any later step may write: of no graph, and not of inference mode.

    Args:
        function: What makes them.

    Returns:
        The function, wrapped.
    """

    @functools.wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with torch.inference_mode(False), torch.no_grad():
            return function(*args, **kwargs)

    return wrapped


class KeyValueStore:
    """A key-value cache of one layer.

    Concatenation, which copies the whole cache for every token, is avoided by room that grows by a quarter.

    Args:
        batch: Batch rows.
        kv_heads: Key-value heads.
        head_dim: Size of a key and of a value.
        dtype: Type of both.
        device: Where they live.
    """

    @in_plain_memory
    def __init__(
        self, batch: int, kv_heads: int, head_dim: int, *, dtype: torch.dtype, device: str | torch.device = "cpu"
    ) -> None:
        self.length = 0
        self._keys = torch.empty(batch, kv_heads, 0, head_dim, dtype=dtype, device=device)
        self._values = torch.empty_like(self._keys)

    @property
    def keys(self) -> Tensor:
        """View of the keys, (batch, kv_heads, length, head_dim)."""
        return self._keys[:, :, : self.length]

    @property
    def values(self) -> Tensor:
        """View of the values, (batch, kv_heads, length, head_dim)."""
        return self._values[:, :, : self.length]

    @property
    def capacity(self) -> int:
        """Tokens that fit before the memory grows."""
        return self._keys.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes of the memory, used or not."""
        return self._keys.nbytes + self._values.nbytes

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add tokens at the end.

        Args:
            keys: (batch, kv_heads, tokens, head_dim); converted to the dtype of the store.
            values: The same shape.
        """
        end = self.length + keys.shape[2]
        if end > self.capacity:
            self._grow(end)
        self._keys[:, :, self.length : end] = keys.detach()
        self._values[:, :, self.length : end] = values.detach()
        self.length = end

    def truncate(self, length: int) -> None:
        """Forget the tokens from a position on.

        Args:
            length: Tokens to keep, at most the present number.
        """
        self.length = min(self.length, length)

    @in_plain_memory
    def take_rows(self, index: Tensor) -> None:
        """Rearrange the batch.

        Args:
            index: For each new row the old one it copies.
        """
        index = index.to(self._keys.device)
        self._keys, self._values = self._keys.index_select(0, index), self._values.index_select(0, index)

    @in_plain_memory
    def to(self, device: str | torch.device) -> None:
        """Move the memory.

        Args:
            device: Where to.
        """
        self._keys, self._values = self._keys.to(device), self._values.to(device)

    @in_plain_memory
    def _grow(self, needed: int) -> None:
        # A first fill takes what it needs and a little: a prompt is followed by an answer, not by as much again.
        capacity = max(needed + _STEP, int(self.capacity * _GROWTH)) if self.capacity else needed + _STEP
        self._keys, self._values = (self._copied(tensor, capacity) for tensor in (self._keys, self._values))

    def _copied(self, tensor: Tensor, capacity: int) -> Tensor:
        batch, kv_heads, _, dim = tensor.shape
        grown = tensor.new_empty(batch, kv_heads, capacity, dim)
        if grown.device.type == "cpu" and grown.nbytes >= _LARGE:
            native.advise_large_pages(grown)
        grown[:, :, : self.length] = tensor[:, :, : self.length]
        return grown

"""Key-value cache of the dense engines: buffers that double, so that a step costs no copy of what is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = ["BlockCache", "HardmaxCache"]

_FIRST_CAPACITY = 256


@dataclass
class BlockCache:
    """Keys, their pair norms and values of one block; the last axis is the sequence.

    Args:
        length: Positions in use.
        buffers: Tensors of shape (batch, heads, rows, capacity).
    """

    length: int = 0
    buffers: list[Tensor] = field(default_factory=list)

    def append(self, *new: Tensor) -> list[Tensor]:
        """Add positions.

        Args:
            *new: Tensors (batch, heads, rows, positions), the same kinds in every call.

        Returns:
            The whole content, as views.
        """
        added = new[0].shape[-1]
        total = self.length + added
        if not self.buffers or total > self.buffers[0].shape[-1]:
            capacity = max(_FIRST_CAPACITY, 1 << (total - 1).bit_length())
            grown = [tensor.new_empty(*tensor.shape[:-1], capacity) for tensor in new]
            for target, source in zip(grown, self.buffers, strict=False):
                target[..., : self.length] = source[..., : self.length]
            self.buffers = grown
        for buffer, tensor in zip(self.buffers, new, strict=True):
            buffer[..., self.length : total] = tensor
        self.length = total
        return [buffer[..., :total] for buffer in self.buffers]


@dataclass
class HardmaxCache:
    """What the model remembers of the tokens it has read; any engine, but one engine only.

    Args:
        blocks: One entry a block, for the dense engines.
        valid: (batch, positions), false on padding.
        readers: One host-side reader a row, for the ``exact`` and ``reference`` engines.
        engine: Name of the engine that filled it; empty while nothing was read.
    """

    blocks: list[BlockCache] = field(default_factory=list)
    valid: Tensor | None = None
    readers: list[Any] = field(default_factory=list)
    engine: str = ""

    @property
    def length(self) -> int:
        """Positions read, padding included."""
        return 0 if self.valid is None else self.valid.shape[-1]

    def select(self, rows: Tensor) -> None:
        """Keep, repeat or reorder the rows of the batch.

        Args:
            rows: (new batch,) indices.
        """
        if self.valid is not None:
            self.valid = self.valid[rows]
        self.readers = [self.readers[row].copy() for row in rows.tolist()] if self.readers else []
        for block in self.blocks:
            block.buffers = [buffer[rows] for buffer in block.buffers]

    def crop(self, length: int) -> None:
        """Forget the positions from ``length`` on.

        Args:
            length: Positions to keep, at most :attr:`length`.
        """
        if self.valid is None:
            return
        kept = self.valid[:, :length]
        for block in self.blocks:
            block.length = min(block.length, length)
        self.readers = [
            reader.rewound(int(count)) for reader, count in zip(self.readers, kept.sum(1).tolist(), strict=False)
        ]
        self.valid = kept

    def extend_valid(self, mask: Tensor) -> Tensor:
        """Add positions to the mask.

        Args:
            mask: (batch, new positions) bool.

        Returns:
            The whole mask.
        """
        self.valid = mask if self.valid is None else torch.cat([self.valid, mask], dim=1)
        return self.valid

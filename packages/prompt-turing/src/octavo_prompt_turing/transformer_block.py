"""One block of the Transformer as a torch module."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from octavo_prompt_turing.attention import deficit_choice, naive_choice, normalise_direction, pair_norms
from octavo_prompt_turing.blocks import BlockWeights
from octavo_prompt_turing.cache import BlockCache
from octavo_prompt_turing.engine_config import EngineConfig

__all__ = ["TransformerBlock"]

_PREFILL_ELEMENTS = 2**20


class TransformerBlock(nn.Module):
    """Attention, group normalisation and feed-forward layer, each added to the residual stream.

    Args:
        weights: The matrices.
        num_integers: Leading columns of the residual stream that hold integers.

    Source:
        Paper, Section 2 (decoder with hardmax attention) and its construction.
    """

    query: nn.Parameter
    key: nn.Parameter
    value: nn.Parameter
    output: nn.Parameter
    hidden: nn.Parameter
    hidden_bias: nn.Parameter
    projection: nn.Parameter
    projection_bias: nn.Parameter

    def __init__(self, weights: BlockWeights, num_integers: int) -> None:
        super().__init__()
        for name in ("query", "key", "value", "output", "hidden", "hidden_bias", "projection", "projection_bias"):
            tensor = torch.tensor(getattr(weights, name), dtype=torch.float64)
            setattr(self, name, nn.Parameter(tensor, requires_grad=False))
        self.num_integers = num_integers
        self.shape = weights.shape
        self.head_names = weights.head_names
        groups = list(zip(weights.norm_sources, weights.norm_targets, strict=True))
        self._norms = [
            (size, [s for s, _ in groups if len(s) == size], [t for s, t in groups if len(s) == size])
            for size in (1, 2)
        ]
        self._norm_columns: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}

    def forward(
        self,
        stream: Float[Tensor, "batch positions features"],
        cache: BlockCache,
        valid: Bool[Tensor, "batch keys"] | None,
        config: EngineConfig,
    ) -> Float[Tensor, "batch positions features"]:
        """Add what the block computes.

        Args:
            stream: Residual stream of the new positions.
            cache: Earlier positions; the new ones are added.
            valid: False on padding, earlier positions included; ``None`` without padding.
            config: Engine.

        Returns:
            The residual stream after the block.
        """
        naive = config.engine != "deficit64"
        stream = stream + self.attend(stream, cache, valid, config)
        self._normalise(stream, config)
        if self.hidden.shape[0] == 0:
            return stream
        if naive:
            inner = stream @ self.hidden.T + self.hidden_bias
        else:
            # Integers first: 1 - 1 + 1e-20 must not become 0.
            cut = self.num_integers
            inner = stream[..., :cut] @ self.hidden[:, :cut].T + self.hidden_bias
            inner = inner + stream[..., cut:] @ self.hidden[:, cut:].T
        return stream + (inner.relu() @ self.projection.T + self.projection_bias)

    def attend(
        self, stream: Tensor, cache: BlockCache, valid: Tensor | None, config: EngineConfig
    ) -> Float[Tensor, "batch positions features"]:
        """Compute what the heads add to the residual stream.

        Args:
            stream: As in :meth:`forward`.
            cache: As in :meth:`forward`.
            valid: As in :meth:`forward`.
            config: As in :meth:`forward`.

        Returns:
            The sum of the heads' outputs.
        """
        heads, width, _ = self.query.shape
        matrix = torch.cat([self.query, self.key, self.value], dim=1).flatten(0, 1)
        rows = (stream @ matrix.T).unflatten(-1, (heads, -1)).transpose(1, 2)
        query, key, value = rows.split([width, width, self.value.shape[1]], dim=-1)
        deficit = config.engine == "deficit64"
        norms = pair_norms(rows[..., : 2 * width].unflatten(-1, (2, width)), self.shape) if deficit else rows[..., :0]
        kept = cache.append(key.mT, value.mT, *([norms[..., 1, :].mT] if deficit else []))
        keys, values = kept[:2]
        positions = stream.shape[1]
        step = max(1, _PREFILL_ELEMENTS // (heads * keys.shape[-1]))
        pieces = []
        for start in range(0, positions, step):
            stop = min(start + step, positions)
            # Later keys are masked anyway; leaving them out halves the work.
            seen = keys.shape[-1] - positions + stop
            mask = _visible(valid, stop - start, seen, stream.device)
            piece, near = query[:, :, start:stop], keys[..., :seen]
            if deficit:
                chosen = deficit_choice(piece, norms[:, :, start:stop, 0], near, kept[2][..., :seen], mask, self.shape)
            else:
                chosen = naive_choice(piece, near, mask, config.tolerance)
            # Sums of integers are exact in any order; so the division comes last.
            weights = chosen.to(stream.dtype)
            pieces.append((weights @ values[..., :seen].mT) / weights.sum(-1, keepdim=True).clamp(min=1))
        found = (torch.cat(pieces, dim=2) if len(pieces) > 1 else pieces[0]).transpose(1, 2).flatten(-2)
        return found @ self.output.transpose(1, 2).flatten(0, 1)

    def _normalise(self, stream: Tensor, config: EngineConfig) -> None:
        for source, target in self._columns(stream.device):
            group = stream[..., source]
            if group.shape[-1] == 1:
                zero = config.tolerance if config.engine != "deficit64" else 0.0
                unit = torch.where(group.abs() <= zero, 0.0, group.sign())
            elif config.engine == "deficit64":
                unit = normalise_direction(group)
            else:
                norm = group.square().sum(-1, keepdim=True).sqrt()
                unit = group / torch.where(norm <= config.tolerance, torch.inf, norm)
            stream.index_add_(-1, target.flatten(), unit.flatten(-2))

    def _columns(self, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        if device not in self._norm_columns:
            self._norm_columns[device] = [
                (torch.tensor(sources, device=device), torch.tensor(targets, device=device))
                for _, sources, targets in self._norms
                if sources
            ]
        return self._norm_columns[device]


def _visible(valid: Tensor | None, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """Keys that each of the last ``queries`` positions may see: not later ones, and no padding; ``None`` for all."""
    padding = None if valid is None else valid[:, None, None, :keys]
    if queries == 1:
        return padding
    order = torch.arange(keys, device=device)
    causal = (order <= order[keys - queries :, None])[None, None]
    return causal if padding is None else causal & padding

"""A transformers cache whose full-attention layers hold an :class:`octavo_magicpig.LSHIndex`."""

from __future__ import annotations

from typing import Any

import torch
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingDependencyError
from torch import Tensor

from octavo_magicpig.config import LSHConfig
from octavo_magicpig.heavy import heavy_positions
from octavo_magicpig.index import LSHIndex
from octavo_magicpig.stats import AttendStats

try:
    from transformers.cache_utils import (
        DYNAMIC_LAYER_TYPE_MAPPING,
        Cache,
        CacheLayerMixin,
        get_layer_types_and_kwargs,
    )
except ImportError as error:  # pragma: no cover - depends on the environment
    raise MissingDependencyError.for_extra("transformers", "octavo-magicpig", "transformers") from error

__all__ = ["LSHCache", "LSHLayer", "cache_layer_of"]

_STOCK_LAYERS = ("sliding_attention", "chunked_attention", "dummy")
_LINK = "_octavo_magicpig_layer"
_OBSERVED = 32


class LSHLayer(CacheLayerMixin):
    """Cache of one full-attention layer.

    Keys and values live in memory that grows geometrically. The tables are built at the first single-token step with
    ``min_context`` tokens or more, so that a prompt that comes in pieces is hashed once.

    Args:
        config: Settings.
        layer: Index of the layer, which has planes of its own.
        sparse: Whether to sample at all; a dense layer only profits from the memory and the dense kernel.
    """

    is_croppable = True
    is_sliding = False

    def __init__(self, config: LSHConfig, layer: int = 0, sparse: bool = True) -> None:
        super().__init__()
        self.config, self.layer_index, self.sparse = config, layer, sparse
        self.index: LSHIndex | None = None
        self.last_stats: AttendStats | None = None
        self._recent: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make the index, once the shapes are known.

        Args:
            key_states: First keys, (batch, kv_heads, tokens, head_dim).
            value_states: First values.

        Raises:
            InvalidValueError: If keys and values have different sizes, as in latent attention.
        """
        batch, kv_heads, _, head_dim = key_states.shape
        if value_states.shape[-1] != head_dim:
            raise InvalidValueError(
                f"keys of size {head_dim} and values of size {value_states.shape[-1]} are not supported; "
                "use a model whose heads have one size"
            )
        self.dtype, self.device, self.batch_size = key_states.dtype, key_states.device, batch
        self.index = LSHIndex(
            self.config, kv_heads, head_dim, batch, key_states.dtype, key_states.device, layer=self.layer_index
        )
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add tokens.

        Args:
            key_states: (batch, kv_heads, tokens, head_dim).
            value_states: The same shape.
            *args: Ignored.
            **kwargs: Ignored.

        Returns:
            All keys and values, as views. The keys know their layer, which is how the attention function finds the
            index.
        """
        if self.index is None:
            self.lazy_initialization(key_states, value_states)
        index = self._require_index()
        index.extend(key_states, value_states)
        self.keys, self.values = index.keys, index.values
        setattr(self.keys, _LINK, self)
        return self.keys, self.values

    def observe(self, query: Tensor) -> None:
        """Remember the last queries of a prompt, from which exact keys are chosen when ``heavy_tokens`` is set.

        Args:
            query: (batch, heads, tokens, head_dim).
        """
        if self.config.heavy_tokens and self.sparse:
            self._recent = query[:, :, -_OBSERVED:].detach()

    def attend(self, query: Tensor, scale: float | None, padding: Tensor | None) -> Tensor:
        """Attend with one query token, by sampling if there are enough tokens.

        Args:
            query: (batch, heads, head_dim).
            scale: Factor of the scores.
            padding: Padded tokens at the beginning of each row, or ``None``.

        Returns:
            Output (batch, heads, head_dim).
        """
        index = self._require_index()
        if not self.sparse or len(index) < self.config.min_context:
            from octavo_magicpig.attention import dense_decode_attention

            self.last_stats = None
            return dense_decode_attention(
                query, index.keys, index.values, scale=scale, first=padding, kernel=self.config.kernel
            )[0]
        if not index.is_built:
            index.build_tables(padding=padding, heavy=self._heavy(index, scale))
            self._recent = None
        out, _, self.last_stats = index.attend_unchecked(query, scale)
        return out

    def get_seq_length(self) -> int:
        """Return the number of tokens."""
        return 0 if self.index is None else len(self.index)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length and the offset of the keys that a mask must cover.

        Args:
            query_length: Tokens about to be added.

        Returns:
            Length and offset.
        """
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: there is no maximum."""
        return -1

    def reset(self) -> None:
        """Forget everything."""
        self.index = self.keys = self.values = self.last_stats = self._recent = None
        self.is_initialized = False

    def crop(self, tokens_to_remove: int) -> None:
        """Remove tokens from the end.

        Args:
            tokens_to_remove: Minus the number of tokens to remove, as transformers has it.

        Raises:
            InvalidValueError: If the number is positive.
        """
        if tokens_to_remove > 0:
            raise InvalidValueError(
                f"crop({tokens_to_remove}) is not supported; give minus the number of tokens to remove"
            )
        if tokens_to_remove and self.index is not None:
            self.index.crop(max(0, len(self.index) + tokens_to_remove))
            self.keys, self.values = self.index.keys, self.index.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Rearrange the rows for beam search.

        Args:
            beam_idx: For each new row the old one.
        """
        self._take(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row.

        Args:
            repeats: How many times.
        """
        if self.index is not None:
            self._take(torch.arange(self.index.batch_size).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows.

        Args:
            indices: Rows to keep.
        """
        self._take(indices)

    def offload(self) -> None:
        """Move the index to the CPU."""
        if self.index is not None:
            self.index.to("cpu")

    def prefetch(self) -> None:
        """Move the index back to where it came from."""
        if self.index is not None and self.index.device != self.device:
            self.index.to(self.device)

    def _heavy(self, index: LSHIndex, scale: float | None) -> Tensor | None:
        if self._recent is None or len(index) <= self.config.sink_tokens + self.config.window_tokens:
            return None
        # The token of this step came after the observed queries.
        prompt = index.keys[:, :, : len(index) - 1]
        return heavy_positions(
            self._recent,
            prompt,
            self.config.heavy_tokens,
            scale=scale,
            begin=self.config.sink_tokens,
            end=prompt.shape[2] - self.config.window_tokens,
        )

    def _take(self, rows: Tensor) -> None:
        if self.index is not None:
            self.index.reorder(rows.to(self.index.device))
            self.batch_size = self.index.batch_size
            self.keys, self.values = self.index.keys, self.index.values

    def _require_index(self) -> LSHIndex:
        if self.index is None:
            raise InvalidStateError("the cache layer is empty; run the prompt through the model first")
        return self.index


class LSHCache(Cache):
    """Cache for a whole model: indices in its full-attention layers, the stock layers elsewhere.

    Pass it as ``model.generate(..., cache=LSHCache(model.config))`` to a model whose attention is ``"magicpig"``
    (:func:`octavo_magicpig.use_magicpig`, or the context manager :func:`octavo_magicpig.sparse`, which makes the cache
    too).

    Args:
        config: Configuration of the model.
        lsh: Settings of the sampling.

    Raises:
        InvalidValueError: If the model is an encoder-decoder, has layers that keep no keys (linear attention, state
            space models), or has fewer layers than ``dense_layers`` names.
    """

    def __init__(self, config: Any, lsh: LSHConfig | None = None) -> None:
        settings = lsh or LSHConfig()
        if getattr(config, "is_encoder_decoder", False):
            raise InvalidValueError("encoder-decoder models are not supported; use a decoder-only model")
        decoder = config.get_text_config(decoder=True)
        layer_types, layer_options = get_layer_types_and_kwargs(decoder)
        if unknown := sorted(set(layer_types) - {"full_attention", *_STOCK_LAYERS}):
            raise InvalidValueError(
                f"layers of type {unknown[0]!r} are not supported; use a model with full or sliding-window attention"
            )
        dense = settings.dense_layer_indices(len(layer_types))
        super().__init__(
            layers=[
                LSHLayer(settings, number, sparse=number not in dense)
                if kind == "full_attention"
                else DYNAMIC_LAYER_TYPE_MAPPING[kind](**options)
                for number, (kind, options) in enumerate(zip(layer_types, layer_options, strict=True))
            ]
        )
        self.lsh = settings

    def sampled_fraction(self) -> dict[int, float]:
        """Share of the hashed keys that the last step sampled, by layer; dense layers are left out.

        Returns:
            Mean over rows and heads.
        """
        return {
            number: float(layer.last_stats.fraction.mean())
            for number, layer in enumerate(self.layers)
            if isinstance(layer, LSHLayer) and layer.last_stats is not None
        }

    def estimated_error(self) -> dict[int, float]:
        """Estimated relative error of the last step, by layer; zero unless ``tolerance`` is set.

        Returns:
            Mean over rows and heads.
        """
        return {
            number: float(layer.last_stats.error.mean())
            for number, layer in enumerate(self.layers)
            if isinstance(layer, LSHLayer) and layer.last_stats is not None
        }

    def index_bytes(self) -> int:
        """Bytes of all tables, beyond keys and values.

        Returns:
            Their sum.
        """
        return sum(
            layer.index.memory_bytes()["index"]
            for layer in self.layers
            if isinstance(layer, LSHLayer) and layer.index is not None
        )


def cache_layer_of(keys: Tensor) -> LSHLayer | None:
    """Find the layer that returned some keys.

    Args:
        keys: What :meth:`LSHLayer.update` returned.

    Returns:
        The layer, or ``None`` for other tensors.
    """
    return getattr(keys, _LINK, None)

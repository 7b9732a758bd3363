"""A transformers cache whose full-attention layers hold an :class:`octavo_magicpig.LSHIndex`."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingDependencyError
from torch import Tensor

from octavo_magicpig.config import LSHConfig
from octavo_magicpig.heavy import heavy_positions
from octavo_magicpig.index import LSHIndex
from octavo_magicpig.stats import AttendStats
from octavo_magicpig.validation import check_storable

try:
    from transformers import PreTrainedConfig
    from transformers.cache_utils import (
        DYNAMIC_LAYER_TYPE_MAPPING,
        Cache,
        CacheLayerMixin,
        get_layer_types_and_kwargs,
    )
except ImportError as error:  # pragma: no cover - depends on the environment
    raise MissingDependencyError.for_extra("transformers", "octavo-magicpig", "transformers") from error

__all__ = ["LSHCache", "LSHLayer", "cache_layer_of", "checked_settings"]

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
        # The padding that the tables were built with, as the tensor that came: nearly always the same object again.
        self._padding: Tensor | None = None
        self._awaited = self._warned = False

    def __getstate__(self) -> dict[str, Any]:
        # Views of the index, and known to it again in the copy.
        return {name: value for name, value in vars(self).items() if name not in ("keys", "values")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.keys, self.values = (None, None) if self.index is None else (self.index.keys, self.index.values)

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

        Raises:
            InvalidValueError: If the shape is not that of the tokens before, or a key or value is too large for
                ``kv_dtype``.
        """
        if self.index is None:
            self.lazy_initialization(key_states, value_states)
        index = self._require_index()
        shape, wanted = key_states.shape, (index.batch_size, index.num_kv_heads, index.head_dim)
        if (shape[0], shape[1], shape[3]) != wanted or value_states.shape != shape:
            raise InvalidValueError(
                f"keys {tuple(shape)} and values {tuple(value_states.shape)} do not fit the cache; give "
                f"({wanted[0]}, {wanted[1]}, any, {wanted[2]}) for both, or a new cache"
            )
        check_storable("keys", key_states, index.dtype)
        check_storable("values", value_states, index.dtype)
        self._expect_attention(shape[2])
        before = (self.keys, self.values)
        index.extend(key_states, value_states)
        self.keys, self.values = index.keys, index.values
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            # The index holds no graph, and its memory is written again; a backward pass needs tensors of its own.
            self.keys, self.values = (
                new if old is None else torch.cat([old, new.to(old.dtype)], 2)
                for old, new in zip(before, (key_states, value_states), strict=True)
            )
        setattr(self.keys, _LINK, self)
        return self.keys, self.values

    def observe(self, query: Tensor) -> None:
        """Note exact attention, and the last queries of a prompt, from which ``heavy_tokens`` are chosen.

        Args:
            query: (batch, heads, tokens, head_dim).
        """
        self._awaited = False
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
        self._awaited = False
        if not self.sparse or len(index) < self.config.min_context:
            self.last_stats = None
            return index.dense_unchecked(query, query.shape[-1] ** -0.5 if scale is None else scale, padding)
        if not index.is_built:
            index.build_tables(padding=padding, heavy=self._heavy(index, scale))
            self._recent, self._padding = None, padding
        elif padding is not self._padding:
            self._follow_padding(index, padding)
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
        self.index = self.keys = self.values = self.last_stats = self._recent = self._padding = None
        self.is_initialized = self._awaited = False

    def crop(self, tokens_to_remove: int) -> None:
        """Remove tokens from the end. When no hashed token is left the tables are forgotten, padding included.

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
            if not self.index.hashed_tokens:
                self.index.forget_tables()
            self._recent = None
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

    def _expect_attention(self, tokens: int) -> None:
        """Tell when a decode step ended without the attention function: then nothing is ever sampled."""
        if tokens != 1:
            return
        if self._awaited and not self._warned:
            self._warned = True
            warnings.warn(
                "the keys of an LSHCache never reached the magicpig attention, so nothing is sampled: switch the model "
                "with use_magicpig(model) or sparse(model), or use another architecture if this one changes its keys "
                "on the way",
                stacklevel=2,
            )
        self._awaited = True

    def _follow_padding(self, index: LSHIndex, padding: Tensor | None) -> None:
        """Build the tables anew if a mask hides other tokens than when they were built."""
        now = torch.zeros_like(index._first) if padding is None else padding
        if not torch.equal(now, index._first):
            heavy = index._heavy
            index.forget_tables()
            index.build_tables(padding=now, heavy=heavy)
        self._padding = padding

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
            self._padding = None
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
        InvalidTypeError: If an argument is something else.
    """

    def __init__(self, config: Any, lsh: LSHConfig | Any = None) -> None:
        if not isinstance(config, PreTrainedConfig):
            raise InvalidTypeError(
                f"config of type {type(config).__name__} is not accepted; give the configuration of the model, "
                "model.config"
            )
        settings = checked_settings(lsh)
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


def checked_settings(lsh: LSHConfig | Any) -> LSHConfig:
    """Check the settings of the sampling.

    Args:
        lsh: Settings, or ``None`` for the defaults.

    Returns:
        The settings.

    Raises:
        InvalidTypeError: If it is something else.
    """
    if lsh is not None and not isinstance(lsh, LSHConfig):
        raise InvalidTypeError(f"settings {lsh!r} are not accepted; give LSHConfig(...) or LSHConfig.from_dict(...)")
    return lsh or LSHConfig()


def cache_layer_of(keys: Tensor) -> LSHLayer | None:
    """Find the layer that returned some keys.

    Args:
        keys: What :meth:`LSHLayer.update` returned.

    Returns:
        The layer, or ``None`` for other tensors.
    """
    return getattr(keys, _LINK, None)

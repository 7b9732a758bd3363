"""The attention function for transformers, and two ways to switch a model to it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from octavo_core.errors import InvalidValueError, MissingDependencyError
from torch import Tensor

from octavo_magicpig._cache import LSHCache, cache_layer_of
from octavo_magicpig.config import LSHConfig

try:
    from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask
except ImportError as error:  # pragma: no cover - depends on the environment
    raise MissingDependencyError.for_extra("transformers", "octavo-magicpig", "transformers") from error

__all__ = ["NAME", "Session", "magicpig_attention", "sparse", "use_magicpig"]

NAME = "magicpig"
"""Name under which the attention is registered in transformers."""

# Extras of a call that change the scores in a way the kernels do not know.
_UNSUPPORTED = ("softcap", "position_bias", "s_aux", "sliding_window")


def magicpig_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float | int = 0.0,
    scaling: float | int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention for transformers: sampled for one query token on an :class:`octavo_magicpig.LSHCache`, else exact.

    Prompts, pieces of prompts, speculative steps of several tokens, other caches, and masks other than padding on the
    left go to PyTorch's scaled dot-product attention.

    Args:
        module: The attention layer.
        query: (batch, heads, tokens, head_dim).
        key: (batch, kv_heads, cached tokens, head_dim), as the cache returned it.
        value: The same shape.
        attention_mask: Boolean or additive mask (batch, 1, tokens, cached tokens), or ``None``.
        dropout: Dropout of the weights.
        scaling: Factor of the scores.
        **kwargs: What the model adds.

    Returns:
        Output (batch, tokens, heads, head_dim), and ``None`` for the weights.
    """
    layer = cache_layer_of(key)
    exact = (
        layer is None
        or query.shape[2] != 1
        or dropout
        or any(kwargs.get(name) is not None for name in _UNSUPPORTED)
        or (torch.is_grad_enabled() and query.requires_grad)
    )
    padding = None
    if layer is not None and not exact and attention_mask is not None:
        padding = _left_padding(attention_mask, key)
        exact = padding is None
    if layer is None or exact:
        if layer is not None:
            layer.observe(query)
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    factor = float(scaling) if scaling is not None else query.shape[-1] ** -0.5
    with torch.autocast(query.device.type, enabled=False):
        out = layer.attend(query[:, :, 0], factor, padding)
    return out[:, None], None


@dataclass
class Session:
    """What :func:`sparse` yields.

    Args:
        config: Settings of the sampling.
        cache: The cache of the last generation or forward pass.
    """

    config: LSHConfig
    cache: LSHCache | None = None


def use_magicpig(model: Any) -> Any:
    """Switch a model's attention to ``"magicpig"`` for good.

    It then computes as before until it is given an :class:`octavo_magicpig.LSHCache`.

    Args:
        model: A decoder-only transformers model.

    Returns:
        The model.

    Raises:
        InvalidValueError: If the model is an encoder-decoder, or its attention cannot be exchanged.
    """
    _check_model(model)
    try:
        model.set_attn_implementation(NAME)
    except ValueError as error:
        raise InvalidValueError(f"{type(model).__name__} does not let its attention be exchanged: {error}") from error
    return model


@contextlib.contextmanager
def sparse(model: Any, config: LSHConfig | None = None) -> Generator[Session, None, None]:
    """Sample the attention of a model while it decodes within a block.

    ``with sparse(model): model.generate(...)`` makes an :class:`octavo_magicpig.LSHCache` for each generation, and for
    each forward pass that is given no cache or an empty ``DynamicCache``. Caches of other kinds are left alone.

    Args:
        model: A decoder-only transformers model.
        config: Settings of the sampling.

    Yields:
        A session, whose ``cache`` is the last one made.

    Raises:
        InvalidValueError: If the model is not supported.
    """
    settings = config or LSHConfig()
    session = Session(settings)
    _check_model(model)
    LSHCache(model.config, settings)  # refuses layers that are not supported before anything is changed
    before = model.config._attn_implementation
    use_magicpig(model)
    prepare: Any = getattr(model, "_prepare_cache_for_generation", None)

    def fresh() -> LSHCache:
        session.cache = LSHCache(model.config, settings)
        return session.cache

    def prepare_cache(generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        result = prepare(generation_config, model_kwargs, *args, **kwargs)
        if _replaceable(model_kwargs.get("cache")):
            model_kwargs["cache"] = fresh()
        return result

    def before_forward(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        name = "past_key_values" if kwargs.get("past_key_values") is not None else "cache"
        cache = kwargs.get(name)
        wanted = kwargs.get("use_cache")
        wanted = model.config.get_text_config(decoder=True).use_cache if wanted is None else wanted
        if wanted and (cache is None or _replaceable(cache)):
            kwargs = {**kwargs, name: fresh()}
        return args, kwargs

    hook = model.register_forward_pre_hook(before_forward, with_kwargs=True)
    if prepare is not None:
        model._prepare_cache_for_generation = prepare_cache
    try:
        yield session
    finally:
        hook.remove()
        if prepare is not None:
            del model._prepare_cache_for_generation
        model.set_attn_implementation(before)


def _check_model(model: Any) -> None:
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "set_attn_implementation"):
        raise InvalidValueError(f"{type(model).__name__} is not a transformers model; give a PreTrainedModel")
    if getattr(config, "is_encoder_decoder", False):
        raise InvalidValueError(f"{type(model).__name__} is an encoder-decoder model; use a decoder-only model")


def _replaceable(cache: Any) -> bool:
    return type(cache) is DynamicCache and not cache.offloading and cache.get_seq_length() == 0


class _LastMask:
    """The padding of the last mask, the same in all layers of a step. One pair, so that threads cannot mix it up."""

    pair: tuple[Tensor | None, Tensor | None] = (None, None)


def _left_padding(mask: Tensor, key: Tensor) -> Tensor | None:
    """Hidden tokens at the beginning of each row, or ``None`` if the mask hides others too."""
    if mask.dtype != torch.bool or mask.ndim != 4 or mask.shape[1:3] != (1, 1) or mask.shape[3] != key.shape[2]:
        return None
    last_mask, last_padding = _LastMask.pair
    if last_mask is mask:
        return last_padding
    visible = mask[:, 0, 0]
    hidden = (~visible).sum(1)
    position = torch.arange(visible.shape[1], device=mask.device)
    padding = hidden if bool(((position >= hidden[:, None]) == visible).all()) else None
    if padding is not None and len(padding) != key.shape[0]:
        padding = padding.expand(key.shape[0]).contiguous()
    _LastMask.pair = (mask, padding)
    return padding


AttentionInterface.register(NAME, magicpig_attention)
# Without its own mask function the mask would silently be left out, and padded batches would be wrong.
AttentionMaskInterface.register(NAME, sdpa_mask)

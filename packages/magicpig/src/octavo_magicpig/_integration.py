"""The attention function for transformers, and two ways to switch a model to it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import torch
from octavo_core.errors import InvalidValueError, MissingDependencyError
from torch import Tensor

from octavo_magicpig._cache import LSHCache, cache_layer_of, checked_settings
from octavo_magicpig.config import LSHConfig

try:
    from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask
except ImportError as error:  # pragma: no cover - depends on the environment
    raise MissingDependencyError.for_extra("transformers", "octavo-magicpig", "transformers") from error

__all__ = ["NAME", "Session", "magicpig_attention", "sparse", "use_magicpig"]

_PREPARE = "_prepare_cache_for_generation"
NAME = "magicpig"
"""Name under which the attention is registered in transformers."""

# Extras of a call that change the scores in a way that neither the kernels nor PyTorch's attention know, and those
# that PyTorch's knows.
_REFUSED = ("softcap", "s_aux")
_EXACT = ("position_bias", "sliding_window")


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

    Prompts, pieces of prompts, speculative steps of several tokens, other caches, masks other than padding on the left,
    dropout, and steps whose gradient is recorded go to PyTorch's scaled dot-product attention.

    Args:
        module: The attention layer.
        query: (batch, heads, tokens, head_dim).
        key: (batch, kv_heads, cached tokens, head_dim), as the cache returned it; of the type that the cache stores.
        value: The same shape.
        attention_mask: Boolean or additive mask (batch, 1, tokens, cached tokens), or ``None``.
        dropout: Dropout of the weights.
        scaling: Factor of the scores.
        **kwargs: What the model adds.

    Returns:
        Output (batch, tokens, heads, head_dim), and ``None`` for the weights.

    Raises:
        InvalidValueError: If the model has attention sinks (``s_aux``) or caps its scores.
    """
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise InvalidValueError(
                f"attention with {name} is not supported; use a model without attention sinks and soft-capped scores"
            )
    layer = cache_layer_of(key)
    exact = (
        layer is None
        or query.shape[2] != 1
        or dropout
        or any(kwargs.get(name) is not None for name in _EXACT)
        or (torch.is_grad_enabled() and query.requires_grad)
    )
    padding = None
    if layer is not None and not exact and attention_mask is not None:
        padding = _left_padding(attention_mask, key)
        exact = padding is None
    if layer is None or exact:
        if layer is not None:
            layer.observe(query)
            key, value = key.to(query.dtype), value.to(query.dtype)
            if torch.is_grad_enabled() and query.requires_grad and not key.requires_grad:
                key, value = key.clone(), value.clone()  # the memory of the index is written again before backward
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
        thread: Thread that entered the block.
    """

    config: LSHConfig
    cache: LSHCache | None = None
    thread: int = field(default_factory=threading.get_ident, repr=False)


def use_magicpig(model: Any) -> Any:
    """Switch a model's attention to ``"magicpig"`` for good.

    It then computes as before until it is given an :class:`octavo_magicpig.LSHCache`.

    Args:
        model: A decoder-only transformers model.

    Returns:
        The model.

    Raises:
        InvalidValueError: If the model is an encoder-decoder, its attention cannot be exchanged (Falcon, Bloom), or
            is more than PyTorch's scaled dot-product attention knows (sinks, soft-capped scores).
    """
    _check_model(model)
    model.set_attn_implementation(NAME)
    return model


@contextlib.contextmanager
def sparse(model: Any, config: LSHConfig | Any = None) -> Generator[Session, None, None]:
    """Sample the attention of a model while it decodes within a block.

    ``with sparse(model): model.generate(...)`` makes an :class:`octavo_magicpig.LSHCache` for each generation, and for
    each forward pass that is given no cache or an empty ``DynamicCache``. Caches of other kinds are left alone.

    Blocks can be nested and used from several threads: a thread follows the last block that it entered itself, and a
    thread that entered none the last one of all. The model is restored when the last block ends.

    Args:
        model: A decoder-only transformers model.
        config: Settings of the sampling.

    Yields:
        A session, whose ``cache`` is the last one made.

    Raises:
        InvalidValueError: If the model is not supported.
        InvalidTypeError: If the settings are no :class:`octavo_magicpig.LSHConfig`.
    """
    session = Session(checked_settings(config))
    _check_model(model)
    LSHCache(model.config, session.config)  # refuses layers that are not supported before anything is changed
    with _Switched.lock:
        switched = _Switched.models.get(model)
        if switched is None:
            switched = _Switched.models[model] = _Switched(model)
        switched.sessions.append(session)
    try:
        yield session
    finally:
        with _Switched.lock:
            switched.sessions = [other for other in switched.sessions if other is not session]
            if not switched.sessions:
                del _Switched.models[model]
                switched.restore(model)


class _Switched:
    """A model while there are :func:`sparse` blocks for it: what it was before, and the blocks in force."""

    lock = threading.RLock()
    models: dict[Any, _Switched] = {}  # noqa: RUF012 - one for the process

    def __init__(self, model: Any) -> None:
        self.sessions: list[Session] = []
        self.before = model.config._attn_implementation
        self.prepare = vars(model).get(_PREPARE)
        use_magicpig(model)
        known: Any = getattr(model, _PREPARE, None)
        config = model.config

        def prepare_cache(generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            result = known(generation_config, model_kwargs, *args, **kwargs)
            if _replaceable(model_kwargs.get("cache")):
                model_kwargs["cache"] = self.fresh(config)
            return result

        def before_forward(
            _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            name = "past_key_values" if kwargs.get("past_key_values") is not None else "cache"
            cache = kwargs.get(name)
            wanted = kwargs.get("use_cache")
            wanted = config.get_text_config(decoder=True).use_cache if wanted is None else wanted
            if wanted and (cache is None or _replaceable(cache)):
                kwargs = {**kwargs, name: self.fresh(config)}
            return args, kwargs

        self.hook = model.register_forward_pre_hook(before_forward, with_kwargs=True)
        self.prepares = known is not None
        if self.prepares:
            setattr(model, _PREPARE, prepare_cache)

    def fresh(self, config: Any) -> LSHCache:
        own = [session for session in self.sessions if session.thread == threading.get_ident()]
        session = (own or self.sessions)[-1]
        session.cache = LSHCache(config, session.config)
        return session.cache

    def restore(self, model: Any) -> None:
        self.hook.remove()
        if self.prepare is not None:
            setattr(model, _PREPARE, self.prepare)
        elif self.prepares:
            delattr(model, _PREPARE)
        model.set_attn_implementation(self.before)


def _check_model(model: Any) -> None:
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "set_attn_implementation"):
        raise InvalidValueError(f"{type(model).__name__} is not a transformers model; give a PreTrainedModel")
    if getattr(config, "is_encoder_decoder", False):
        raise InvalidValueError(f"{type(model).__name__} is an encoder-decoder model; use a decoder-only model")
    # The decoder counts, and what holds it; a vision tower beside it may be of another kind.
    configs = (config, config.get_text_config(decoder=True))
    parts = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    parts = [part for part in parts if any(part.config is known for known in configs)]
    if not all(part._supports_sdpa for part in parts):
        raise InvalidValueError(
            f"{type(model).__name__} is not supported: its attention is more than scaled_dot_product_attention "
            "computes (sinks or soft-capped scores, for example); use another architecture"
        )
    if not all(part._can_set_attn_implementation() for part in parts):
        raise InvalidValueError(
            f"{type(model).__name__} does not let its attention be exchanged: it does not use the AttentionInterface "
            "of transformers; use another architecture"
        )


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
    if padding is not None and last_padding is not None and torch.equal(padding, last_padding):
        padding = last_padding  # the layers look at the object
    _LastMask.pair = (mask, padding)
    return padding


AttentionInterface.register(NAME, magicpig_attention)
# Without its own mask function the mask would silently be left out, and padded batches would be wrong.
AttentionMaskInterface.register(NAME, sdpa_mask)

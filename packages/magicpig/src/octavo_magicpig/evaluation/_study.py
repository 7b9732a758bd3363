"""Running a model under any estimator: dense, sampled, or a baseline, from one dense prompt."""

from __future__ import annotations

import contextlib
import copy
import numbers
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import torch
from octavo_core.device import torch_generator
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from octavo_magicpig import baselines, estimators
from octavo_magicpig._cache import LSHCache
from octavo_magicpig._integration import use_magicpig
from octavo_magicpig.config import LSHConfig

__all__ = ["METHODS", "Captured", "Method", "Prefix", "capture", "decode", "make_method", "prefill", "running"]

_NAME = "magicpig-study"

METHODS = ("dense", "lsh", "uncentered", "unweighted", "window", "topk", "quest", "uniform", "oracle", "hybrid")
"""Names that :func:`make_method` knows."""


@dataclass(frozen=True)
class Method:
    """A way to decode.

    Args:
        name: Its name.
        config: Settings of the hashing; its dense layers and ``min_context`` hold for every method.
        estimator: Estimator called on a decode step of a sparse layer with ``(query, keys, values, scale, layer)``, or
            ``None`` for the cache of the package (``"lsh"`` and ``"uncentered"``) and for exact attention.
    """

    name: str
    config: LSHConfig
    estimator: Callable[..., estimators.Estimate] | None = None


def make_method(name: str, config: LSHConfig | None = None, *, budget: float | Any = 0.03, seed: int = 0) -> Method:
    """Make a method by its name.

    Args:
        name: One of :data:`METHODS`. ``"window"`` keeps the first and last tokens only; ``"unweighted"`` leaves out the
            weights; ``"hybrid"`` takes half of the budget as exact top keys and samples the rest.
        config: Settings of the hashing, and of the exact tokens for every method.
        budget: Share of the middle keys for the methods that are given one, above 0, at most 1.
        seed: Seed of the methods that draw.

    Returns:
        The method.

    Raises:
        InvalidValueError: If the name is unknown, or the budget out of range.
        InvalidTypeError: If the budget is no number.
    """
    if isinstance(budget, bool) or not isinstance(budget, numbers.Real):
        raise InvalidTypeError(f"budget={budget!r} is no number; give a share of the keys above 0, at most 1")
    if not 0 < budget <= 1:
        raise InvalidValueError(f"budget={budget} is out of range; give a share of the keys above 0, at most 1")
    budget = float(budget)
    settings = config or LSHConfig()
    exact = {"sink_tokens": settings.sink_tokens, "window_tokens": settings.window_tokens}
    generator = torch_generator(seed)

    def on(function: Callable[..., estimators.Estimate], **options: Any) -> Method:
        return Method(
            name,
            settings,
            lambda query, keys, values, scale, layer: function(query, keys, values, scale=scale, **options),
        )

    def hashed(function: Callable[..., estimators.Estimate], **options: Any) -> Method:
        return Method(
            name,
            settings,
            lambda query, keys, values, scale, layer: function(
                query, keys, values, scale=scale, layer=layer, config=settings, **options
            ),
        )

    makers: dict[str, Callable[[], Method]] = {
        "dense": lambda: Method(name, settings),
        "lsh": lambda: Method(name, settings),
        "uncentered": lambda: Method(name, replace(settings, center=False)),
        "unweighted": lambda: hashed(estimators.lsh_attention, weighted=False),
        "window": lambda: on(baselines.streaming_attention, **exact),
        "topk": lambda: on(baselines.topk_attention, budget=budget, **exact),
        "quest": lambda: on(baselines.quest_attention, budget=budget, **exact),
        "uniform": lambda: on(estimators.uniform_sampling_attention, budget=budget, generator=generator, **exact),
        "oracle": lambda: on(estimators.oracle_sampling_attention, num_samples=512, generator=generator, **exact),
        "hybrid": lambda: hashed(estimators.hybrid_attention, budget=budget / 2),
    }
    if name not in makers:
        raise InvalidValueError(f"unknown method {name!r}; give one of {', '.join(METHODS)}")
    return makers[name]()


@dataclass(frozen=True)
class Prefix:
    """A prompt that was processed exactly.

    Args:
        cache: Its keys and values.
        logits: Logits of the next token, (1, vocabulary).
    """

    cache: DynamicCache
    logits: Tensor


def prefill(model: Any, tokens: Tensor, *, piece: int = 1024) -> Prefix:
    """Process a prompt exactly, in pieces.

    Args:
        model: A transformers model.
        tokens: Token ids, (1, tokens).
        piece: Tokens at a time.

    Returns:
        What decoding starts from.

    Raises:
        InvalidValueError: If there is no token.
    """
    if tokens.shape[-1] == 0:
        raise InvalidValueError("the prompt is empty; give at least one token")
    tokens, cache = tokens.to(model.device), DynamicCache(config=model.config)
    logits = torch.empty(0)
    with torch.inference_mode():
        for begin in range(0, tokens.shape[1], piece):
            result = model(tokens[:, begin : begin + piece], cache=cache, use_cache=True, logits_to_keep=1)
            logits = result.logits[:, -1]
    return Prefix(cache, logits)


@contextlib.contextmanager
def running(model: Any, method: Method, prefix: Prefix) -> Generator[Any, None, None]:
    """Switch a model to a method, and give it a copy of a prefix in the cache that the method needs.

    Args:
        model: The model.
        method: The method.
        prefix: The prompt; left as it is.

    Yields:
        The cache to decode with.
    """
    before = model.config._attn_implementation
    with torch.inference_mode():
        if method.name in ("lsh", "uncentered"):
            cache: Any = LSHCache(model.config, method.config)
            layers: list[Any] = prefix.cache.layers
            for number, layer in enumerate(layers):
                cache.update(layer.keys, layer.values, number)
        else:
            cache = copy.deepcopy(prefix.cache)
    try:
        if method.name in ("lsh", "uncentered"):
            use_magicpig(model)
        elif method.estimator is not None:
            model.set_attn_implementation(_NAME)
            _Study.method = method
            _Study.dense = method.config.dense_layer_indices(model.config.get_text_config().num_hidden_layers)
        yield cache
    finally:
        _Study.method = None
        model.set_attn_implementation(before)


def decode(
    model: Any, cache: Any, tokens: Tensor, *, new_tokens: int = 0, first: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Feed tokens one at a time, then continue greedily.

    Args:
        model: The model, switched to a method.
        cache: The cache from :func:`running`.
        tokens: Tokens to feed, (1, n); n may be 0.
        new_tokens: Tokens to generate after them.
        first: Logits that choose the first generated token when nothing is fed.

    Returns:
        Logits after each fed token, (n, vocabulary), and the generated tokens, (new_tokens,).
    """
    logits, generated = [], []
    tokens, last = tokens.to(model.device), first
    with torch.inference_mode():
        for number in range(tokens.shape[1]):
            last = model(tokens[:, number : number + 1], cache=cache, use_cache=True).logits[:, -1]
            logits.append(last[0])
        for number in range(new_tokens):
            if last is None:
                break
            chosen = last.argmax(-1, keepdim=True)
            generated.append(chosen[0])
            if number + 1 < new_tokens:
                last = model(chosen, cache=cache, use_cache=True).logits[:, -1]
    fed = torch.stack(logits) if logits else torch.empty(0)
    return fed, torch.cat(generated) if generated else torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Captured:
    """Queries, keys and values of one layer.

    Args:
        layer: Index of the layer.
        queries: Last queries, (1, heads, observed, dim).
        keys: All keys, (1, kv_heads, tokens, dim).
        values: All values.
        scale: Factor of the scores.
    """

    layer: int
    queries: Tensor
    keys: Tensor
    values: Tensor
    scale: float


def capture(model: Any, tokens: Tensor, layers: list[int], *, observed: int = 8) -> list[Captured]:
    """Record what the attention of some layers sees for a text.

    Args:
        model: The model.
        tokens: Token ids, (1, tokens).
        layers: Layers to record.
        observed: Queries to keep, those of the last tokens.

    Returns:
        A record for each layer.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation(_NAME)
    _Study.wanted, _Study.observed, _Study.records = set(layers), observed, []
    try:
        with torch.inference_mode():
            model(tokens.to(model.device), use_cache=False, logits_to_keep=1)
        return _Study.records
    finally:
        _Study.wanted, _Study.records = set(), []
        model.set_attn_implementation(before)


class _Study:
    """What the study attention does now; a study is one at a time in a process."""

    method: Method | None = None
    dense: frozenset[int] = frozenset()
    wanted: set[int] = set()  # noqa: RUF012 - replaced, never changed
    observed: int = 0
    records: list[Captured] = []  # noqa: RUF012


def _study_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    layer, method = module.layer_idx, _Study.method
    factor = scaling if scaling is not None else query.shape[-1] ** -0.5
    if layer in _Study.wanted:
        last = query[:, :, -_Study.observed :].clone()
        _Study.records.append(Captured(layer, last, key.clone(), value.clone(), factor))
    if method is not None and method.estimator is not None and query.shape[2] == 1 and layer not in _Study.dense:
        estimate = method.estimator(query, key, value, factor, layer)
        return estimate.out.transpose(1, 2).to(query.dtype), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)


AttentionInterface.register(_NAME, _study_attention)
AttentionMaskInterface.register(_NAME, sdpa_mask)

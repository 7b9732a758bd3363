"""The Transformer as a torch module: real matrices, hardmax attention, group normalisation, one state."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from torch import Tensor, nn

from octavo_prompt_turing.arguments import check_integer
from octavo_prompt_turing.cache import BlockCache, HardmaxCache
from octavo_prompt_turing.construction import ALIASES, build_construction
from octavo_prompt_turing.engine_config import EngineConfig, engine_config
from octavo_prompt_turing.positional import positional_features
from octavo_prompt_turing.precision import PrecisionError, max_length
from octavo_prompt_turing.tokens import TOKENS, token_ids
from octavo_prompt_turing.transformer_block import TransformerBlock

__all__ = ["ModelOutput", "PromptTuringModel"]

_DENSE = {"deficit64": torch.float64, "float64": torch.float64, "float32": torch.float32}


@dataclass
class ModelOutput:
    """What a forward pass returns.

    Args:
        logits: (batch, positions, 23).
        cache: The cache with the new positions in it, if one is used.
        hidden: (batch, positions, features), the residual stream at the end, for the dense engines.
    """

    logits: Tensor
    cache: HardmaxCache | None
    hidden: Tensor | None


class PromptTuringModel(nn.Module):
    """The Transformer. Its weights are the same for every program, input and length; the prompt is the program.

    Args:
        config: Engine, by name or with its options; the default is dense float64 in deficit form.

    Raises:
        InvalidValueError: If there is no such engine.

    Source:
        Paper, Theorem 1 and its construction.
    """

    embedding: nn.Parameter
    positional: nn.Parameter
    unembedding: nn.Parameter

    def __init__(self, config: str | EngineConfig | None = None) -> None:
        super().__init__()
        built = build_construction()
        self.config = EngineConfig() if config is None else engine_config(config)
        self.layout = built.layout
        for name in ("embedding", "positional", "unembedding"):
            setattr(self, name, nn.Parameter(torch.tensor(getattr(built, name)), requires_grad=False))
        self.blocks = nn.ModuleList(TransformerBlock(block, built.layout.num_integers) for block in built.blocks)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Int[Tensor, "batch positions"],
        attention_mask: Int[Tensor, "batch total"] | Bool[Tensor, "batch total"] | None = None,
        cache: HardmaxCache | None = None,
        *,
        config: str | EngineConfig | None = None,
        logits_to_keep: int | Int[Tensor, " kept"] = 0,
    ) -> ModelOutput:
        """Read tokens and score the next one after each of them.

        Args:
            input_ids: Token ids, 0 to 22; only the new ones if a cache is given.
            attention_mask: 0 on left padding, for the new positions or for all; ``None`` without padding.
            cache: What was read before; extended in place.
            config: Engine for this call, by name or with its options; that of the model by default.
            logits_to_keep: Score only so many last positions, 0 for all; or the indices of the positions to score.

        Returns:
            Logits for each new position that is kept, the cache, and the residual stream of the dense engines.

        Raises:
            InvalidTypeError: If the weights are not float64, or the ids are not a tensor of integers.
            InvalidValueError: If an id is not that of a token, ids or mask have another shape, the mask has padding on
                the right, or ``logits_to_keep`` is negative.
            InvalidStateError: If the cache was filled by another engine.
            PrecisionError: If the sequence is longer than the engine is guaranteed for.

        Source:
            Paper, Section 2.
        """
        config = self.config if config is None else engine_config(config)
        self._check_dtype()
        input_ids = _check_ids(input_ids)
        kept = logits_to_keep if isinstance(logits_to_keep, Tensor) else _last_positions(logits_to_keep)
        strange = input_ids[(input_ids < 0) | (input_ids >= len(TOKENS))]
        if strange.numel():
            raise InvalidValueError(f"token ids go from 0 to {len(TOKENS) - 1}, got {int(strange[0])}")
        cache = HardmaxCache() if cache is None else cache
        if cache.engine not in {"", config.engine}:
            raise InvalidStateError(
                f"the cache was filled by engine {cache.engine!r}, and engine {config.engine!r} cannot go on from it; "
                "give an empty cache and the whole sequence"
            )
        mask = _new_mask(input_ids, attention_mask, cache.length)
        before = 0 if cache.valid is None else cache.valid.sum(1, keepdim=True)
        positions = mask.cumsum(1) + before
        self._check_length(int(positions.max()) if positions.numel() else 0, config)
        valid, cache.engine = cache.extend_valid(mask), config.engine
        if config.engine not in _DENSE:
            return ModelOutput(self._host_logits(input_ids, mask, cache, config, kept), cache, None)
        stream = self._embed(input_ids, positions.clamp(min=1))
        padded = None if bool(valid.all()) else valid
        cache.blocks = cache.blocks or [BlockCache() for _ in self.blocks]
        if config.engine == "float32":
            stream = stream.float()
        for block, memory in zip(self.blocks, cache.blocks, strict=True):
            stream = _in_dtype(block, stream.dtype)(stream, memory, padded, config)
        logits = stream[:, kept].double() @ self.unembedding.T
        return ModelOutput(logits, cache, stream)

    def feature(self, name: str, hidden: Float[Tensor, "*shape features"] | None) -> Float[Tensor, "*shape"]:
        """Look up a named feature in a residual stream.

        Args:
            name: Feature name, see :attr:`feature_names`.
            hidden: Residual stream.

        Returns:
            Its values.

        Raises:
            InvalidValueError: If there is no such feature.
            InvalidTypeError: If there is no residual stream.
        """
        if hidden is None:
            raise InvalidTypeError(
                "hidden is None: engines 'exact' and 'reference' have no residual stream; take it from a forward pass "
                "with engine 'deficit64'"
            )
        base, factor = ALIASES.get(name, (name, 1.0))
        return hidden[..., self.layout.index(base)] * factor

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of all features."""
        return (*self.layout.names, *ALIASES)

    @property
    def num_parameters(self) -> int:
        """Numbers in all matrices."""
        return sum(parameter.numel() for parameter in self.parameters())

    def state_hash(self) -> str:
        """SHA-256 of all weights, in the order of their names."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def new_reader(self, config: str | EngineConfig | None = None) -> Any:
        """Make a reader of one sequence: ``push(id)``, ``next_id()``, ``logits()``, ``counter``, ``copy()``.

        Args:
            config: Engine, by name or with its options; that of the model by default.

        Returns:
            The reader.
        """
        from octavo_prompt_turing.engines import dense, exact, naive, reference

        config = self.config if config is None else engine_config(config)
        self._check_dtype()
        if config.engine == "exact":
            return exact.ExactReader(exact.compile_tables(self))
        if config.engine == "reference":
            return reference.ReferenceReader(reference.compile_sparse(self), bits=config.bits)
        if config.engine == "deficit64" and self.embedding.device.type == "cpu":
            return dense.DenseReader(self)
        return naive.ModuleReader(self, config)

    def encode(self, tokens: Sequence[str]) -> Int[Tensor, "1 positions"]:
        """Turn tokens into a batch of one, on the model's device.

        Args:
            tokens: The tokens.

        Returns:
            Their ids.
        """
        return torch.tensor([token_ids(tokens)], device=self.embedding.device, dtype=torch.long)

    def _embed(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        return self.embedding[input_ids] + positional_features(positions) @ self.positional

    def _host_logits(
        self, input_ids: Tensor, mask: Tensor, cache: HardmaxCache, config: EngineConfig, kept: slice | Tensor
    ) -> Tensor:
        if not cache.readers:
            cache.readers = [self.new_reader(config) for _ in range(len(input_ids))]
        scored = torch.arange(input_ids.shape[1], device=input_ids.device)[kept].tolist()
        rows = []
        for reader, ids, real in zip(cache.readers, input_ids.tolist(), mask.tolist(), strict=True):
            logits = dict.fromkeys(scored, [0.0] * len(TOKENS))
            for index, (token, present) in enumerate(zip(ids, real, strict=True)):
                if present:
                    reader.push(token)
                    if index in logits:
                        logits[index] = reader.logits()
            rows.append([logits[index] for index in scored])
        return torch.tensor(rows, dtype=torch.float64, device=input_ids.device)

    def _check_dtype(self) -> None:
        if self.embedding.dtype != torch.float64:
            name = str(self.embedding.dtype).removeprefix("torch.")
            limit = max_length("float32")
            raise InvalidTypeError(
                f"the weights are {name}, which is right for at most {limit} tokens; keep them in float64 "
                "(dtype=torch.float64 when loading), or pick engine='float32' to see it fail"
            )

    def _check_length(self, length: int, config: EngineConfig) -> None:
        limit = config.max_length
        if config.strict and limit is not None and length > limit:
            raise PrecisionError(
                f"{length:,} tokens are more than the {limit:,} that engine {config.engine!r} is guaranteed for; "
                "use engine='exact', which has no limit, or strict=False to go on without a guarantee"
            )


def _check_ids(input_ids: object) -> Tensor:
    advice = "a tensor of integers of shape (batch, positions)"
    if not isinstance(input_ids, Tensor):
        raise InvalidTypeError(f"input_ids is a {type(input_ids).__name__}; give {advice}")
    if input_ids.dtype.is_floating_point or input_ids.dtype.is_complex or input_ids.dtype == torch.bool:
        raise InvalidTypeError(f"input_ids holds {str(input_ids.dtype).removeprefix('torch.')}; give {advice}")
    if input_ids.ndim != 2 or not input_ids.shape[1]:
        raise InvalidValueError(
            f"input_ids has shape {tuple(input_ids.shape)}; give (batch, positions) with at least one position"
        )
    return input_ids.long()


def _last_positions(count: int) -> slice:
    if check_integer("logits_to_keep", count) < 0:
        raise InvalidValueError(f"logits_to_keep={count} is negative; give 0 for all positions, or more")
    return slice(-count, None)


def _in_dtype(block: nn.Module, dtype: torch.dtype) -> nn.Module:
    if dtype == torch.float64:
        return block
    import copy

    return copy.deepcopy(block).to(dtype)


def _new_mask(input_ids: Tensor, attention_mask: Tensor | None, past: int) -> Tensor:
    shape = input_ids.shape
    if attention_mask is None:
        return torch.ones(shape, dtype=torch.bool, device=input_ids.device)
    if attention_mask.shape not in {shape, (shape[0], past + shape[1])}:
        raise InvalidValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; give {tuple(shape)} or "
            f"{(shape[0], past + shape[1])}"
        )
    mask = attention_mask[:, -shape[1] :].bool() if shape[1] else attention_mask[:, :0].bool()
    if bool((mask[:, :-1] & ~mask[:, 1:]).any()):
        raise InvalidValueError("attention_mask has padding after a token; pad on the left")
    return mask

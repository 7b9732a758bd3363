"""The model in transformers: configuration, causal language model with ``generate``, cache and tokenizer."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from octavo_core.errors import InvalidTypeError, InvalidValueError, MissingDependencyError
from torch import Tensor

from octavo_prompt_turing.cache import HardmaxCache
from octavo_prompt_turing.engine_config import EngineConfig
from octavo_prompt_turing.model import PromptTuringModel
from octavo_prompt_turing.precision import max_length
from octavo_prompt_turing.tokens import TOKEN_IDS, TOKENS, tokenize

try:
    import tokenizers
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoTokenizer,
        Cache,
        GenerationMixin,
        PreTrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerFast,
    )
    from transformers.modeling_outputs import CausalLMOutputWithPast
except ImportError as error:
    raise MissingDependencyError.for_extra("transformers", "octavo-prompt-turing", "transformers") from error

__all__ = ["PromptTuringCache", "PromptTuringConfig", "PromptTuringForCausalLM", "PromptTuringTokenizer"]


class PromptTuringConfig(PreTrainedConfig):
    """Configuration; only the engine can be chosen, the weights are always the same.

    Args:
        engine: See :class:`octavo_prompt_turing.EngineConfig`.
        tie_tolerance: As there.
        bits: As there.
        strict: As there.
        **kwargs: Options of every transformers configuration.

    Raises:
        InvalidValueError: If the engine is unknown, or a number is out of range.
    """

    model_type = "prompt-turing"

    def __init__(
        self,
        engine: str = "deficit64",
        tie_tolerance: float | None = None,
        bits: int = 128,
        strict: bool = True,
        **kwargs: Any,
    ) -> None:
        self.engine, self.tie_tolerance, self.bits, self.strict = engine, tie_tolerance, bits, strict
        self.engine_config()
        self.vocab_size, self.num_hidden_layers = len(TOKENS), 5
        ids: dict[str, Any] = {
            "bos_token_id": TOKEN_IDS["^"],
            "eos_token_id": TOKEN_IDS["$"],
            "pad_token_id": TOKEN_IDS["$"],
        }
        options: dict[str, Any] = {**ids, "tie_word_embeddings": False, **kwargs}
        super().__init__(**options)

    def engine_config(self) -> EngineConfig:
        """The engine as the core model takes it."""
        return EngineConfig(self.engine, self.tie_tolerance, self.bits, self.strict)


class PromptTuringCache(Cache):
    """Cache of :class:`PromptTuringForCausalLM`, for any engine, but one engine only."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.memory = HardmaxCache()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions read.

        Args:
            layer_idx: Not used; all layers have read the same.

        Returns:
            Their number, padding included.
        """
        return self.memory.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows for beam search.

        Args:
            beam_idx: Rows to keep.
        """
        self.memory.select(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows.

        Args:
            indices: Rows to keep.
        """
        self.memory.select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row.

        Args:
            repeats: How often.
        """
        rows = 0 if self.memory.valid is None else len(self.memory.valid)
        self.memory.select(torch.arange(rows).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last positions.

        Args:
            tokens_to_remove: How many.
        """
        self.memory.crop(max(0, self.memory.length - abs(tokens_to_remove)))

    def reset(self) -> None:
        """Forget everything."""
        self.memory = HardmaxCache()

    @property
    def is_compileable(self) -> bool:
        """The cache grows, so compiled graphs with fixed shapes do not apply."""
        return False

    @property
    def is_linear(self) -> list[bool]:
        """All blocks attend to all positions."""
        return [False]


class PromptTuringForCausalLM(PreTrainedModel, GenerationMixin):
    """The Transformer as a causal language model of transformers.

    Args:
        config: Its configuration.

    Raises:
        InvalidTypeError: If another dtype than float64 is asked for.

    Source:
        Paper, Theorem 1; decode with ``generate(**tokenizer(text), max_new_tokens=...)``, greedily: sampling, beams and
        a minimal length are refused with :class:`octavo_core.errors.InvalidValueError`. The weights are constructed and
        not trained, so there is no loss.
    """

    config_class = PromptTuringConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"

    def __init__(self, config: PromptTuringConfig) -> None:
        if config.dtype not in {None, "float64", torch.float64}:
            raise InvalidTypeError(
                f"dtype {config.dtype} is right for at most {max_length('float32')} tokens of prompt and chain of "
                "thought; load the model with dtype=torch.float64"
            )
        super().__init__(config)
        self.model = PromptTuringModel(config.engine_config())
        self.post_init()
        if self.generation_config is not None:
            self.generation_config.do_sample = False

    def _init_weights(self, module: torch.nn.Module) -> None:
        """All weights are made by the construction."""

    def forward(
        self,
        input_ids: Int[Tensor, "batch positions"],
        attention_mask: Int[Tensor, "batch total"] | Bool[Tensor, "batch total"] | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Int[Tensor, " kept"] = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Score the next token after each position.

        Args:
            input_ids: Token ids, the new ones only if there is a cache.
            attention_mask: 0 on left padding.
            cache: What was read before.
            past_key_values: The same, by its older name.
            use_cache: Whether to return a cache.
            logits_to_keep: Return the scores of so many last positions, 0 for all; or the indices of the positions.
            **kwargs: Options of transformers that make no difference here, such as ``position_ids``.

        Returns:
            Logits, the cache if wanted, and the residual stream as the only hidden state if
            ``output_hidden_states`` is set and the engine is dense.

        Raises:
            InvalidTypeError: If the cache is not a :class:`PromptTuringCache`, or the weights are not float64.
            InvalidValueError: If labels are given.
            InvalidStateError: If the cache was filled by another engine.
            PrecisionError: If the sequence is longer than the engine is guaranteed for.
        """
        if kwargs.get("labels") is not None:
            raise InvalidValueError(
                "labels are given, but the weights are constructed and not trained, so there is no loss; leave labels "
                "out, and compare them with logits.argmax(-1)"
            )
        cache = past_key_values if cache is None else cache
        if cache is not None and not isinstance(cache, PromptTuringCache):
            raise InvalidTypeError(f"the cache is a {type(cache).__name__}; give a PromptTuringCache, or none")
        wanted = bool(use_cache if use_cache is not None else getattr(self.config, "use_cache", True))
        if cache is None and wanted:
            cache = PromptTuringCache()
        output = self.model(
            input_ids,
            attention_mask,
            None if cache is None else cache.memory,
            config=self.config.engine_config(),
            logits_to_keep=logits_to_keep,
        )
        hidden = (output.hidden,) if kwargs.get("output_hidden_states") and output.hidden is not None else None
        return CausalLMOutputWithPast(logits=output.logits, cache=cache if wanted else None, hidden_states=hidden)

    def feature(self, name: str, hidden: Float[Tensor, "*shape features"] | None) -> Float[Tensor, "*shape"]:
        """Look up a named feature in a residual stream.

        Args:
            name: Feature name.
            hidden: Residual stream.

        Returns:
            Its values.
        """
        return self.model.feature(name, hidden)

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict, *args: Any, **kwargs: Any
    ) -> Any:
        if generation_config.do_sample or (generation_config.num_beams or 1) > 1:
            raise InvalidValueError(
                f"do_sample={generation_config.do_sample} and num_beams={generation_config.num_beams} are not greedy "
                "decoding, by which alone a program runs; leave do_sample=False and num_beams=1"
            )
        for name in ("min_new_tokens", "min_length"):
            if number := getattr(generation_config, name):
                raise InvalidValueError(
                    f"{name}={number} would forbid the final '$' before it and so change what the program prints; "
                    "leave it out"
                )
        if generation_config.stop_strings is not None:
            raise InvalidValueError(
                f"stop_strings={generation_config.stop_strings} need a tokenizer of any text, and this one has the "
                "tokens of programs only; give eos_token_id=tokenizer.convert_tokens_to_ids(token)"
            )
        if generation_config.use_cache is not False and model_kwargs.get("cache") is None:
            model_kwargs["cache"] = PromptTuringCache()


class PromptTuringTokenizer(PreTrainedTokenizerFast):
    """Tokenizer of the 23 tokens; pads on the left. ``$`` ends a program and a chain of thought, and is the padding.

    Text that is not made of whole tokens raises :class:`octavo_core.errors.InvalidValueError`.

    Args:
        **kwargs: Options of every fast tokenizer.
    """

    vocab_files_names = {"tokenizer_file": "tokenizer.json"}  # noqa: RUF012
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(self, **kwargs: Any) -> None:
        if kwargs.get("tokenizer_file") is None and kwargs.get("tokenizer_object") is None:
            kwargs["tokenizer_object"] = _backend()
        defaults = {"padding_side": "left", "bos_token": "^", "eos_token": "$", "pad_token": "$"}
        super().__init__(**{**defaults, "clean_up_tokenization_spaces": False, **kwargs})

    def _encode_plus(self, text: Any, text_pair: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Calls, encode, tokenize, pairs and split words all come here; the backend's own error names no token.
        _check_texts(text)
        _check_texts(text_pair)
        return super()._encode_plus(text, text_pair, *args, **kwargs)


def _check_texts(text: Any) -> None:
    if isinstance(text, str):
        tokenize(text)
    elif isinstance(text, list | tuple):
        for part in text:
            _check_texts(part)


def _backend() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(dict(TOKEN_IDS)))
    pattern = tokenizers.Regex(r"[AB][LR01!?]|[\^$#+\-@/=:01]")
    backend.normalizer = tokenizers.normalizers.Replace(tokenizers.Regex(r"\s+"), "")
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(pattern, "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    return backend


AutoConfig.register("prompt-turing", PromptTuringConfig, exist_ok=True)
AutoTokenizer.register(PromptTuringConfig, PromptTuringTokenizer, exist_ok=True)
AutoModelForCausalLM.register(PromptTuringConfig, PromptTuringForCausalLM, exist_ok=True)

"""Verification: the Transformer against the direct simulator, token by token, and what it computed at a difference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_core.errors import InvalidTypeError
from octavo_core.progress import ProgressCallback, no_progress

from octavo_prompt_turing.decoding import default_model
from octavo_prompt_turing.engine_config import EngineConfig, engine_config
from octavo_prompt_turing.machine import Machine
from octavo_prompt_turing.model import PromptTuringModel
from octavo_prompt_turing.precision import PrecisionError
from octavo_prompt_turing.program import Program
from octavo_prompt_turing.tokens import TOKENS, token_ids

__all__ = ["Divergence", "Verification", "first_divergence", "verify"]


@dataclass(frozen=True)
class Divergence:
    """The first token on which Transformer and simulator differ.

    Args:
        position: Position of the token in the whole sequence, from 1.
        expected: Token of the simulator.
        found: Token of the Transformer.
        logits: Scores of all tokens.
        features: Every named feature at the position before, for engines that have them.
    """

    position: int
    expected: str
    found: str
    logits: dict[str, float] = field(repr=False)
    features: dict[str, float] = field(repr=False)


@dataclass(frozen=True)
class Verification:
    """Outcome for one input.

    Args:
        bits: The input.
        num_tokens: Tokens of prompt and chain of thought.
        steps: Instructions executed by the simulator.
        halted: Whether the simulator halted; otherwise the tokens up to there were compared.
        output: Output of the simulator.
        within_bound: Whether the chain of thought is within ``(max|k| + 2) steps + |output| + 2`` tokens.
        divergence: First difference; ``None`` if there is none.
    """

    bits: str
    num_tokens: int
    steps: int
    halted: bool
    output: str | None
    within_bound: bool
    divergence: Divergence | None

    @property
    def ok(self) -> bool:
        """Whether all tokens agree."""
        return self.divergence is None


def verify(
    program: Program,
    inputs: Iterable[str],
    *,
    model: PromptTuringModel | None = None,
    engine: str | EngineConfig = "exact",
    max_steps: int = 100_000,
    progress: ProgressCallback = no_progress,
) -> list[Verification]:
    """Compare the Transformer with the simulator on several inputs.

    Args:
        program: The program.
        inputs: Strings of 0 and 1.
        model: The Transformer.
        engine: Engine, by name or with its options.
        max_steps: Most instructions that the simulator executes for an input.
        progress: Called with the share of inputs done.

    Returns:
        One outcome an input.

    Raises:
        InvalidValueError: If an input is not made of bits.
        InvalidTypeError: If ``inputs`` is one text, or ``program`` is not a program.
        PrecisionError: If a run is longer than the engine is guaranteed for and the engine is strict.

    Source:
        Paper, Theorem 1 (the read-out is the value) and the bound on the chain of thought, here exact.
    """
    if isinstance(inputs, str):
        raise InvalidTypeError(f"inputs={inputs[:40]!r} is one input; give a list of them, such as [{inputs[:40]!r}]")
    machine, outcomes, inputs = Machine(program), [], list(inputs)
    for number, bits in enumerate(inputs):
        progress("verifying", number / len(inputs))
        run = machine.run(bits, max_steps)
        prompt = program.to_prompt(bits)
        bound = (program.max_offset + 2) * run.steps + len(run.output or "") + 2
        outcomes.append(
            Verification(
                bits,
                len(prompt) + len(run.tokens),
                run.steps,
                run.halted,
                run.output,
                len(run.tokens) <= bound,
                first_divergence(prompt, run.tokens, model=model, engine=engine),
            )
        )
    progress("verifying", 1.0)
    return outcomes


def first_divergence(
    prompt: Sequence[str],
    tokens: Sequence[str],
    *,
    model: PromptTuringModel | None = None,
    engine: str | EngineConfig = "exact",
) -> Divergence | None:
    """Feed a chain of thought to the Transformer and find the first token that it would not have printed.

    Args:
        prompt: Tokens of the prompt.
        tokens: The chain of thought to check.
        model: The Transformer.
        engine: Engine, by name or with its options.

    Returns:
        The first difference, or ``None``.

    Raises:
        InvalidValueError: If a token is unknown.
        PrecisionError: If the sequence is longer than a strict engine is guaranteed for.

    Source:
        Beyond the paper: what a wrong run needs to be understood.
    """
    config = engine_config(engine)
    limit = config.max_length if config.strict else None
    if limit is not None and len(prompt) + len(tokens) > limit:
        raise PrecisionError(
            f"{len(prompt) + len(tokens):,} tokens are more than the {limit:,} that engine {config.engine!r} is "
            "guaranteed for; use engine='exact', or strict=False to see where it fails"
        )
    reader = (model or default_model()).new_reader(config)
    for token in token_ids(prompt):
        reader.push(token)
    for index, token in enumerate(token_ids(tokens)):
        found = reader.next_id()
        if found != token:
            return Divergence(
                len(prompt) + index + 1,
                TOKENS[token],
                TOKENS[found],
                dict(zip(TOKENS, reader.logits(), strict=True)),
                _features(reader),
            )
        reader.push(token)
    return None


def _features(reader: Any) -> dict[str, float]:
    if not hasattr(reader, "features"):
        return {}
    return {name: float(value) for name, value in reader.features().items()}

"""Measurements behind the claims: first failures of an arithmetic, the precision law, lengths of chains of thought."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from octavo_core.bench import fit_power_law
from octavo_core.errors import InvalidValueError

from octavo_prompt_turing.decoding import default_model, run_prompt
from octavo_prompt_turing.engine_config import EngineConfig
from octavo_prompt_turing.engines.reference import ReferenceReader, compile_sparse
from octavo_prompt_turing.machine import Machine
from octavo_prompt_turing.model import PromptTuringModel
from octavo_prompt_turing.program import Program
from octavo_prompt_turing.tokens import token_ids

__all__ = ["cot_exponent", "first_failure", "precision_law", "precision_probe"]


def first_failure(
    prompt: Sequence[str], tokens: Sequence[str], config: EngineConfig, *, model: PromptTuringModel | None = None
) -> int | None:
    """Position of the first token that an engine would get wrong along a right chain of thought.

    Args:
        prompt: Tokens of the prompt.
        tokens: The right chain of thought.
        config: Engine; a dense one or ``reference``. Its guarantee is not enforced.
        model: The Transformer.

    Returns:
        Position in the whole sequence, from 1; ``None`` if all tokens are right.

    Raises:
        InvalidValueError: If a token is unknown.

    Source:
        Paper, precision theorem; measured by teacher forcing, so that one error does not cause the next.
    """
    model = model or default_model()
    ids, start = token_ids([*prompt, *tokens]), len(prompt)
    if config.engine == "reference":
        reader = ReferenceReader(compile_sparse(model), bits=config.bits)
        for position, token in enumerate(ids[:-1], start=1):
            reader.push(token)
            if position >= start and reader.next_id() != ids[position]:
                return position + 1
        return None
    relaxed = EngineConfig(config.engine, config.tie_tolerance, config.bits, strict=False)
    batch = torch.tensor([ids], device=model.embedding.device)
    found = model(batch[:, :-1], config=relaxed).logits[0, start - 1 :].argmax(-1)
    wrong = (found != batch[0, start:]).nonzero()
    return None if len(wrong) == 0 else start + 1 + int(wrong[0, 0])


def precision_probe(length: int) -> tuple[list[str], list[str]]:
    """The run that needs the most precision at every length: two writes to one cell in a row, then a look at it.

    Args:
        length: Tokens wanted, at least 20.

    Returns:
        Prompt and chain of thought of ``A1 A0 A!-2 #``, which never halts; together at least ``length`` tokens.

    Raises:
        InvalidValueError: If the length is below 20.
    """
    if length < 20:
        raise InvalidValueError(f"length {length} is too short; give 20 tokens or more")
    program = Program.parse("A1 A0 A!-2 #", name="precision probe")
    prompt = program.to_prompt()
    # Three steps print A1, A0 and =--@.
    steps = 3 * math.ceil((length - len(prompt)) / 6)
    return prompt, Machine(program).run("", steps).tokens


def precision_law(
    tolerances: Sequence[float] = (1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14), bits: Sequence[int] = (50, 53, 56)
) -> tuple[float, list[tuple[float, int]]]:
    """Measure how the first failing length grows with the precision of comparisons.

    Args:
        tolerances: Tie tolerances of the naive float64 engine; each is -log2 of it in bits.
        bits: Precisions of the reference engine.

    Returns:
        The slope of log2 of the first failing length in bits, 1/6 by the law; and the measured pairs.

    Source:
        Paper, precision theorem: O(log N) bits; the constant 6 follows from the tie-break of the tape look-up.
    """
    points: list[tuple[float, int]] = []
    settings = [(-math.log2(t), EngineConfig("float64", tie_tolerance=t, strict=False)) for t in tolerances]
    settings += [(float(p), EngineConfig("reference", bits=p, strict=False)) for p in bits]
    for precision, config in settings:
        expected = 2 ** ((precision - 1) / 6)
        prompt, tokens = precision_probe(int(1.5 * expected) + 30)
        failure = first_failure(prompt, tokens, config)
        if failure is not None:
            points.append((precision, failure))
    slope = np.polyfit([p for p, _ in points], [math.log2(n) for _, n in points], 1)[0]
    return float(slope), points


def cot_exponent(program: Program, inputs: Sequence[str]) -> tuple[float, bool]:
    """Fit the growth of the chain of thought with the machine's steps.

    Args:
        program: The program.
        inputs: Inputs of different lengths.

    Returns:
        The exponent of tokens in steps, and whether every run is within ``(max|k| + 2) steps + |output| + 2`` tokens.

    Source:
        Paper, complexity theorem: O(t(n)) tokens for a two-tape machine of time t(n).
    """
    steps, tokens, within = [], [], True
    for bits in inputs:
        run = Machine(program).run(bits)
        result = run_prompt(program, bits)
        steps.append(run.steps)
        tokens.append(len(result.tokens))
        within &= len(result.tokens) <= (program.max_offset + 2) * run.steps + len(result.output or "") + 2
    return fit_power_law(steps, tokens).exponent, within

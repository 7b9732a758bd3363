"""Exact chain-of-thought data: prompts, inputs and chains of thought of random or given programs, as JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from octavo_core.errors import InvalidValueError
from octavo_core.files import atomic_path

from octavo_prompt_turing.arguments import check_integer
from octavo_prompt_turing.machine import Machine
from octavo_prompt_turing.program import CONDITIONS, Instruction, Program
from octavo_prompt_turing.tm_compiler import CompiledMachine
from octavo_prompt_turing.tokens import PLAIN, encode_input

__all__ = ["Example", "generate_examples", "random_program", "write_examples"]

_MAX_TRIES = 1_000
_MAX_INPUT = 1_000_000


@dataclass(frozen=True)
class Example:
    """One example.

    Args:
        program: The program in text form.
        input: Input bits.
        prompt: Prompt of program and input, as token text.
        cot: Chain of thought, as token text, with its final ``$``.
        output: Output bits.
        steps: Instructions executed.
        num_tokens: Tokens of prompt and chain of thought.
    """

    program: str
    input: str
    prompt: str
    cot: str
    output: str
    steps: int
    num_tokens: int


def random_program(
    generator: np.random.Generator, *, min_instructions: int = 4, max_instructions: int = 40, jump_share: float = 0.3
) -> Program:
    """Draw a valid program.

    Args:
        generator: Source of randomness.
        min_instructions: Fewest instructions, at least 2.
        max_instructions: Most instructions.
        jump_share: Probability that an instruction is a jump, in [0, 1).

    Returns:
        A program that ends with ``#``, reaches a ``#``, and has all jumps inside.

    Raises:
        InvalidValueError: If the numbers allow no program.
    """
    if not 2 <= min_instructions <= max_instructions or not 0 <= jump_share < 1:
        raise InvalidValueError(
            f"cannot draw programs of {min_instructions} to {max_instructions} instructions with {jump_share} jumps; "
            "give 2 <= min <= max and a share in [0, 1)"
        )
    for _ in range(_MAX_TRIES):
        size = int(generator.integers(min_instructions, max_instructions + 1))
        instructions = []
        for index in range(size - 1):
            if generator.random() < jump_share:
                offset = int(generator.integers(0, size - 1)) - index
                condition = CONDITIONS[int(generator.integers(len(CONDITIONS)))]
                instructions.append(Instruction(condition, offset if offset < 0 else offset + 1))
            else:
                instructions.append(Instruction(PLAIN[int(generator.integers(len(PLAIN)))]))
        try:
            return Program((*instructions, Instruction("#")), "random").validate()
        except InvalidValueError:
            continue
    raise InvalidValueError(f"no valid program in {_MAX_TRIES} draws; allow fewer jumps or more instructions")


def generate_examples(
    count: int,
    *,
    seed: int = 0,
    programs: Sequence[Program | CompiledMachine] = (),
    max_input: int = 8,
    max_steps: int = 300,
    min_instructions: int = 4,
    max_instructions: int = 20,
) -> Iterator[Example]:
    """Draw examples of programs that halt.

    Args:
        count: Number of examples.
        seed: Seed of all draws; the same seed gives the same examples.
        programs: Programs to draw from; random ones if none are given. A compiled Turing machine gets words of its
            input symbols.
        max_input: Most input bits, at most 1,000,000.
        max_steps: Most instructions a run may take; others are drawn anew.
        min_instructions: Fewest instructions of a random program.
        max_instructions: Most instructions of a random program.

    Yields:
        The examples.

    Raises:
        InvalidValueError: If a number is out of range, or hardly any run halts in time.

    Source:
        Beyond the paper, which leaves open whether the machine can be learned from examples.
    """
    if count < 0 or max_input < 0 or max_steps < 0:
        raise InvalidValueError(f"count={count}, max_input={max_input} and max_steps={max_steps} must not be negative")
    if max_input > _MAX_INPUT:
        raise InvalidValueError(f"max_input={max_input:,} is beyond {_MAX_INPUT:,}, the longest supported; give less")
    if check_integer("seed", seed) < 0:
        raise InvalidValueError(f"seed={seed} is negative; give 0 or more")
    generator = np.random.default_rng(seed)
    for _ in range(count):
        for _ in range(_MAX_TRIES):
            if programs:
                source = programs[int(generator.integers(len(programs)))]
            else:
                source = random_program(generator, min_instructions=min_instructions, max_instructions=max_instructions)
            program = source.program if isinstance(source, CompiledMachine) else source
            bits = _draw_input(generator, source, max_input)
            run = Machine(program).run(bits, max_steps)
            if run.output is not None:
                break
        else:
            raise InvalidValueError(f"no run halted within {max_steps} steps in {_MAX_TRIES} draws; allow more steps")
        prompt = [*program.to_prompt(), *encode_input(bits)]
        yield Example(
            str(program),
            bits,
            "".join(prompt),
            "".join(run.tokens),
            run.output,
            run.steps,
            len(prompt) + len(run.tokens),
        )


def _draw_input(generator: np.random.Generator, source: Program | CompiledMachine, max_bits: int) -> str:
    if not isinstance(source, CompiledMachine):
        return "".join(map(str, generator.integers(0, 2, int(generator.integers(0, max_bits + 1)))))
    symbols = source.machine.input_symbols
    if not symbols:
        return ""
    longest = max_bits // len(source.encode(symbols[:1]))
    indices = generator.integers(0, len(symbols), int(generator.integers(0, longest + 1)))
    return source.encode([symbols[index] for index in indices.tolist()])


def write_examples(path: str | os.PathLike[str], examples: Iterator[Example]) -> int:
    """Write examples as JSON lines, all or nothing.

    Args:
        path: The file.
        examples: The examples.

    Returns:
        How many were written.
    """
    count = 0
    with atomic_path(Path(path)) as temporary, temporary.open("w") as file:
        for example in examples:
            file.write(json.dumps(asdict(example)) + "\n")
            count += 1
    return count

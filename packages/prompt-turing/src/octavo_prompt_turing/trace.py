"""Traces: what each record of a chain of thought means, as text and as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo_core.errors import InvalidValueError

from octavo_prompt_turing.decoding import CoTResult, default_model
from octavo_prompt_turing.engines.dense import DenseReader
from octavo_prompt_turing.machine import Machine
from octavo_prompt_turing.program import Program
from octavo_prompt_turing.tokens import token_ids

__all__ = ["Record", "trace_records", "trace_to_html", "trace_to_text"]

_WINDOW = 8
_MAX_RECORDS = 5_000
_MAX_ATTENTION = 4_000
_SHOWN_HEADS = ("fetch", "tape A", "tape B", "output flag", "output bit")


@dataclass(frozen=True)
class Record:
    """One record of a chain of thought.

    Args:
        number: Count from 1.
        first: Position of its first token in the whole sequence, from 1.
        tokens: Its tokens; of the last record all that are left, where it is cut or differs from the simulator's.
        index: Instruction that it executes; ``None`` for the output.
        instruction: That instruction.
        line: Its source line, if known.
        head_a: Cell under head A before it.
        head_b: Cell under head B before it.
        tape_a: Cells around head A before it.
        tape_b: Cells around head B before it.
        attention: Positions that the heads read from to print the first token.
    """

    number: int
    first: int
    tokens: tuple[str, ...]
    index: int | None
    instruction: str
    line: int | None
    head_a: int
    head_b: int
    tape_a: str
    tape_b: str
    attention: dict[str, list[int]]


def trace_records(
    program: Program, bits: str, result: CoTResult, *, attention: bool = True, max_records: int = _MAX_RECORDS
) -> list[Record]:
    """Split a chain of thought into records and say what each means.

    Args:
        program: The program.
        bits: Its input.
        result: The chain of thought.
        attention: Also find which positions the heads read from, for sequences of up to 4,000 tokens.
        max_records: Most records.

    Returns:
        The records.

    Raises:
        InvalidValueError: If the chain of thought is not one of this program on this input.

    Source:
        Paper, construction (records); the trace itself is beyond the paper.
    """
    if list(result.prompt) != program.to_prompt(bits):
        raise InvalidValueError("the chain of thought belongs to another program or input")
    run = Machine(program).run(bits, max_records, trace=True)
    targets = _attention(result) if attention and result.length <= _MAX_ATTENTION else {}
    tape_a = {2 * j + k: b for j, bit in enumerate(bits) for k, b in enumerate(("1", bit))}
    tape_b: dict[int, str] = {}
    records, at = [], 0
    for step in run.trace:
        tokens = tuple(result.tokens[at : at + len(step.record)])
        if not tokens:
            break
        if tokens != step.record:
            tokens = tuple(result.tokens[at:])
        instruction = program.instructions[step.index]
        first = len(result.prompt) + at + 1
        records.append(
            Record(
                len(records) + 1,
                first,
                tokens,
                step.index,
                str(instruction),
                instruction.line,
                step.head_a,
                step.head_b,
                _window(tape_a, step.head_a),
                _window(tape_b, step.head_b),
                targets.get(first, {}),
            )
        )
        if instruction.op[1:] in {"0", "1"}:
            tape, head = (tape_a, step.head_a) if instruction.op[0] == "A" else (tape_b, step.head_b)
            tape[head] = instruction.op[1]
        at += len(tokens)
    if at < len(result.tokens) and len(records) < max_records:
        first = len(result.prompt) + at + 1
        heads = run.head_a, run.head_b
        windows = _window(tape_a, heads[0]), _window(tape_b, heads[1])
        records.append(
            Record(
                len(records) + 1, first, result.tokens[at:], None, "#", None, *heads, *windows, targets.get(first, {})
            )
        )
    return records


def trace_to_text(program: Program, bits: str, result: CoTResult, *, max_records: int = 200) -> str:
    """Write a trace as a table of plain text.

    Args:
        program: The program.
        bits: Its input.
        result: The chain of thought.
        max_records: Most records.

    Returns:
        One line a record: position, instruction, tokens, heads, cells around them.

    Raises:
        InvalidValueError: If the chain of thought is not one of this program on this input.
    """
    lines = [f"{'pos':>7} {'pc':>5} {'instruction':<12} {'A':>5} {'B':>5}  tape A / tape B / tokens"]
    for record in trace_records(program, bits, result, attention=False, max_records=max_records):
        tokens = "".join(record.tokens)
        tokens = tokens if len(tokens) <= 40 else f"{tokens[:37]}... ({len(record.tokens)} tokens)"
        lines.append(
            f"{record.first:>7} {'' if record.index is None else record.index:>5} {record.instruction:<12} "
            f"{record.head_a:>5} {record.head_b:>5}  {record.tape_a} / {record.tape_b} / {tokens}"
        )
    lines.append(result.message + (f"; output {result.output!r}" if result.ok else ""))
    return "\n".join(lines) + "\n"


def trace_to_html(
    program: Program,
    bits: str,
    result: CoTResult,
    *,
    source: str = "",
    title: str = "",
    max_records: int = _MAX_RECORDS,
) -> str:
    """Write a trace as one HTML page that needs nothing else: the prompt, every record, tapes, source, attention.

    Args:
        program: The program.
        bits: Its input.
        result: The chain of thought.
        source: Source text that the instructions' lines refer to.
        title: Heading.
        max_records: Most records.

    Returns:
        The page.

    Raises:
        InvalidValueError: If the chain of thought is not one of this program on this input.
    """
    from jinja2 import Environment, PackageLoader

    records = trace_records(program, bits, result, max_records=max_records)
    environment = Environment(
        loader=PackageLoader("octavo_prompt_turing"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("trace.html.j2").render(
        title=title or f"{program.name} on {bits or 'the empty input'}",
        program=list(enumerate(program)),
        bits=bits,
        result=result,
        records=records,
        cut=sum(len(record.tokens) for record in records) < len(result.tokens),
        source=source.splitlines(),
        prompt=list(enumerate(result.prompt, start=1)),
        window=_WINDOW,
    )


def _attention(result: CoTResult) -> dict[int, dict[str, list[int]]]:
    """Positions that the model's heads chose, by the position of the token they were chosen for."""
    reader = DenseReader(default_model())
    found = {}
    for position, token in enumerate(token_ids([*result.prompt, *result.tokens[:-1]]), start=1):
        reader.push(token)
        if position >= len(result.prompt):
            targets = reader.targets()
            found[position + 1] = {
                name: positions
                for name in _SHOWN_HEADS
                if (positions := targets.get(name)) is not None and len(positions) <= 2
            }
    return found


def _window(tape: dict[int, str], head: int) -> str:
    return "".join(_cells(tape, head))


def _cells(tape: dict[int, str], head: int) -> Sequence[str]:
    return [tape.get(cell, "0") for cell in range(head - _WINDOW, head + _WINDOW + 1)]

"""The ``octavo prompt-turing`` command line."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo_core.errors import InvalidValueError
from octavo_core.files import atomic_write
from octavo_core.options import JsonOption, QuietOption, SeedOption, add_report_commands, check_out
from octavo_core.progress import console_progress

if TYPE_CHECKING:
    from octavo_prompt_turing.loading import LoadedProgram

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="One fixed Transformer that runs any program given in its prompt.")
add_report_commands(app, "octavo_prompt_turing")

ProgramArgument = Annotated[
    str,
    typer.Argument(
        help="Name of a ready program (see: programs), a .ptm, .json or .py file, or instructions in quotes."
    ),
]
_WORDS = (
    "Bits; for a Turing machine its symbols, such as aab, or q0,q1 with commas where one has several characters (ab, "
    "is the one symbol ab also where a and b are symbols; spaces instead of commas if an input symbol has a comma)."
)
InputArgument = Annotated[str, typer.Argument(help=f"The input. {_WORDS}")]
EngineOption = Annotated[str, typer.Option("--engine", help="exact, deficit64, reference, float64 or float32.")]
OutputOption = Annotated[str, typer.Option("--output", help="What a Turing machine prints: accept, tape or both.")]
MissingOption = Annotated[
    str, typer.Option("--missing", help="Missing transitions of a Turing machine: error or reject.")
]
TokensOption = Annotated[int, typer.Option("--max-tokens", help="Most tokens in the chain of thought.", min=0)]
InputsOption = Annotated[
    Path | None,
    typer.Option("--input-file", help="File with one input a line, as on the command line; - for standard input."),
]

_MAX_INPUT_BYTES = 16 * 2**20
_MAX_NAME = 255


@app.command()
def run(
    program: ProgramArgument,
    word: InputArgument = "",
    inputs: InputsOption = None,
    engine: EngineOption = "exact",
    max_tokens: TokensOption = 1_000_000,
    output: OutputOption = "accept",
    missing: MissingOption = "error",
    trace: Annotated[Path | None, typer.Option("--trace", help="Write an HTML trace here.")] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Write prompt and tokens here, to go on later; also on Ctrl-C and every 30 s."),
    ] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on from a file that --save wrote.")] = None,
    show_tokens: Annotated[bool, typer.Option("--tokens", help="Print the chain of thought too.")] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let the Transformer run a program.

    Exit code 1 if the program does not halt, falls off its end, or comes to the length that the engine is guaranteed
    for; 2 if the prompt alone is longer than that, as for every input that is refused.
    """
    from octavo_prompt_turing.decoding import CoTResult, run_prompt
    from octavo_prompt_turing.trace import trace_to_html

    loaded = _load(program, output, missing)
    words = _words(word, inputs)
    encoded = _encode(loaded, words, inputs)
    if len(words) != 1 and (trace or save or resume):
        raise InvalidValueError(f"--trace, --save and --resume take one input, got {len(words)}")
    for path in (trace, save):
        _check_target(path)
    for name, path in (("--save", save), ("--resume", resume)):
        if trace is not None and path is not None and trace.resolve() == path.resolve():
            raise InvalidValueError(f"--trace and {name} name the same file, {str(path)!r}; give two")
    documents, failed = [], False
    with console_progress(quiet=quiet or as_json) as progress:
        for entry, bits in zip(words, encoded, strict=True):
            generated: tuple[str, ...] = ()
            if resume is not None:
                before = CoTResult.load(resume)
                if list(before.prompt) != loaded.program.to_prompt(bits):
                    raise InvalidValueError(f"{str(resume)!r} was saved for another program or input")
                generated = before.tokens
            result = run_prompt(
                loaded.program,
                bits,
                engine=engine,
                max_new_tokens=max_tokens,
                generated=generated,
                progress=progress,
                keep=None if save is None else lambda part: part.save(save),
            )
            failed |= not result.ok
            if save is not None:
                result.save(save)
            if trace is not None:
                atomic_write(trace, trace_to_html(loaded.program, bits, result, source=loaded.source))
            document = {
                "input": entry,
                "status": result.status,
                "output": result.output,
                "meaning": None if result.output is None else loaded.describe(result.output),
                "prompt_tokens": len(result.prompt),
                "tokens": len(result.tokens),
                "engine": engine,
                "margin_bits": _finite(result.margin),
                "seconds": round(result.seconds, 6),
            }
            if show_tokens:
                document["cot"] = "".join(result.tokens)
            documents.append(document)
            if not as_json:
                _print_run(document, result.message, show_tokens=show_tokens, quiet=quiet)
    if as_json:
        print(json.dumps(documents[0] if inputs is None else documents, indent=2))
    if failed:
        raise typer.Exit(1)


@app.command("compile")
def compile_command(
    program: ProgramArgument,
    to: Annotated[
        str, typer.Option("--to", help="instructions, labels (assembler text), prompt (tokens) or lines (source map).")
    ] = "instructions",
    output: OutputOption = "accept",
    missing: MissingOption = "error",
    out: Annotated[Path | None, typer.Option("--out", help="File to write; standard output by default.")] = None,
) -> None:
    """Translate a program file into instructions, assembler text or the prompt."""
    loaded = _load(program, output, missing)
    compiled = loaded.program
    if to == "instructions":
        text = f"{compiled}\n"
    elif to == "labels":
        text = compiled.disassemble()
    elif to == "prompt":
        text = "".join(compiled.to_prompt()) + "\n"
    elif to == "lines":
        text = "".join(f"{i:>6} {'' if s.line is None else s.line:>6}  {s}\n" for i, s in enumerate(compiled))
    else:
        raise InvalidValueError(f"--to {to!r} is unknown; give instructions, labels, prompt or lines")
    if out is None:
        print(text, end="")
    else:
        atomic_write(out, text)
        print(f"{len(compiled):,} instructions, {compiled.prompt_length:,} prompt tokens: {out}", file=sys.stderr)


@app.command()
def verify(
    program: ProgramArgument,
    words: Annotated[
        list[str] | None, typer.Argument(help=f"Inputs; all up to --all-up-to by default. {_WORDS}")
    ] = None,
    inputs: InputsOption = None,
    all_up_to: Annotated[int, typer.Option("--all-up-to", help="Length of the inputs tried.", min=0, max=12)] = 4,
    engine: EngineOption = "exact",
    max_steps: Annotated[int, typer.Option("--max-steps", help="Most steps of the simulator.", min=0)] = 100_000,
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Go beyond the engine's guaranteed length.")] = False,
    output: OutputOption = "accept",
    missing: MissingOption = "error",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the Transformer with the simulator, token by token.

    Exit code 1 on a difference, or if an input does not halt within --max-steps.
    """
    from octavo_prompt_turing.engine_config import EngineConfig
    from octavo_prompt_turing.verification import verify as check

    loaded = _load(program, output, missing)
    entries = _words("", inputs) if inputs is not None else words
    if entries:
        encoded = _encode(loaded, entries, inputs)
    else:
        symbols = "01" if loaded.compiled is None else loaded.compiled.machine.input_symbols
        encoded = [
            "".join(word) if loaded.compiled is None else loaded.compiled.encode(word)
            for length in range(all_up_to + 1)
            for word in itertools.product(symbols, repeat=length)
        ]
    config = EngineConfig(engine, strict=not unchecked)
    with console_progress(quiet=quiet or as_json) as progress:
        outcomes = check(
            loaded.program,
            encoded,
            engine=config,
            max_steps=max_steps,
            progress=progress,
        )
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        row: dict[str, Any] = {
            "input": outcome.bits,
            "tokens": outcome.num_tokens,
            "steps": outcome.steps,
            "halted": outcome.halted,
        }
        row |= {"output": outcome.output, "ok": outcome.ok, "within_bound": outcome.within_bound}
        if outcome.divergence is not None:
            row["divergence"] = {
                "position": outcome.divergence.position,
                "expected": outcome.divergence.expected,
                "found": outcome.divergence.found,
                "features": outcome.divergence.features,
            }
        rows.append(row)
    if as_json:
        print(json.dumps(rows, indent=2))
    elif not quiet:
        _print_verification(rows, max_steps)
    if not all(outcome.ok and outcome.halted for outcome in outcomes):
        raise typer.Exit(1)


@app.command()
def trace(
    program: ProgramArgument,
    word: InputArgument = "",
    out: Annotated[Path | None, typer.Option("--out", help="HTML file; a text table on the screen by default.")] = None,
    engine: EngineOption = "exact",
    max_tokens: TokensOption = 100_000,
    max_records: Annotated[int, typer.Option("--max-records", help="Most records shown.", min=1)] = 2_000,
    output: OutputOption = "accept",
    missing: MissingOption = "error",
) -> None:
    """Show what every record of a chain of thought means: instruction, source line, tapes, attention."""
    from octavo_prompt_turing.decoding import run_prompt
    from octavo_prompt_turing.trace import trace_to_html, trace_to_text

    loaded = _load(program, output, missing)
    _check_target(out)
    bits = loaded.encode(word)
    result = run_prompt(loaded.program, bits, engine=engine, max_new_tokens=max_tokens)
    if out is None:
        print(trace_to_text(loaded.program, bits, result, max_records=max_records), end="")
    else:
        page = trace_to_html(loaded.program, bits, result, source=loaded.source, max_records=max_records)
        atomic_write(out, page)
        print(f"{result.message}; trace in {out}")
    if not result.ok:
        raise typer.Exit(1)


@app.command()
def dataset(
    out: Annotated[Path, typer.Argument(help="File to write, JSON lines.")],
    count: Annotated[int, typer.Option("--count", help="Number of examples.", min=1)] = 1_000,
    programs: Annotated[
        str, typer.Option("--programs", help="Names or files, separated by commas; random programs by default.")
    ] = "",
    max_input: Annotated[int, typer.Option("--max-input", help="Most input bits, at most 1,000,000.", min=0)] = 8,
    max_steps: Annotated[int, typer.Option("--max-steps", help="Most steps of a run.", min=1)] = 300,
    max_instructions: Annotated[int, typer.Option("--max-instructions", help="Of random programs.", min=4)] = 20,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Write prompts with their exact chains of thought, for training and for tests of decoders."""
    from octavo_prompt_turing.dataset import generate_examples, write_examples

    _check_target(out)
    found = [_load(name, "accept", "error") for name in programs.split(",") if name]
    chosen = [entry.program if entry.compiled is None else entry.compiled for entry in found]
    written = write_examples(
        out,
        generate_examples(
            count,
            seed=seed,
            programs=chosen,
            max_input=max_input,
            max_steps=max_steps,
            max_instructions=max_instructions,
        ),
    )
    if not quiet:
        print(f"{written:,} examples: {out}")


@app.command()
def programs() -> None:
    """List the ready programs."""
    from octavo_prompt_turing.library import LIBRARY

    for name, entry in LIBRARY.items():
        print(f"{name:<16}{entry.description}")
    print("busy-beaver-2   to -4: the champions for steps, on the empty input")


@app.command()
def model(as_json: JsonOption = False) -> None:
    """Show the fixed model: blocks, parameters, the hash of its weights, and how long each engine is guaranteed."""
    from octavo_prompt_turing.decoding import default_model
    from octavo_prompt_turing.precision import ENGINES, max_length

    fixed = default_model()
    document = {
        "blocks": len(fixed.blocks),
        "features": fixed.layout.width,
        "parameters": fixed.num_parameters,
        "nonzero_parameters": sum(int((p != 0).sum()) for p in fixed.parameters()),
        "sha256": fixed.state_hash(),
        "max_length": {name: max_length(name, bits=128 if name == "reference" else None) for name in ENGINES},
    }
    if as_json:
        print(json.dumps(document, indent=2))
        return
    for name, value in document.items():
        if isinstance(value, dict):
            limits = (f"{engine} {limit:,}" if limit else f"{engine} no limit" for engine, limit in value.items())
            print(f"{name:<20}{', '.join(limits)}")
        else:
            print(f"{name:<20}{value:,}" if isinstance(value, int) else f"{name:<20}{value}")


def _load(program: str, output: str, missing: str) -> LoadedProgram:
    from octavo_prompt_turing.loading import load_program

    if output not in {"accept", "tape", "both"}:
        raise InvalidValueError(f"--output {output!r} is unknown; give accept, tape or both")
    if missing not in {"error", "reject"}:
        raise InvalidValueError(f"--missing {missing!r} is unknown; give error or reject")
    return load_program(program, output=output, missing=missing)


def _encode(loaded: LoadedProgram, words: list[str], inputs: Path | None) -> list[str]:
    """Turn all inputs into bits before the first run, so that a bad line costs no work."""
    from octavo_prompt_turing.tokens import check_bits

    encoded = []
    for number, word in enumerate(words, start=1):
        try:
            encoded.append(check_bits(loaded.encode(word)))
        except InvalidValueError as error:
            if inputs is None:
                raise
            raise InvalidValueError(f"line {number} of {_shown(inputs)}: {error}") from error
    return encoded


def _check_target(path: Path | None) -> None:
    """Fail before the work starts if a file cannot be written there."""
    if path is None:
        return
    if len(os.fsencode(path.name)) > _MAX_NAME:
        raise InvalidValueError(f"the file name {path.name[:40]!r}... is longer than {_MAX_NAME} bytes; shorten it")
    check_out(path.parent)
    if path.is_dir():
        raise InvalidValueError(f"{str(path)!r} is a folder; give the name of a file to write")


def _words(word: str, inputs: Path | None) -> list[str]:
    if inputs is None:
        return [word]
    if word:
        raise InvalidValueError("give the input as an argument or by --input-file, not both")
    if str(inputs) == "-":
        lines = sys.stdin.read(_MAX_INPUT_BYTES).splitlines()
    else:
        from octavo_prompt_turing.user_files import read_user_file

        content = read_user_file(inputs, "give a text file with one input a line", _MAX_INPUT_BYTES)
        lines = content.decode(errors="replace").splitlines()
    if not lines:
        raise InvalidValueError(f"{_shown(inputs)} has no lines; give one input a line, an empty one for no input")
    return lines


def _shown(inputs: Path) -> str:
    return "standard input" if str(inputs) == "-" else repr(str(inputs))


def _finite(number: float) -> float | None:
    return round(number, 2) if number == number and abs(number) != float("inf") else None


def _print_run(document: dict[str, Any], message: str, *, show_tokens: bool, quiet: bool) -> None:
    if show_tokens:
        print(document["cot"])
    if document["status"] == "halted":
        print(document["meaning"])
    if not quiet or document["status"] != "halted":
        rate = document["tokens"] / document["seconds"] if document["seconds"] else 0
        print(f"{message} ({rate:,.0f} tokens/s, engine {document['engine']})", file=sys.stderr)


def _print_verification(rows: list[dict[str, Any]], max_steps: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("input", "tokens", "steps", "output", "agrees"):
        table.add_column(name, justify="left" if name in {"input", "output", "agrees"} else "right")
    for row in rows:
        verdict = "yes" if row["ok"] else "NO"
        if "divergence" in row:
            found = row["divergence"]
            verdict += f": position {found['position']} is {found['found']!r}, should be {found['expected']!r}"
        output = "not halted" if row["output"] is None else row["output"]
        table.add_row(row["input"], f"{row['tokens']:,}", f"{row['steps']:,}", output, verdict)
    Console().print(table)
    endless = sum(not row["halted"] for row in rows)
    note = f"; {endless} did not halt within {max_steps:,} steps" if endless else ""
    print(f"{sum(row['ok'] for row in rows)} of {len(rows)} inputs agree token by token{note}")

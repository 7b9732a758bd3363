"""Running a program through the Transformer: prompt in, chain of thought out, with a status that is never a guess."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from octavo_core.files import atomic_write
from octavo_core.progress import ProgressCallback, no_progress

from octavo_prompt_turing.arguments import check_integer
from octavo_prompt_turing.engine_config import EngineConfig, engine_config
from octavo_prompt_turing.model import PromptTuringModel
from octavo_prompt_turing.precision import PrecisionError, margin_bits
from octavo_prompt_turing.program import Program
from octavo_prompt_turing.tokens import TOKEN_IDS, TOKENS, check_bits, read_out, token_ids, tokenize
from octavo_prompt_turing.user_files import read_user_file

__all__ = ["CoTResult", "default_model", "run_prompt"]

Status = Literal["halted", "max_new_tokens", "fell_off", "precision", "interrupted"]

_HALT = TOKEN_IDS[":"]
_STOP = TOKEN_IDS["$"]
_REPORT_EVERY = 4096
_KEEP_EVERY, _KEEP_SECONDS = 64, 30.0
_MAX_SAVED = 2**30


@dataclass(frozen=True)
class CoTResult:
    """A chain of thought.

    Args:
        prompt: Tokens of the prompt.
        tokens: Tokens generated, up to and including ``$`` if the program halted.
        status: ``"halted"``; ``"max_new_tokens"`` when there was no room left; ``"fell_off"`` when the program counter
            left the program; ``"precision"`` when the engine's guaranteed length was reached; ``"interrupted"`` in what
            a run that did not end has kept.
        engine: Engine used.
        margin: Bits between the smallest deciding difference of scores at this length and what the engine confuses.
        seconds: Time of reading and generating.
    """

    prompt: tuple[str, ...] = field(repr=False)
    tokens: tuple[str, ...] = field(repr=False)
    status: Status
    engine: str
    margin: float
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the program halted, so that there is an output."""
        return self.status == "halted"

    @property
    def output(self) -> str | None:
        """The output bits, ``None`` if the program has not halted."""
        return read_out(self.tokens) if self.ok else None

    @property
    def length(self) -> int:
        """Tokens of prompt and chain of thought."""
        return len(self.prompt) + len(self.tokens)

    @property
    def message(self) -> str:
        """What happened, in a sentence."""
        return {
            "halted": f"halted after {len(self.tokens):,} tokens",
            "max_new_tokens": f"not halted: max_new_tokens reached after {len(self.tokens):,} tokens; give more, or "
            "check that the program halts on this input",
            "fell_off": f"not halted: the program counter left the program after {len(self.tokens):,} tokens; "
            "end every path of the program with '#'",
            "precision": f"not halted: engine {self.engine!r} is not guaranteed beyond {self.length:,} tokens; "
            "use engine 'exact'",
            "interrupted": f"not halted: interrupted after {len(self.tokens):,} tokens; go on from them",
        }[self.status]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write prompt and tokens to a JSON file, from which :func:`run_prompt` can go on.

        Args:
            path: The file.

        Returns:
            Its path.
        """
        document = {"schema": "prompt-turing-cot/1", "prompt": "".join(self.prompt), "tokens": "".join(self.tokens)}
        document |= {"status": self.status, "engine": self.engine}
        return atomic_write(path, json.dumps(document, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CoTResult:
        """Read a saved chain of thought.

        Args:
            path: The file.

        Returns:
            The result.

        Raises:
            MissingFileError: If there is no such file, or it cannot be read.
            InvalidValueError: If it is not a saved chain of thought.
        """
        file = Path(path)
        content = read_user_file(file, "give one that CoTResult.save wrote", _MAX_SAVED)
        try:
            document = json.loads(content)
            if document["schema"] != "prompt-turing-cot/1":
                raise ValueError("other schema")
            prompt, tokens = tuple(tokenize(document["prompt"])), tuple(tokenize(document["tokens"]))
            status, engine = document["status"], document["engine"]
            if status not in get_args(Status) or not isinstance(engine, str):
                raise ValueError("other fields")
            if status == "halted" and read_out(tokens) is None:
                raise ValueError("status 'halted' needs tokens that end with ':', the output and '$'")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidValueError(f"{str(file)!r} is not a saved chain of thought: {error}") from error
        return cls(prompt, tokens, status, engine, float("nan"), 0.0)


@lru_cache(maxsize=1)
def default_model() -> PromptTuringModel:
    """The model that functions use when none is given; its weights are always the same.

    Returns:
        The model, on the CPU.
    """
    return PromptTuringModel()


def run_prompt(
    program: Program | Sequence[str],
    bits: str = "",
    *,
    model: PromptTuringModel | None = None,
    engine: str | EngineConfig = "exact",
    max_new_tokens: int = 1_000_000,
    generated: Sequence[str] = (),
    progress: ProgressCallback = no_progress,
    keep: Callable[[CoTResult], object] | None = None,
) -> CoTResult:
    """Let the Transformer run a program by greedy decoding.

    Args:
        program: The program, or a whole prompt as tokens, input included.
        bits: Input of the program, a string of 0 and 1; empty with a whole prompt.
        model: The Transformer; :func:`default_model` if not given.
        engine: Engine, by name or with its options.
        max_new_tokens: Most tokens in the chain of thought, those of ``generated`` included.
        generated: Tokens generated before, to go on from.
        progress: Called with the share of ``max_new_tokens`` that is done.
        keep: Called with the chain of thought so far every 30 seconds, and when the run is interrupted from the
            keyboard; for example to save it.

    Returns:
        The chain of thought; whether the program halted is in its ``status``.

    Raises:
        InvalidValueError: If the input is not made of bits or is given beside a whole prompt, a token is unknown,
            ``max_new_tokens`` is negative, or a token of ``generated`` is not the one that the model prints there.
        InvalidTypeError: If ``program`` is text, or ``max_new_tokens`` is not a whole number.
        InvalidStateError: If ``generated`` is finished already.
        PrecisionError: If the prompt itself is longer than the engine is guaranteed for.

    Source:
        Paper, Section 2 (greedy decoding until the stop token) and Section 3 (read-out).
    """
    if check_integer("max_new_tokens", max_new_tokens) < 0:
        raise InvalidValueError(f"max_new_tokens={max_new_tokens} is negative; give 0 or more")
    config = engine_config(engine)
    check_bits(bits)
    if isinstance(program, str):
        raise InvalidTypeError(
            "the program is text; give Program.parse(text) for instructions, or tokenize(text) for a whole prompt"
        )
    if bits and not isinstance(program, Program):
        raise InvalidValueError(
            f"bits={bits[:40]!r} is given beside a whole prompt, which holds its input already; give a Program"
        )
    prompt = program.to_prompt(bits) if isinstance(program, Program) else [*program]
    size = len(Program.from_prompt(prompt)) if not isinstance(program, Program) else len(program)
    before = token_ids(generated)
    if before and before[-1] == _STOP:
        raise InvalidStateError("the chain of thought to go on from is finished: it ends with '$'")
    limit = config.max_length if config.strict else None
    if limit is not None and len(prompt) + len(before) > limit:
        raise PrecisionError(
            f"the prompt has {len(prompt) + len(before):,} tokens, more than the {limit:,} that engine "
            f"{config.engine!r} is guaranteed for; use engine='exact', which has no limit"
        )
    started = time.perf_counter()
    reader = (model or default_model()).new_reader(config)
    for token in token_ids(prompt):
        reader.push(token)
    for index, token in enumerate(before):
        printed = reader.next_id()
        if printed != token:
            raise InvalidValueError(
                f"token {index} of the chain of thought to go on from is {TOKENS[token]!r}, the model prints "
                f"{TOKENS[printed]!r}; the file was changed, or is of another engine; run it from the start"
            )
        reader.push(token)
    ids: list[int] = list(before)

    def result(status: Status) -> CoTResult:
        length, tolerance = len(prompt) + len(ids), config.tie_tolerance
        margin = margin_bits(config.engine, length, tie_tolerance=tolerance, bits=config.bits)
        tokens, seconds = tuple(TOKENS[token] for token in ids), time.perf_counter() - started
        return CoTResult(tuple(prompt), tokens, status, config.engine, margin, seconds)

    try:
        status: Status = "max_new_tokens"
        halting, kept = _HALT in before, time.monotonic()
        while len(ids) < max_new_tokens:
            if limit is not None and len(prompt) + len(ids) >= limit:
                status = "precision"
                break
            if not halting and not 0 <= reader.counter < size:
                status = "fell_off"
                break
            token = reader.next_id()
            ids.append(token)
            if token == _STOP:
                status = "halted"
                break
            halting = halting or token == _HALT
            reader.push(token)
            if len(ids) % _REPORT_EVERY == 0:
                progress("decoding", len(ids) / max_new_tokens)
            if keep is not None and len(ids) % _KEEP_EVERY == 0 and time.monotonic() - kept > _KEEP_SECONDS:
                keep(result("interrupted"))
                kept = time.monotonic()
    except KeyboardInterrupt:
        if keep is not None:
            keep(result("halted" if ids[-1:] == [_STOP] else "interrupted"))
        raise
    progress("decoding", 1.0)
    return result(status)

"""From a question to a trace with a language model: answer, claims, graph, frequency scores; and back to a text."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from octavo_core.errors import InvalidStateError, InvalidValueError, OctavoError
from octavo_core.progress import ProgressCallback, no_progress

from octavo_coherent_factuality.filter import FilteredOutput
from octavo_coherent_factuality.graph import DeducibilityGraph
from octavo_coherent_factuality.heuristics import number_votes, split_steps, symbol_graph
from octavo_coherent_factuality.io import storable, trace_from_json, trace_to_json
from octavo_coherent_factuality.llm import LLM, Message
from octavo_coherent_factuality.parsing import parse_claims, parse_matrix, parse_votes
from octavo_coherent_factuality.trace import Claim, ReasoningTrace

__all__ = ["LLMJudge", "ReasoningPipeline", "check_ids", "finished_traces", "merge_claims"]

# How every line of a run begins: what is torn but begins otherwise is somebody else's.
_LINE_STARTS = (b'{"id": "', b'{"question": "')

_CLAIMS_SCHEMA = {
    "type": "object",
    "properties": {
        "claims": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"claim": {"type": "string"}, "confidence": {"type": "number"}},
                "required": ["claim", "confidence"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["claims"],
    "additionalProperties": False,
}
_MATRIX_SCHEMA = {
    "type": "object",
    "properties": {"matrix": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}},
    "required": ["matrix"],
    "additionalProperties": False,
}
_VOTES_SCHEMA = {
    "type": "object",
    "properties": {
        "votes": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"id": {"type": "integer"}, "score": {"type": "integer", "enum": [-1, 0, 1]}},
                "required": ["id", "score"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["votes"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class ReasoningPipeline:
    """Makes traces with a language model; each part also works without one.

    Args:
        llm: The model.
        num_samples: Alternative answers behind the frequency scores; 0 leaves the scores out.
        max_claims: Most claims of one answer.
        splitting: Cut the answer with the model (which also states its confidence) or by its text.
        graph: Ask the model for the graph, guess it from symbols and numbers, or take a chain.
        votes: Let the model compare claims with the alternatives, or compare numbers.
        attempts: How often a graph, a split or votes that cannot be read are asked for; a graph falls back to a chain
            afterwards, with a warning.
        max_tokens: Longest answer of the model.
        temperature: Temperature of the alternatives.

    Raises:
        InvalidValueError: If a setting is out of range.
    """

    llm: LLM
    num_samples: int = 5
    max_claims: int = 12
    splitting: Literal["llm", "text"] = "llm"
    graph: Literal["llm", "symbols", "chain"] = "llm"
    votes: Literal["llm", "numbers"] = "llm"
    attempts: int = 5
    max_tokens: int = 1000
    temperature: float | int = 1.0

    def __post_init__(self) -> None:
        if self.num_samples < 0 or self.max_claims < 1 or self.attempts < 1:
            raise InvalidValueError(
                f"num_samples={self.num_samples}, max_claims={self.max_claims}, attempts={self.attempts}; give samples "
                ">= 0, claims >= 1 and attempts >= 1"
            )
        if (
            self.splitting not in ("llm", "text")
            or self.graph not in ("llm", "symbols", "chain")
            or self.votes not in ("llm", "numbers")
        ):
            raise InvalidValueError(
                f"splitting={self.splitting!r}, graph={self.graph!r}, votes={self.votes!r}; give 'llm' or 'text', "
                "'llm', "
                "'symbols' or 'chain', and 'llm' or 'numbers'"
            )

    def trace(self, question: str, answer: str | None = None, *, id: str | None = None) -> ReasoningTrace:
        """Make the trace of one question.

        Args:
            question: The question.
            answer: The answer, if there is one already.
            id: Name of the trace.

        Returns:
            The trace, not annotated.
        """
        text = self.answer(question) if answer is None else answer
        claims = self.split(question, text)
        texts = [claim.text or "" for claim in claims]
        graph = self.build_graph(question, texts)
        if self.num_samples:
            frequency = self.frequency(question, texts)
            claims = [
                Claim(claim.text, {**claim.scores, "frequency": int(vote)})
                for claim, vote in zip(claims, frequency, strict=True)
            ]
        return ReasoningTrace(tuple(claims), graph, question, text, id)

    def run(
        self,
        questions: Iterable[Mapping[str, Any]],
        out: str | os.PathLike[str],
        *,
        resume: bool = True,
        progress: ProgressCallback = no_progress,
    ) -> list[ReasoningTrace]:
        """Make the traces of many questions, appending each to a JSONL file as soon as it is there.

        Args:
            questions: Objects with ``question`` and, if known, ``id`` and ``answer``.
            out: The file.
            resume: Whether traces that the file has already are kept; otherwise the file must not exist.
            progress: Called with what is done.

        Returns:
            All traces, in the order of the questions.

        Raises:
            InvalidStateError: If the file exists and ``resume`` is off, holds something else or is written to by
                another run, or a trace cannot be made.
            InvalidValueError: If a question is malformed, or its id belongs to another question.
        """
        path = Path(out)
        if path.exists() and not resume:
            raise InvalidStateError(f"{str(path)!r} exists; give resume=True or another file")
        entries = list(questions)
        for entry in entries:
            if not isinstance(entry, Mapping) or not isinstance(entry.get("question"), str):
                raise InvalidValueError(f"{str(entry)[:80]!r} has no text 'question'")
        keys = [
            (storable(str(entry["id"])) if entry.get("id") is not None else None, storable(entry["question"]))
            for entry in entries
        ]
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(_open_alone(path, "r+b")) if path.exists() else None
            earlier = _read_run(file, path) if file is not None else []
            check_ids(earlier, keys, path)
            done = {(trace.id, trace.question or ""): trace for trace in earlier}
            traces = []
            for index, (entry, key) in enumerate(zip(entries, keys, strict=True)):
                if key not in done:
                    try:
                        trace = self.trace(key[1], entry.get("answer"), id=key[0])
                    except OctavoError as error:
                        rest = (
                            f"what is finished is in {str(path)!r}, and the same call goes on from there (on the "
                            "command line with --resume)"
                            if done
                            else "nothing is finished yet"
                        )
                        raise InvalidStateError(f"question {index} ({key[1][:60]!r}): {error}; {rest}") from error
                    # Not before there is something to write: a call that fails at once leaves no empty file.
                    file = opened.enter_context(_open_alone(path, "xb")) if file is None else file
                    _append(file, path, trace)
                    done[key] = trace
                traces.append(done[key])
                progress("traces", (index + 1) / len(entries))
        return traces

    def answer(self, question: str) -> str:
        """Ask for an answer, step by step.

        Args:
            question: The question.
        """
        return self.llm.complete(_answer_prompt(question), max_tokens=self.max_tokens)

    def split(self, question: str, answer: str) -> list[Claim]:
        """Cut an answer into claims.

        Args:
            question: The question.
            answer: The answer.

        Returns:
            The claims, with the score ``self_confidence`` where the model states one for all of them.
        """
        if self.splitting == "text":
            return [Claim(step) for step in split_steps(answer)[: self.max_claims]]
        prompt = [
            {
                "role": "user",
                "content": (
                    "Break the answer below into its steps, each one claim that can be checked by itself, in their "
                    f"order; at most {self.max_claims}. Keep formulas. State for each claim your confidence, from "
                    "0 to 1, "
                    'that it is true. Reply with JSON only: {"claims": [{"claim": "...", "confidence": 0.9}, ...]}\n\n'
                    f"Question: {question}\n\nAnswer: {answer}"
                ),
            }
        ]
        parsed = self._ask(prompt, lambda text: parse_claims(text, max_claims=self.max_claims), _CLAIMS_SCHEMA)
        missing = sum(confidence is None for _, confidence in parsed)
        complete = not missing
        if missing:
            warnings.warn(
                f"the model states no confidence that can be read for {missing} of {len(parsed)} claims of "
                f"{question[:60]!r}; none of them has the score 'self_confidence'",
                stacklevel=2,
            )
        return [Claim(text, {"self_confidence": c} if complete and c is not None else {}) for text, c in parsed]

    def build_graph(self, question: str, claims: Sequence[str]) -> DeducibilityGraph:
        """Find out which claims rely on which.

        Args:
            question: The question.
            claims: Texts of the claims.

        Returns:
            The graph; a chain marked ``fallback`` if the model gives none that can be used.
        """
        if self.graph == "symbols":
            return symbol_graph(claims, question)
        if self.graph == "chain" or len(claims) == 1:
            return DeducibilityGraph.chain(len(claims))
        listed = "\n".join(f"{index}: {claim}" for index, claim in enumerate(claims))
        prompt = [
            {
                "role": "user",
                "content": (
                    "Below are the claims of an answer, numbered from 0. For each claim, decide which other claims it "
                    "uses directly as premises, whether or not any of them is true. Reply with a matrix of "
                    f"{len(claims)} rows and {len(claims)} columns: row j, column i is 1 if claim j relies on "
                    "claim i, else "
                    "0; the diagonal is 0 and no two claims rely on each other. For three claims of which the "
                    "last uses "
                    "the other two: "
                    '{"matrix": [[0,0,0],[0,0,0],[1,1,0]]}. Reply with JSON only.\n\n'
                    f"Question: {question}\n\nClaims:\n{listed}"
                ),
            }
        ]

        def read(text: str) -> DeducibilityGraph:
            return DeducibilityGraph.from_matrix(parse_matrix(text, len(claims)))

        try:
            return self._ask(prompt, read, _MATRIX_SCHEMA)
        except InvalidValueError as error:
            warnings.warn(
                f"no usable graph for {question[:60]!r} after {self.attempts} attempts ({error}); a chain stands "
                "for it",
                stacklevel=2,
            )
            chain = DeducibilityGraph.chain(len(claims))
            return DeducibilityGraph(chain.indptr, chain.indices, fallback=True)

    def frequency(self, question: str, claims: Sequence[str]) -> np.ndarray:
        """Count how many sampled answers support each claim, less those that contradict it.

        Args:
            question: The question.
            claims: Texts of the claims.

        Returns:
            (claims,) integers from ``-num_samples`` to ``num_samples``.
        """
        total = np.zeros(len(claims), np.int64)
        for alternative in self._alternatives(question):
            total += self._votes(question, claims, alternative)
        return total

    def _alternatives(self, question: str) -> list[str]:
        prompt = _answer_prompt(question)
        if (complete_many := getattr(self.llm, "complete_many", None)) is not None:
            return complete_many(
                prompt, self.num_samples, temperature=self.temperature, max_tokens=self.max_tokens, first_sample=1
            )
        return [
            self.llm.complete(
                prompt, temperature=float(self.temperature), max_tokens=self.max_tokens, sample=sample + 1
            )
            for sample in range(self.num_samples)
        ]

    def _votes(self, question: str, claims: Sequence[str], alternative: str) -> np.ndarray:
        if self.votes == "numbers":
            return number_votes(claims, alternative)
        listed = "\n".join(f"{index}: {claim}" for index, claim in enumerate(claims))
        prompt = [
            {
                "role": "user",
                "content": (
                    "Below are claims, numbered from 0, and a text. For each claim say whether the text supports "
                    "it (1), "
                    "contradicts it (-1) or does neither (0). Reply with JSON only: "
                    '{"votes": [{"id": 0, "score": 1}, ...]}\n\n'
                    f"Question: {question}\n\nClaims:\n{listed}\n\nText: {alternative}"
                ),
            }
        ]
        try:
            return self._ask(prompt, lambda text: parse_votes(text, len(claims)), _VOTES_SCHEMA)
        except InvalidValueError as error:
            warnings.warn(f"votes of one alternative answer to {question[:60]!r} are lost: {error}", stacklevel=2)
            return np.zeros(len(claims), np.int64)

    def _ask(self, prompt: Sequence[Message], read: Any, schema: Mapping[str, Any]) -> Any:
        """Ask until the answer can be read; the first attempt is deterministic, later ones are sampled."""
        for attempt in range(self.attempts):
            text = self.llm.complete(
                prompt,
                temperature=0.0 if attempt == 0 else 0.7,
                max_tokens=self.max_tokens,
                schema=schema,
                sample=attempt,
            )
            try:
                return read(text)
            except InvalidValueError as error:
                problem = error
        raise problem


@dataclass(frozen=True)
class LLMJudge:
    """An annotator that asks a language model whether the kept claims are right as a whole.

    The guarantee is then about the judge's verdict, not about the truth.

    Args:
        llm: The model.
    """

    llm: LLM

    @property
    def event(self) -> str:
        """The event in words."""
        return f"the language model {self.llm.name!r} judges the kept claims coherent and correct"

    def __call__(self, trace: ReasoningTrace, kept: np.ndarray) -> bool:
        """Judge one output.

        Raises:
            InvalidStateError: If the model says neither yes nor no.
        """
        if not kept.any():
            return True
        order = [index for index in trace.graph.topological_order.tolist() if kept[index]]
        steps = "\n".join(f"- {trace.claims[index].text}" for index in order)
        prompt = [
            {
                "role": "user",
                "content": (
                    "Does each step below follow from the question, common knowledge and the steps before it, "
                    "and is it "
                    "true? Steps may be missing at the end, but no step may rest on one that is not there. Reply with "
                    f"yes or no.\n\nQuestion: {trace.question}\n\nSteps:\n{steps}"
                ),
            }
        ]
        answer = self.llm.complete(prompt, max_tokens=5).strip().lower()
        if answer.startswith(("yes", "no")):
            return answer.startswith("yes")
        raise InvalidStateError(f"the judge {self.llm.name!r} answered {answer[:40]!r}, not yes or no")


def merge_claims(llm: LLM, output: FilteredOutput, *, abstention: str = "Abstain.") -> str:
    """Turn the kept claims into a readable answer, with these steps only.

    Args:
        llm: The model that writes.
        output: The filtered output.
        abstention: What to say when nothing is kept; the model is not asked then.

    Returns:
        The text. The guarantee is about the claims, not about what the model makes of them.
    """
    if output.abstained:
        return abstention
    prompt = [
        {
            "role": "user",
            "content": (
                "Write the steps below as a coherent answer to the question. Use these steps ONLY: add no step, "
                "correct "
                "nothing, and do not go further than they do.\n\n"
                f"Question: {output.trace.question}\n\nSteps:\n{output.text()}"
            ),
        }
    ]
    return llm.complete(prompt)


def _answer_prompt(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{question}\n\nAnswer step by step, one short step a line."}]


def check_ids(earlier: Sequence[ReasoningTrace], keys: Iterable[tuple[str | None, str | None]], path: Path) -> None:
    """Check that no id stands for two questions, which would make a file of traces that nothing can use.

    Args:
        earlier: The traces that the file has.
        keys: Ids and questions that are to be added.
        path: The file, for the message.

    Raises:
        InvalidValueError: If one does.
    """
    known = {(trace.id, trace.question or "") for trace in earlier}
    questions = {trace.id: trace.question or "" for trace in earlier}
    for name, question in ((storable(name), storable(question or "")) for name, question in keys if name is not None):
        if (name, question) not in known and questions.setdefault(name, question) != question:
            raise InvalidValueError(
                f"the id {name!r} belongs to two questions, one of them perhaps in {str(path)!r} already; give each "
                "its own id, or write to another file"
            )


def finished_traces(path: Path) -> list[ReasoningTrace]:
    """Read the traces of an earlier run; a last line that a kill has torn is cut off the file, with a warning.

    Args:
        path: The file of the run; it may be missing.

    Returns:
        The traces.

    Raises:
        InvalidStateError: If a line is not a trace, or another run is writing to the file; it is left as it is.
    """
    if not path.exists():
        return []
    with _open_alone(path, "r+b") as file:
        return _read_run(file, path)


def _open_alone(path: Path, mode: Literal["r+b", "xb"]) -> BinaryIO:
    """Open the file of a run, which no other run can open until it is closed or this process ends."""
    try:
        file = path.open(mode)
    except FileExistsError as error:
        raise InvalidStateError(
            f"another run has made {str(path)!r} since this one began; go on from that file, or give another"
        ) from error
    except OSError as error:
        raise InvalidStateError(
            f"cannot write {str(path)!r}: {error.strerror}; give a file that you can write"
        ) from error
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise InvalidStateError(
            f"another run is writing to {str(path)!r}; wait until it ends, or give another file"
        ) from error
    except (ImportError, OSError):
        # Windows, and file systems that know no locks.
        pass
    return file


def _read_run(file: BinaryIO, path: Path) -> list[ReasoningTrace]:
    """Read a run and put the file in order behind its last trace, after everything in it has been checked."""
    done: list[ReasoningTrace] = []
    *lines, last = file.read().split(b"\n")
    for number, line in enumerate([*lines, last] if last else lines, start=1):
        try:
            done.append(trace_from_json(json.loads(line.decode("utf-8"))))
        except (ValueError, TypeError, RecursionError) as error:
            if number > len(lines) and _is_torn(last):
                file.seek(-len(last), os.SEEK_END)
                file.truncate()
                warnings.warn(
                    f"line {number} of {str(path)!r} was cut off in the middle when the run was killed; it is removed, "
                    "and its trace is made again",
                    stacklevel=3,
                )
                return done
            raise InvalidStateError(
                f"line {number} of {str(path)!r} is not a trace: {error}; give another file"
            ) from error
    if last:
        # An editor has taken the end of the line away.
        file.write(b"\n")
    return done


def _is_torn(line: bytes) -> bool:
    """Whether a line is the beginning of one that a run writes, and no whole JSON value."""
    if not any(line.startswith(start) or start.startswith(line) for start in _LINE_STARTS):
        return False
    try:
        json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return True
    return False


def _append(file: BinaryIO, path: Path, trace: ReasoningTrace) -> None:
    """Write a trace to the end of its file, and to the disk."""
    if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
        raise InvalidStateError(
            f"{str(path)!r} was moved or replaced while this run was writing to it; run it again to go on from what is "
            "there (on the command line with --resume)"
        )
    file.write(f"{storable(json.dumps(trace_to_json(trace), ensure_ascii=False))}\n".encode())
    file.flush()
    os.fsync(file.fileno())

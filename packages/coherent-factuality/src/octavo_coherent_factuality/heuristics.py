"""Claims and graphs without a language model: steps of a chain of thought, and who uses whose symbols and numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_coherent_factuality.graph import DeducibilityGraph
from octavo_coherent_factuality.parsing import check_text, check_texts
from octavo_coherent_factuality.trace import Claim, ReasoningTrace

__all__ = ["number_votes", "split_steps", "symbol_graph", "trace_from_text"]

_STEP = re.compile(r"(?im)^[ \t>*#-]*(?:\*\*)?step\s+\d+\s*(?:\*\*)?(?:\s*[:.)-](?:\*\*)?[ \t]*|[ \t]*$)")
_NUMBERED = re.compile(r"(?m)^[ \t]*(?:\(?\d{1,2}[.)]|[-*•])[ \t]+(?=\S)")
_SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]?\s+(?=[\"'(\[$\\]?[A-Z0-9$\\])")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|cf|vs|Eq|Fig|No|Mr|Mrs|Dr|approx)\.|\b[A-Z]\.)$")
_NAME = r"[A-Za-z](?:_\{?\w+\}?|\d+)?"
_DEFINED = re.compile(rf"(?<![A-Za-z\\])({_NAME})\s*(?:\([^()]*\))?\s*(?:=|:=|≈)(?!=)")
_OPERATORS = tuple("+-*/^\u00d7·(")
_USED = re.compile(rf"(?<![A-Za-z\\])({_NAME})(?![A-Za-z])")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?![\w])")
_RESULT = re.compile(r"[=≈]\s*\$?\s*(-?\d+(?:,\d{3})*(?:\.\d+)?)(?![\w.]*\s*[-+*/^\u00d7·])")


def split_steps(text: str) -> list[str]:
    """Cut a chain of thought into steps.

    By "Step k:" headings, or lines of "Step k" alone, if there are two or more, else by numbered or bulleted lines,
    else by lines, else by sentences.

    Args:
        text: The answer.

    Returns:
        The steps, without their headings.

    Raises:
        InvalidValueError: If there is no text.
        InvalidTypeError: If the answer is none.
    """
    check_text(text, "the answer")
    if not text.strip():
        raise InvalidValueError("the answer is empty; give its text")
    for marker in (_STEP, _NUMBERED):
        if len(marker.findall(text)) >= 2:
            parts = marker.split(text)
            # What stands before the first step is an introduction unless it calculates something.
            head = [parts[0]] if "=" in parts[0] else []
            return [part for part in (_clean(part) for part in [*head, *parts[1:]]) if part]
    lines = [part for part in (_clean(line) for line in text.splitlines()) if part]
    if len(lines) >= 2:
        return lines
    sentences: list[str] = []
    for piece in _SENTENCE.split(text):
        if sentences and _ABBREVIATION.search(sentences[-1]):
            sentences[-1] = f"{sentences[-1]} {piece}"
        else:
            sentences.append(piece)
    return [part for part in (_clean(sentence) for sentence in sentences) if part]


def symbol_graph(steps: Sequence[str], question: str = "") -> DeducibilityGraph:
    """Guess the graph: a step relies on the latest earlier step that defines a symbol or computes a number it uses.

    A number that the question states needs no step.

    Args:
        steps: Texts of the claims.
        question: The question.

    Returns:
        The graph; its edges go backwards only.

    Raises:
        InvalidTypeError: If the steps are no list of texts, or the question is no text.
    """
    steps = check_texts(steps, "the steps")
    check_text(question, "the question")
    given = {_value(number) for number in _NUMBER.findall(question)}
    symbol_from: dict[str, int] = {}
    number_from: dict[str, int] = {}
    parents = []
    for index, step in enumerate(steps):
        defined = [
            match[1]
            for match in _DEFINED.finditer(step)
            # "a + b = 5" defines neither, and "a = b = 5" defines b only if nothing did before.
            if (before := step[: match.start()].rstrip()[-1:]) not in _OPERATORS
            and not (before == "=" and match[1] in symbol_from)
        ]
        results = {_value(number.lstrip("-")) for number in _RESULT.findall(step)}
        used = set(_USED.findall(step))
        numbers = {_value(number) for number in _NUMBER.findall(step)}
        found = {symbol_from[name] for name in used if name in symbol_from}
        found |= {number_from[number] for number in numbers - given if number in number_from}
        parents.append(sorted(found))
        symbol_from |= dict.fromkeys(defined, index)
        for number in results or (numbers if not found else set()):
            number_from[number] = index
    return DeducibilityGraph.from_parents(parents)


def number_votes(steps: Sequence[str], alternative: str) -> np.ndarray:
    """Let an alternative answer vote on claims by the numbers they result in.

    Args:
        steps: Texts of the claims.
        alternative: Another answer to the same question.

    Returns:
        (claims,) +1 where the alternative has all the step's results, -1 where it has none, 0 where there are none or
        some.

    Raises:
        InvalidTypeError: If the steps are no list of texts, or the alternative is no text.
    """
    steps = check_texts(steps, "the steps")
    check_text(alternative, "the alternative answer")
    there = {_value(number) for number in _NUMBER.findall(alternative)}
    votes = np.zeros(len(steps), np.int64)
    for index, step in enumerate(steps):
        results = {_value(number.lstrip("-")) for number in _RESULT.findall(step)}
        if results:
            votes[index] = 1 if results <= there else -1 if not results & there else 0
    return votes


def trace_from_text(
    answer: str, *, question: str | None = None, alternatives: Any = (), id: str | None = None
) -> ReasoningTrace:
    """Make a trace from the text of an answer alone, with frequencies if there are alternative answers.

    Args:
        answer: The answer, as a chain of thought.
        question: The question.
        alternatives: List of other answers to it, sampled from the same model.
        id: Name of the trace.

    Returns:
        The trace.

    Raises:
        InvalidValueError: If the answer is empty.
        InvalidTypeError: If the alternatives are no list of texts.
    """
    if not isinstance(alternatives, list | tuple) or not all(isinstance(text, str) for text in alternatives):
        raise InvalidTypeError(f"alternatives are {str(alternatives)[:60]!r}; give a list of texts")
    steps = split_steps(answer)
    votes = sum((number_votes(steps, alternative) for alternative in alternatives), np.zeros(len(steps), np.int64))
    claims = tuple(
        Claim(step, {"frequency": int(vote)} if alternatives else {}) for step, vote in zip(steps, votes, strict=True)
    )
    return ReasoningTrace(claims, symbol_graph(steps, question or ""), question, answer, id)


def _clean(text: str) -> str:
    return " ".join(text.split()).strip("*# ").strip()


def _value(number: str) -> str:
    """The same text for 1,000, 1000 and 1000.0."""
    return f"{float(number.replace(',', '')):.12g}"

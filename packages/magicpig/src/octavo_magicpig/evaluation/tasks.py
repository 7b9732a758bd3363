"""Generated long-context tasks in the style of RULER, and reading of RULER's own files."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from octavo_core.errors import InvalidValueError, MissingFileError

__all__ = ["TASKS", "Example", "english_text", "load_examples", "make_examples", "read_text", "score"]

_MAX_LINE = 2**24
_NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "


@dataclass(frozen=True)
class Example:
    """A prompt with its expected answers.

    Args:
        index: Number within its task.
        context: The long part, without the question.
        question: The question, with the beginning of the answer.
        outputs: Strings that a right answer holds.
        task: Name of the task.
    """

    index: int
    context: str
    question: str
    outputs: tuple[str, ...]
    task: str

    @property
    def prompt(self) -> str:
        """Context and question."""
        return self.context + self.question


def make_examples(
    task: str, count: int, target_tokens: int, count_tokens: Callable[[str], int], *, seed: int = 0
) -> list[Example]:
    """Generate examples of about a given length.

    Args:
        task: ``"niah"``, ``"vt"``, ``"cwe"`` or ``"fwe"``.
        count: Examples.
        target_tokens: Tokens of a prompt, at most; the filler is as long as fits.
        count_tokens: Counts the tokens of a text.
        seed: Seed; example i is the same whatever the count.

    Returns:
        The examples.

    Raises:
        InvalidValueError: If the task is unknown, not even the shortest prompt fits, or a longer prompt does not count
            more tokens.

    Source:
        RULER (arXiv 2404.06654): needle in a haystack, variable tracking, common and frequent words extraction.
    """
    if task not in TASKS:
        raise InvalidValueError(f"unknown task {task!r}; give one of {', '.join(TASKS)}")
    make = TASKS[task]
    examples = []
    for index in range(count):

        def at(size: int, index: int = index) -> Example:
            return make(np.random.default_rng([seed, index]), size, index)

        low, high, tokens = 0, 1, 0
        while (longer := count_tokens(at(high).prompt)) <= target_tokens:
            if longer <= tokens:
                raise InvalidValueError(
                    f"{task} stops growing at {tokens:,} tokens, below the {target_tokens:,} wanted; "
                    "give fewer tokens, or a count_tokens that does not truncate"
                )
            low, high, tokens = high, 2 * high, longer
        if low == 0:
            raise InvalidValueError(f"{task} does not fit {target_tokens} tokens; give more")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if count_tokens(at(middle).prompt) <= target_tokens else (low, middle)
        examples.append(at(low))
    return examples


def load_examples(path: str | Path, task: str = "ruler") -> list[Example]:
    """Read a RULER file: JSON lines with ``input``, and ``outputs`` and ``index`` where given.

    The text after the last line break is taken as the question. A byte order mark at the beginning is skipped. Where an
    ``index`` repeats, as in files put together, the examples are numbered in order instead.

    Args:
        path: The file.
        task: Name for the results.

    Returns:
        The examples.

    Raises:
        MissingFileError: If there is no such file.
        InvalidValueError: If a line is not such an object; the message names the line.
    """
    file = Path(path)
    if not file.is_file():
        raise MissingFileError(f"no file {str(file)!r}; give JSON lines with the fields input and outputs")
    examples: list[Example] = []
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    examples.append(_parse(line, f"{file.name}, line {number}", len(examples), task))
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{str(file)!r} is not UTF-8 text: {error.reason}; give JSON lines") from error
    if not examples:
        raise InvalidValueError(f"{str(file)!r} holds no example; give JSON lines with the fields input and outputs")
    if len({example.index for example in examples}) < len(examples):
        return [replace(example, index=number) for number, example in enumerate(examples)]
    return examples


def read_text(path: str | Path | None) -> str:
    """Read a text.

    Args:
        path: A UTF-8 file, or ``None`` for :func:`english_text`.

    Returns:
        The text, without a byte order mark.

    Raises:
        MissingFileError: If there is no such file.
        InvalidValueError: If it is not UTF-8.
    """
    if path is None:
        return english_text()
    if not Path(path).is_file():
        raise MissingFileError(f"no file {str(path)!r}; give a text file")
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{str(path)!r} is not UTF-8 text: {error.reason}; convert it to UTF-8") from error


def score(example: Example, answer: str) -> float:
    """Share of the expected strings that an answer holds, ignoring case.

    Args:
        example: The example.
        answer: What the model wrote.

    Returns:
        A share in [0, 1]; 1 if nothing is expected.
    """
    text = answer.lower()
    return float(np.mean([output.lower() in text for output in example.outputs])) if example.outputs else 1.0


def english_text() -> str:
    """Give English prose that is there without a download.

    Returns:
        About 460,000 characters: the language reference that comes with Python.
    """
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def _needle(random: np.random.Generator, size: int, index: int) -> Example:
    word = str(random.choice(_words()))
    number = str(random.integers(10**6, 10**7))
    pieces = [_NOISE] * size
    # Not in the last tenth, where the exact last tokens of every method would give it away.
    pieces.insert(
        int(random.integers(0, int(0.9 * size) + 1)), f"One of the special magic numbers for {word} is: {number}. "
    )
    context = (
        "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you "
        "about the numbers afterwards.\n" + "".join(pieces)
    )
    question = (
        f"\nWhat is the special magic number for {word} mentioned in the provided text? "
        f"The special magic number for {word} mentioned in the provided text is"
    )
    return Example(index, context, question, (number,), "niah")


def _variables(random: np.random.Generator, size: int, index: int) -> Example:
    chain = ["".join(random.choice(list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), 5)) for _ in range(5)]
    number = str(random.integers(10_000, 100_000))
    statements = [f"VAR {chain[0]} = {number}. "]
    statements += [f"VAR {later} = VAR {earlier}. " for earlier, later in itertools.pairwise(chain)]
    places = np.sort(random.integers(0, size + 1, len(statements)))
    pieces = [_NOISE] * size
    for offset, (place, statement) in enumerate(zip(places, statements, strict=True)):
        pieces.insert(int(place) + offset, statement)
    context = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n" + "".join(pieces)
    question = (
        f"\nQuestion: Find all variables that are assigned the value {number} in the text above. Answer: According to "
        f"the chain(s) of variable assignment in the text above, 5 variables are assigned the value {number}, they are:"
    )
    return Example(index, context, question, tuple(chain), "vt")


def _common_words(random: np.random.Generator, size: int, index: int) -> Example:
    # Ten words come thirty times, the others three times.
    words = random.permutation(_words())
    common, others = words[:10], words[10 : 10 + 5 * size]
    others = np.concatenate([others, _made_up_words(5 * size - len(others))])
    listed = random.permutation(np.concatenate([np.repeat(common, 30), np.repeat(others, 3)]))
    body = " ".join(f"{number}. {word}" for number, word in enumerate(listed, 1))
    context = "Below is a numbered list of words. In these words, some appear more often than others.\n" + body
    question = "\nQuestion: What are the 10 most common words in the above list? Answer: The top 10 words are:"
    return Example(index, context, question, tuple(map(str, common)), "cwe")


def _frequent_words(random: np.random.Generator, size: int, index: int) -> Example:
    # Coded words with Zipf's frequencies; the most frequent three are asked for.
    letters = list("abcdefghijklmnopqrstuvwxyz")
    coded = ["".join(random.choice(letters, 6)) for _ in range(40)]
    weights = 1.0 / np.arange(1, len(coded) + 1) ** 2.0
    counts = np.maximum(1, (weights / weights.sum() * 20 * size).astype(int))
    listed = random.permutation(np.repeat(coded, counts))
    context = "Read the following coded text and track the frequency of each coded word.\n" + " ... ".join(listed)
    question = (
        "\nQuestion: What are the three most frequently appeared words in the above coded text? Answer: According to "
        "the coded text above, the three most frequently appeared words are:"
    )
    return Example(index, context, question, tuple(coded[:3]), "fwe")


TASKS: dict[str, Callable[[np.random.Generator, int, int], Example]] = {
    "niah": _needle,
    "vt": _variables,
    "cwe": _common_words,
    "fwe": _frequent_words,
}
"""Generators by name: needle in a haystack, variable tracking, common and frequent words extraction."""


@functools.cache
def _words() -> np.ndarray:
    found = re.findall(r"\b[a-z]{5,9}\b", english_text())
    return np.array(sorted(set(found)))


def _made_up_words(count: int) -> np.ndarray:
    """Words of seven letters that differ from one another and from the real ones, for when those run out."""
    pairs = np.array(["".join(pair) for pair in itertools.product("bcdfghjklmnpqrstvwxz", "aeiou")])
    # The factor has no divisor in common with 10^6, so that no word comes twice, and neighbours look unlike.
    number = np.arange(min(count, 10**6)) * 611_953 % 10**6
    first, second, third = pairs[number // 10**4], pairs[number // 100 % 100], pairs[number % 100]
    # No word of the list ends in q.
    return np.char.add(np.char.add(first, second), np.char.add(third, "q"))


def _parse(line: str, where: str, index: int, task: str) -> Example:
    if len(line) > _MAX_LINE:
        raise InvalidValueError(f"{where} is longer than {_MAX_LINE:,} characters")
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise InvalidValueError(f"{where} is not JSON: {error}") from error
    except RecursionError as error:
        raise InvalidValueError(
            f"{where} nests too deeply; give an object with the fields input and outputs"
        ) from error
    if not isinstance(entry, dict) or not isinstance(entry.get("input"), str):
        raise InvalidValueError(f"{where} has no text field 'input'")
    if not entry["input"].strip():
        raise InvalidValueError(f"{where}: 'input' is empty; give context and question")
    if half := re.search("[\ud800-\udfff]", entry["input"]):
        raise InvalidValueError(
            f"{where}: 'input' holds U+{ord(half[0]):04X}, half of a surrogate pair; write the whole character"
        )
    outputs = entry.get("outputs", [])
    outputs = [outputs] if isinstance(outputs, str) else outputs
    if not isinstance(outputs, list) or not all(isinstance(output, str) for output in outputs):
        raise InvalidValueError(f"{where}: 'outputs' is not a list of texts")
    number = entry.get("index", index)
    context, newline, question = entry["input"].rpartition("\n")
    return Example(number if type(number) is int else index, context, newline + question, tuple(outputs), task)

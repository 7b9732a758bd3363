"""What the commands share: reading files, choosing a method, errors in the words of the command line."""

from __future__ import annotations

import importlib.util
import json
import os
import warnings
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingDependencyError, MissingFileError

if TYPE_CHECKING:
    from octavo_coherent_factuality.method import FilteringMethod
    from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = [
    "FAMILIES",
    "annotator_of",
    "ask_user",
    "check_choice",
    "check_output",
    "check_plot",
    "method_of",
    "pick_trace",
    "plain_warnings",
    "png_of",
    "question_entries",
    "read_file",
    "resumed_traces",
]

FAMILIES = ("subgraph", "independent", "posthoc", "prefix", "greedy")
"""Families of outputs, as options name them."""

# What messages of the API say, and how the command line says it.
_IN_OPTIONS = (
    ("repair='break'", "--repair break"),
    ("repair='chain'", "--repair chain"),
    ("Gold(on_missing='silver') or a function that asks", "--annotation gold-or-silver"),
    ("evaluate with Gold(on_missing='silver') or Silver()", "give --evaluation gold-or-silver or silver"),
)


@contextmanager
def plain_warnings() -> Generator[None, None, None]:
    """Print warnings as one line each on standard error, and say errors in terms of options.

    Yields:
        Nothing; what runs inside is caught.

    Raises:
        InvalidValueError: As raised inside, with options in place of arguments.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        except InvalidValueError as error:
            text = str(error)
            for api, option in _IN_OPTIONS:
                text = text.replace(api, option)
            raise InvalidValueError(text) from error
        finally:
            for text in dict.fromkeys(str(entry.message) for entry in caught):
                typer.echo(f"warning: {text}", err=True)


def check_choice(option: str, value: str, accepted: tuple[str, ...]) -> None:
    """Check the value of an option.

    Args:
        option: Name of the option.
        value: Its value.
        accepted: What is accepted.

    Raises:
        InvalidValueError: If it is none of these.
    """
    if value not in accepted:
        raise InvalidValueError(f"{option} {value!r} is unknown; give one of {', '.join(accepted)}")


def check_output(option: str, out: Path | None, *inputs: Path | None) -> None:
    """Check that a command does not write over what it reads, before the work is done.

    Args:
        option: Name of the option for the output.
        out: The output; ``None`` for standard output.
        inputs: The files that are read, where given.

    Raises:
        InvalidValueError: If the output is one of them, by whatever name.
    """
    for path in inputs:
        if out is None or path is None:
            continue
        if out.absolute() == path.absolute() or (out.exists() and path.exists() and os.path.samefile(out, path)):
            raise InvalidValueError(f"{option} {str(out)!r} is the input {str(path)!r}; give another file")


def check_plot(path: Path | None) -> None:
    """Check that a figure can be drawn and written, before the work for it is done.

    Args:
        path: The file, if a figure is asked for.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
        InvalidStateError: If the folder does not exist.
        InvalidValueError: If the name is one of another kind of file.
    """
    if path is None:
        return
    if path.suffix.lower() not in ("", ".png"):
        raise InvalidValueError(f"--plot {str(path)!r} names no PNG file; give a name that ends in .png")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingDependencyError.for_extra("matplotlib", "octavo-coherent-factuality", "plot")
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise InvalidStateError(f"cannot write {str(path)!r}: its folder does not exist, or it is one; give a PNG file")


def read_file(path: Path, repair: str) -> list[ReasoningTrace]:
    """Read traces, and warn of graphs that were mended.

    Args:
        path: The file.
        repair: What to do with cyclic graphs.

    Returns:
        The traces.
    """
    from octavo_coherent_factuality.io import read_traces

    check_choice("--repair", repair, ("error", "break", "chain"))
    traces = read_traces(path, repair=repair)  # ty: ignore[invalid-argument-type]
    for trace in traces:
        if trace.graph.dropped_edges or trace.graph.fallback:
            done = "replaced by a chain" if trace.graph.fallback else f"mended: dropped {trace.graph.dropped_edges}"
            warnings.warn(f"the graph of {trace.name} was {done}", stacklevel=2)
    return traces


def method_of(
    traces: list[ReasoningTrace],
    score: str,
    lower_is_safer: bool,
    samples: int,
    beta: float,
    family: str,
    annotation: str,
) -> FilteringMethod:
    """Make the method that the options describe.

    Args:
        traces: The traces, whose scores decide where the score is ``"auto"``.
        score: Name of the score.
        lower_is_safer: Whether a lower one is safer.
        samples: Alternative answers behind frequency scores.
        beta: Weight of the descendants.
        family: Family of outputs.
        annotation: What counts as right.

    Returns:
        The method.

    Raises:
        InvalidValueError: If the options do not fit each other or the traces.
    """
    from octavo_coherent_factuality.method import FilteringMethod
    from octavo_coherent_factuality.scorers import (
        DescendantWeighted,
        FrequencyScorer,
        LogProb,
        ScoreColumn,
        SelfConfidence,
    )

    check_choice("--family", family, FAMILIES)
    if score == "auto":
        there = traces[0].claims[0].scores
        score = next((name for name in ("frequency", "self_confidence", "logprob", "score") if name in there), "")
        if not score:
            raise InvalidValueError(
                f"the claims have the scores {', '.join(sorted(there)) or 'none'}; name one with --score"
            )
    known: dict[str, Any] = {
        "frequency": FrequencyScorer(samples),
        "self_confidence": SelfConfidence(),
        "logprob": LogProb(),
    }
    if lower_is_safer and score in known:
        raise InvalidValueError(
            f"--lower-is-safer does not go with the score {score!r}, of which a higher value is safer; leave it out, "
            "or name another score with --score"
        )
    if score == "frequency" and family in ("prefix", "greedy"):
        largest = max((claim.scores.get(score, 0.0) for trace in traces for claim in trace.claims), default=0.0)
        if largest > samples:
            raise InvalidValueError(
                f"a claim has the frequency {largest:g}, more than --samples {samples}, and the {family} family needs "
                f"the number of alternative answers; give --samples {largest:.0f} or more"
            )
    scorer = known.get(score) or ScoreColumn(score, higher_is_safer=not lower_is_safer)
    if beta:
        scorer = DescendantWeighted(scorer, beta)
    return FilteringMethod(scorer, family, annotator_of(annotation))  # ty: ignore[invalid-argument-type]


def annotator_of(name: str, option: str = "--annotation") -> Any:
    """Make the annotator that an option names; ``None`` for ``"auto"``.

    Args:
        name: Value of the option.
        option: Name of the option, for messages.

    Returns:
        The annotator.
    """
    from octavo_coherent_factuality.annotators import Gold, Independent, Silver

    known = {
        "auto": None,
        "silver": Silver(),
        "independent": Independent(),
        "gold": Gold(),
        "gold-or-silver": Gold("silver"),
    }
    check_choice(option, name, tuple(known))
    return known[name]


def ask_user(trace: ReasoningTrace, mask: Any) -> bool | None:
    """Show the question and the claims, and read y, n or s (skip); q stops.

    Args:
        trace: The trace.
        mask: Mask of the claims that are asked about.

    Returns:
        The verdict, ``None`` to leave it open.
    """
    print(f"\n{trace.question or trace.id or ''}")
    single = int(mask.sum()) == 1
    for index, claim in enumerate(trace.claims):
        if mask[index]:
            print(f"  [{index}] {claim.text or '(no text)'}")
    what = "Is this claim true by itself?" if single else "Are these claims right and complete as a derivation?"
    while True:
        answer = typer.prompt(f"{what} y/n/s/q").strip().lower()
        if answer in ("y", "n", "s"):
            return {"y": True, "n": False, "s": None}[answer]
        if answer == "q":
            raise typer.Abort


def resumed_traces(traces: list[ReasoningTrace], out: Path) -> list[ReasoningTrace]:
    """Take over the annotations of an earlier session, if the file holds the same traces.

    Args:
        traces: The traces.
        out: The file.

    Returns:
        The traces, with what the file says about them.

    Raises:
        InvalidValueError: If it holds other traces.
    """
    from octavo_coherent_factuality.io import read_traces

    if not out.exists():
        return traces
    earlier = read_traces(out)
    if [trace.content_digest for trace in earlier] != [trace.content_digest for trace in traces]:
        raise InvalidValueError(f"{str(out)!r} exists and holds other traces; give another --out")
    return earlier


def pick_trace(traces: list[ReasoningTrace], wanted: str) -> ReasoningTrace:
    """Find a trace by its id, or by its number from 0.

    Args:
        traces: The traces.
        wanted: Id or number.

    Returns:
        The trace.

    Raises:
        InvalidValueError: If there is none.
    """
    for trace in traces:
        if trace.id == wanted:
            return trace
    if wanted.isdecimal() and len(wanted) < 10 and int(wanted) < len(traces):
        return traces[int(wanted)]
    raise InvalidValueError(f"no trace {wanted!r}; give an id, or a number from 0 to {len(traces) - 1}")


def question_entries(path: Path, *, offline: bool) -> list[dict[str, Any]]:
    """Read and check a file of questions.

    Args:
        path: JSONL file of objects with ``question``, and ``id``, ``answer`` and ``alternatives`` if known.
        offline: Whether each must have an answer; the question may then be missing.

    Returns:
        The objects; ids are texts.

    Raises:
        MissingFileError: If there is no such file.
        InvalidValueError: If there is no question in it, or a line is malformed; the message names it.
    """
    if path.is_dir():
        raise InvalidValueError(f"{str(path)!r} is a folder; give a JSONL file with one question a line")
    if not path.is_file():
        raise MissingFileError(f"no file at {str(path)!r}; give a JSONL file with one question a line")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{str(path)!r} is not UTF-8 text: {error}") from error
    entries = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            problem, entry = _entry(line, offline)
            if problem:
                raise InvalidValueError(f"line {number} of {str(path)!r} {problem}")
            entries.append(entry)
    if not entries:
        raise InvalidValueError(f"{str(path)!r} holds no questions; give one object with a question a line")
    names = Counter(entry["id"] for entry in entries if entry["id"] is not None)
    repeated = next((name for name, count in names.items() if count > 1), None)
    if repeated is not None:
        raise InvalidValueError(f"the id {repeated!r} occurs more than once in {str(path)!r}; ids must be unique")
    return entries


def _entry(line: str, offline: bool) -> tuple[str, dict[str, Any]]:
    """What is wrong with a line, and what it holds."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {error}", {}
    if not isinstance(entry, dict):
        return 'is not an object; give {"question": ...}', {}
    question, answer, alternatives = entry.get("question"), entry.get("answer"), entry.get("alternatives")
    if not isinstance(question, str | None) or (question is None and not offline):
        return f"has the question {str(question)[:40]!r}; give a text", {}
    if not isinstance(answer, str | None) or (answer is None and offline):
        return (
            "has no answer; --offline needs a text for each" if answer is None else "has an answer that is no text",
            {},
        )
    if answer is not None and not answer.strip():
        return "has an empty answer; give its text", {}
    if alternatives is not None and (
        not isinstance(alternatives, list) or not all(isinstance(text, str) for text in alternatives)
    ):
        return f"has the alternatives {str(alternatives)[:40]!r}; give a list of texts", {}
    if isinstance(entry.get("id"), list | dict):
        return "has an id that is neither a text nor a number", {}
    return "", {**entry, "id": None if entry.get("id") is None else str(entry["id"])}


def png_of(figure: Any) -> bytes:
    """Draw a figure of matplotlib as PNG.

    Args:
        figure: The figure.

    Returns:
        The bytes of the file.
    """
    import io

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, bbox_inches="tight")
    return buffer.getvalue()

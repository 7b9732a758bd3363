"""Reading and writing traces: JSON Lines, one trace a line, and the official code's JSON layout."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo_core.errors import InvalidTypeError, InvalidValueError, MissingFileError, OctavoError
from octavo_core.files import atomic_write

from octavo_coherent_factuality.graph import DeducibilityGraph, Repair
from octavo_coherent_factuality.trace import Claim, ReasoningTrace

__all__ = ["read_traces", "storable", "trace_from_json", "trace_to_json", "write_traces"]

_TRACE_FIELDS = {
    "answer", "claims", "dep_graph", "graph_annotations", "group", "id", "matrix", "original-output", "parents",
    "prompt", "question", "subset_annotations",
}  # fmt: skip
_CLAIM_FIELDS = {"text", "id", "factual", "scores"}
_OFFICIAL_SCORES = {
    "frequency-score": "frequency",
    "frequency_score": "frequency",
    "gpt-score": "self_confidence",
    "gpt_score": "self_confidence",
}


def read_traces(path: str | os.PathLike[str], *, repair: Repair = "error") -> list[ReasoningTrace]:
    """Read traces from a file.

    Args:
        path: A ``.jsonl`` file with one trace a line (see :func:`trace_from_json`), or a JSON file: one such object, a
            list of them, or the official layout ``{"data": [...]}`` whose claims hold ``manual_annotation`` and whose
            entries hold ``dep_graph``.
        repair: What to do with cyclic graphs.

    Returns:
        The traces.

    Raises:
        MissingFileError: If there is no such file.
        InvalidValueError: If a line cannot be read; the message names it.
    """
    file = Path(path)
    if file.is_dir():
        raise InvalidValueError(f"{str(file)!r} is a folder; give a JSONL file with one trace a line")
    if not file.is_file():
        raise MissingFileError(f"no file at {str(file)!r}; give a JSONL file with one trace a line")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{str(file)!r} is not UTF-8 text: {error}") from error
    if file.suffix.lower() == ".json":
        document = _loads(text, f"{str(file)!r}")
        entries = [document] if isinstance(document, dict) and "claims" in document else document
        entries = entries.get("data") if isinstance(entries, dict) else entries
        if not isinstance(entries, list):
            raise InvalidValueError(
                f"{str(file)!r} holds neither a list of traces, nor one trace, nor an object with a list 'data'"
            )
        numbered = [(f"entry {index} of {str(file)!r}", entry) for index, entry in enumerate(entries)]
    else:
        numbered = [
            (f"line {number} of {str(file)!r}", _loads(line, f"line {number} of {str(file)!r}"))
            for number, line in enumerate(text.split("\n"), start=1)  # splitlines would cut at U+2028 too
            if line.strip()
        ]
    traces = []
    for where, entry in numbered:
        try:
            traces.append(trace_from_json(entry, repair=repair))
        except OctavoError as error:
            raise InvalidValueError(f"{where}: {error}") from error
    if not traces:
        raise InvalidValueError(f"{str(file)!r} holds no traces")
    if any(trace.num_claims > 1 for trace in traces) and not any(trace.graph.num_edges for trace in traces):
        warnings.warn(
            f"no trace of {str(file)!r} says which claims rely on which: each claim stands alone; give 'parents' or "
            "'matrix' where they do",
            stacklevel=2,
        )
    return traces


def write_traces(path: str | os.PathLike[str], traces: Iterable[ReasoningTrace]) -> Path:
    """Write traces as JSON Lines, atomically.

    Args:
        path: The file; its folder must exist.
        traces: The traces.

    Returns:
        The path.

    Raises:
        InvalidTypeError: If they are no list of traces.
    """
    listed = list(traces) if isinstance(traces, Iterable) else None
    if listed is None or not all(isinstance(trace, ReasoningTrace) for trace in listed):
        raise InvalidTypeError(f"the traces are {str(traces)[:60]!r}; give a list of ReasoningTrace objects")
    lines = [json.dumps(trace_to_json(trace), ensure_ascii=False) for trace in listed]
    return atomic_write(path, storable("".join(f"{line}\n" for line in lines)))


def storable(text: str) -> str:
    """Replace halves of surrogate pairs, which are valid in JSON but which no file can hold, by question marks.

    Args:
        text: Any text.

    Returns:
        The text, as UTF-8 can hold it.
    """
    return text.encode("utf-8", "replace").decode("utf-8")


def trace_to_json(trace: ReasoningTrace) -> dict[str, Any]:
    """Turn a trace into JSON-ready fields that :func:`trace_from_json` reads back.

    Args:
        trace: The trace.

    Returns:
        The fields; those that are not set are left out.
    """
    fields: dict[str, Any] = {
        "id": _name(trace.id),
        "question": trace.question,
        "answer": trace.answer,
        "group": _name(trace.group),
        "claims": [
            {
                name: value
                for name, value in (
                    ("id", _name(claim.id)),
                    ("text", claim.text),
                    ("scores", dict(claim.scores) or None),
                    ("factual", claim.factual),
                )
                if value is not None
            }
            for claim in trace.claims
        ],
        "parents": trace.graph.to_parents(),
        "subset_annotations": [
            {"kept": sorted(subset), "coherent": verdict} for subset, verdict in trace.subset_annotations.items()
        ]
        or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def trace_from_json(entry: Any, *, repair: Repair = "error") -> ReasoningTrace:
    """Make a trace from a JSON object.

    Args:
        entry: ``{"claims": [...], "parents": [[...], ...]}`` with, if known, ``id``, ``question``, ``answer``,
            ``group`` and ``subset_annotations``. A claim is a text or an object with ``text``, ``factual`` (true,
            false, 0, 1, "Y", "N" or null) and its scores, either under ``scores`` or as plain fields such as
            ``frequency``. In place of ``parents`` there may be ``matrix`` or ``dep_graph``, in which row j, column i
            says that claim j relies on claim i. Without any, claims stand alone. Subsets are bit masks or lists of
            kept indices under ``coherent`` and ``not_coherent``, 0/1 vectors under ``Y`` and ``N``, or a list of
            ``{"kept": [...], "coherent": true}``, in which null leaves a subset open.
        repair: What to do with a cyclic graph.

    Returns:
        The trace.

    Raises:
        InvalidValueError: If a field is malformed.
        InvalidTypeError: If it is not an object.
    """
    if not isinstance(entry, Mapping):
        raise InvalidTypeError(f"a trace is a JSON object, got {type(entry).__name__}")
    listed = entry.get("claims")
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise InvalidValueError("the trace has no list 'claims'")
    claims = tuple(_claim(claim, index) for index, claim in enumerate(listed))
    matrix = next((entry[name] for name in ("matrix", "dep_graph") if entry.get(name) is not None), None)
    parents = entry.get("parents")
    if parents is not None and matrix is not None:
        raise InvalidValueError("the trace has both 'parents' and a matrix; give one of them")
    strange = [name for name, value in entry.items() if isinstance(value, list) and name not in _TRACE_FIELDS]
    if strange:
        warnings.warn(
            f"the field {str(strange[0])!r} is not read; premises are given as 'parents', 'matrix' or 'dep_graph'",
            stacklevel=2,
        )
    try:
        if parents is not None:
            graph = DeducibilityGraph.from_parents(parents, num_claims=len(claims), repair=repair)
        elif matrix is not None:
            graph = DeducibilityGraph.from_matrix(matrix, repair=repair)
        else:
            graph = DeducibilityGraph.empty(len(claims))
    except TypeError as error:
        raise InvalidValueError(f"the graph cannot be read: {error}") from error
    question = entry.get("question", entry.get("prompt"))
    return ReasoningTrace(
        claims=claims,
        graph=graph,
        question=_text(question, "question"),
        answer=_text(entry.get("answer", entry.get("original-output")), "answer"),
        id=_name(entry.get("id")),
        group=_name(entry.get("group")),
        subset_annotations=_subsets(entry.get("subset_annotations", entry.get("graph_annotations")), len(claims)),
    )


def _claim(claim: Any, index: int) -> Claim:
    if isinstance(claim, str):
        return Claim(_text(claim, f"claim {index}"))
    if not isinstance(claim, Mapping):
        raise InvalidTypeError(f"claim {index} is a {type(claim).__name__}; give a text or an object")
    listed = claim.get("scores") or {}
    if not isinstance(listed, Mapping):
        raise InvalidTypeError(f"the scores of claim {index} are a {type(listed).__name__}; give an object of numbers")
    scores = dict(listed)
    for name, value in claim.items():
        if name not in _CLAIM_FIELDS and isinstance(value, int | float) and not isinstance(value, bool):
            scores.setdefault(_OFFICIAL_SCORES.get(name, name), value)
        elif name in {"frequency", "self_confidence", "logprob", *_OFFICIAL_SCORES} and value is not None:
            raise InvalidTypeError(f"{name!r} of claim {index} is {value!r}; give a number, or leave it out")
    scores.pop("manual_annotation", None)
    text = next((claim[name] for name in ("text", "subclaim", "claim") if claim.get(name) is not None), None)
    verdict = claim.get("factual", claim.get("manual_annotation"))
    return Claim(
        _text(text, f"the text of claim {index}"),
        scores,
        _truth(verdict, f"factual of claim {index}"),
        _name(claim.get("id")),
    )


def _truth(value: Any, where: str) -> bool | None:
    if value is None:
        return None
    if isinstance(value, str):
        known = {"y": True, "yes": True, "true": True, "1": True, "n": False, "no": False, "false": False, "0": False}
        value = known.get(value.strip().lower(), value)
    if not isinstance(value, bool | int | float) or value not in (0, 1):
        raise InvalidValueError(f"{where} is {value!r}; give true, false or null")
    return bool(value)


def _name(value: Any) -> str | None:
    """An id or a group as text, which a number from a table is read back as anyway."""
    return None if value is None else str(value)


def _text(value: Any, where: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidTypeError(f"{where} is a {type(value).__name__}; give a text")
    return None if value is None else storable(value)


def _subsets(value: Any, num_claims: int) -> dict[frozenset[int], bool]:
    if not value:
        return {}
    judged: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        accepted = ("coherent", "not_coherent", "Y", "y", "N", "n")
        for name in value:
            if name not in accepted:
                raise InvalidValueError(
                    f"the subset annotations have the unknown key {name!r}; give 'coherent' and 'not_coherent', or 'Y' "
                    "and 'N'"
                )
        for names, verdict in ((("coherent", "Y", "y"), True), (("not_coherent", "N", "n"), False)):
            for name in names:
                listed = value.get(name) or ()
                if isinstance(listed, str) or not isinstance(listed, Sequence):
                    raise InvalidValueError(f"the subset annotations {name!r} are {listed!r}; give a list of subsets")
                judged += [(subset, verdict) for subset in listed]
    elif isinstance(value, Sequence) and all(isinstance(item, Mapping) and "kept" in item for item in value):
        for item in value:
            if "coherent" not in item:
                raise InvalidValueError(f"the judgement of the subset {item['kept']!r} has no verdict 'coherent'")
        # Null: shown, and left open.
        verdicts = [(item["kept"], _truth(item["coherent"], "coherent")) for item in value]
        judged = [(subset, verdict) for subset, verdict in verdicts if verdict is not None]
    else:
        raise InvalidValueError(
            "subset annotations must be {'coherent': [...], 'not_coherent': [...]} or a list of "
            "{'kept': [...], 'coherent': true}"
        )
    official = isinstance(value, Mapping) and not {"coherent", "not_coherent"} & set(value)
    found: dict[frozenset[int], bool] = {}
    for subset, verdict in judged:
        key = _subset(subset, num_claims, vectors=official)
        if found.setdefault(key, bool(verdict)) != bool(verdict):
            # As the official code does, which looks for a subset among the coherent ones first.
            warnings.warn(f"subset {sorted(key)} is judged both ways; it counts as coherent", stacklevel=2)
            found[key] = True
    return found


def _subset(subset: Any, num_claims: int, *, vectors: bool) -> frozenset[int]:
    if isinstance(subset, int) and not isinstance(subset, bool):
        if not 0 <= subset < 2**num_claims:
            raise InvalidValueError(f"bit mask {subset} does not fit {num_claims} claims")
        return frozenset(index for index in range(num_claims) if subset >> index & 1)
    if isinstance(subset, Sequence) and not isinstance(subset, str) and all(isinstance(i, int) for i in subset):
        if vectors:
            if len(subset) != num_claims or not set(subset) <= {0, 1}:
                raise InvalidValueError(f"0/1 vector {list(subset)} does not fit {num_claims} claims")
            return frozenset(index for index, bit in enumerate(subset) if bit)
        return frozenset(subset)
    raise InvalidValueError(f"subset {subset!r} is neither a bit mask nor a list of indices")


def _loads(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"{where} is not JSON: {error}") from error

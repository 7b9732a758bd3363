"""Claims and reasoning traces: one answer of a model, cut into claims, with the graph between them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_coherent_factuality._checks import entries_of, floats_of, plain_scalar
from octavo_coherent_factuality.graph import DeducibilityGraph

__all__ = ["Claim", "ReasoningTrace", "claims_from_arrays"]


@dataclass(frozen=True)
class Claim:
    """One claim of an answer.

    Args:
        text: What it says; ``None`` where only the numbers are known.
        scores: Named scores, e.g. ``{"frequency": 4, "self_confidence": 0.9}``; finite numbers.
        factual: Whether the claim is true by itself; ``None`` where nobody has judged it.
        id: Name of the claim, unique within its answer; a whole number is stored as text.

    Raises:
        InvalidValueError: If a score is not finite.
        InvalidTypeError: If a score is not a number, ``factual`` is not a truth value, or the text or the id is none.
    """

    text: str | None = None
    scores: Mapping[str, Any] = field(default_factory=dict)
    factual: bool | None = None
    id: str | None = None

    def __post_init__(self) -> None:
        _check_text(self.text, "the text of a claim")
        object.__setattr__(self, "id", _identifier(self.id, "the id of a claim"))
        if not isinstance(self.scores, Mapping):
            raise InvalidTypeError(
                f"the scores of claim {self.text!r} are {self.scores!r}; give a mapping such as {{'frequency': 4}}"
            )
        scores = {}
        for name, score in self.scores.items():
            if isinstance(score, bool | str | bytes) or not hasattr(score, "__float__"):
                raise InvalidTypeError(f"score {name!r} is {score!r}; give a number")
            try:
                number = float(score)
            except OverflowError:
                number = math.inf
            except (TypeError, ValueError) as error:
                raise InvalidTypeError(f"score {name!r} is {score!r}; give a number") from error
            if not math.isfinite(number):
                raise InvalidValueError(f"score {name!r} of claim {self.text!r} is {number}; scores must be finite")
            scores[name] = number
        object.__setattr__(self, "scores", MappingProxyType(scores))
        if self.factual is not None:
            if isinstance(self.factual, str | float) or self.factual not in (0, 1):
                raise InvalidTypeError(f"factual={self.factual!r} is not a truth value; give True, False or None")
            object.__setattr__(self, "factual", bool(self.factual))

    def __hash__(self) -> int:
        # A read-only view of a dict has no hash of its own.
        return hash((self.text, frozenset(self.scores.items()), self.factual, self.id))

    def __reduce__(self) -> tuple[object, ...]:
        # A read-only view of a dict is neither pickled nor copied by itself.
        return (Claim, (self.text, dict(self.scores), self.factual, self.id))


@dataclass(frozen=True, eq=False)
class ReasoningTrace:
    """One question with one answer, cut into claims.

    Args:
        claims: The claims, in the order of the answer; at least one.
        graph: Which claims rely on which; no edges if left out.
        question: The question.
        answer: The whole answer.
        id: Name of the trace, unique within a data set; a whole number is stored as text. Without one the question
            stands for it.
        group: Group for group-wise calibration, e.g. a subject or a difficulty.
        subset_annotations: Human judgements of subsets of claims, by frozen set of kept indices.

    Raises:
        InvalidValueError: If there is no claim, the graph has another size, claim ids repeat, or an annotated subset
            has an index out of range.
        InvalidTypeError: If something else stands for the claims, the graph, a text, the id or a judgement.
    """

    claims: tuple[Claim, ...]
    graph: DeducibilityGraph = None  # ty: ignore[invalid-assignment]
    question: str | None = None
    answer: str | None = None
    id: str | None = None
    group: str | None = None
    subset_annotations: Mapping[frozenset[int], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_text(self.question, "the question")
        _check_text(self.answer, "the answer")
        object.__setattr__(self, "id", _identifier(self.id, "the id of a trace"))
        object.__setattr__(self, "group", plain_scalar(self.group))
        name = self.name
        if isinstance(self.claims, str | bytes) or not isinstance(self.claims, Iterable):
            raise InvalidTypeError(f"the claims of {name} are {self.claims!r}; give Claim objects")
        object.__setattr__(self, "claims", tuple(self.claims))
        for claim in self.claims:
            if not isinstance(claim, Claim):
                raise InvalidTypeError(
                    f"{name} has {claim!r} among its claims; give Claim objects, e.g. Claim('a text')"
                )
        if not self.claims:
            raise InvalidValueError(f"{name} has no claims; leave out answers that make none")
        if self.graph is None:
            object.__setattr__(self, "graph", DeducibilityGraph.empty(len(self.claims)))
        if not isinstance(self.graph, DeducibilityGraph):
            raise InvalidTypeError(
                f"the graph of {name} is a {type(self.graph).__name__}; give a DeducibilityGraph, e.g. "
                "DeducibilityGraph.from_parents([[], [0]])"
            )
        if self.graph.num_claims != len(self.claims):
            raise InvalidValueError(
                f"{name} has {len(self.claims)} claims but its graph has {self.graph.num_claims}; they must agree"
            )
        ids = [claim.id for claim in self.claims if claim.id is not None]
        if len(set(ids)) < len(ids):
            repeated = next(entry for entry in ids if ids.count(entry) > 1)
            raise InvalidValueError(f"{name} has two claims with the id {repeated!r}; ids are unique within a trace")
        if not isinstance(self.subset_annotations, Mapping):
            raise InvalidTypeError(
                f"the judgements of {name} are {self.subset_annotations!r}; give a mapping such as "
                "{frozenset({0, 1}): True}"
            )
        judged = {}
        for subset, verdict in self.subset_annotations.items():
            if not isinstance(subset, frozenset) or not all(isinstance(index, int | np.integer) for index in subset):
                raise InvalidTypeError(
                    f"{name} has a judgement of {subset!r}; give the kept indices as a frozenset, e.g. frozenset({{0}})"
                )
            if any(not 0 <= index < len(self.claims) for index in subset):
                raise InvalidValueError(
                    f"{name} has a judgement of the subset {sorted(subset)}; indices go from 0 to "
                    f"{len(self.claims) - 1}"
                )
            if (coherent := _verdict(verdict)) is None:
                raise InvalidTypeError(
                    f"the judgement of the subset {sorted(subset)} of {name} is None; give True or False, or leave the "
                    "subset out"
                )
            judged[frozenset(map(int, subset))] = coherent
        object.__setattr__(self, "subset_annotations", judged)

    @property
    def name(self) -> str:
        """How error messages call the trace."""
        if self.id is not None:
            return f"trace {self.id!r}"
        return f"the trace of {self.question[:60]!r}" if self.question else "the trace"

    @property
    def num_claims(self) -> int:
        """Number of claims."""
        return len(self.claims)

    def score(self, name: str) -> Float64[np.ndarray, " claims"]:
        """Return one score of every claim.

        Args:
            name: Name of the score.

        Raises:
            InvalidValueError: If a claim lacks it.
        """
        for index, claim in enumerate(self.claims):
            if name not in claim.scores:
                known = ", ".join(sorted(claim.scores)) or "none"
                raise InvalidValueError(
                    f"claim {index} of {self.name} has no score {name!r} (it has: {known}); add it, or choose a "
                    "scorer for a score that is there"
                )
        return np.array([claim.scores[name] for claim in self.claims], np.float64)

    @cached_property
    def factual(self) -> Bool[np.ndarray, " claims"]:
        """Whether each claim is true by itself.

        Raises:
            InvalidValueError: If a claim has no annotation.
        """
        for index, claim in enumerate(self.claims):
            if claim.factual is None:
                raise InvalidValueError(
                    f"claim {index} of {self.name} has no annotation; set factual for all claims, for example with: "
                    "octavo coherent-factuality annotate"
                )
        return np.array([claim.factual for claim in self.claims], bool)

    @property
    def is_annotated(self) -> bool:
        """Whether every claim has an annotation."""
        return all(claim.factual is not None for claim in self.claims)

    @cached_property
    def key(self) -> str:
        """What identifies the question: the id, else the question, else a digest that ignores the claims' order."""
        if self.id is not None:
            return f"id:{self.id}"
        if self.question is not None:
            return f"question:{self.question}"
        return f"content:{self.content_digest}"

    @cached_property
    def content_digest(self) -> str:
        """SHA-256 of claims, scores and graph; the same whatever the order of the claims."""
        digests = [_digest([claim.text, claim.id, sorted(claim.scores.items())]) for claim in self.claims]
        claims, premises = self.graph.edge_claims.tolist(), self.graph.indices.tolist()
        edges = [[digests[claim], digests[premise]] for claim, premise in zip(claims, premises, strict=True)]
        return _digest([sorted(digests), sorted(edges), self.question])

    def with_graph(self, graph: DeducibilityGraph) -> ReasoningTrace:
        """Return the trace with another graph.

        Args:
            graph: The graph.
        """
        return replace(self, graph=graph)

    def with_factual(self, factual: Iterable[Any]) -> ReasoningTrace:
        """Return the trace with other annotations.

        Args:
            factual: One truth value, or ``None``, per claim.

        Raises:
            InvalidValueError: If there are more or fewer than claims.
            InvalidTypeError: If one is something else, such as a text.
        """
        values = [_verdict(value) for value in entries_of(factual, "factual")]
        if len(values) != self.num_claims:
            raise InvalidValueError(
                f"{len(values)} annotations for the {self.num_claims} claims of {self.name}; give one each"
            )
        claims = tuple(replace(claim, factual=value) for claim, value in zip(self.claims, values, strict=True))
        return replace(self, claims=claims)

    def with_score(self, name: str, values: Any) -> ReasoningTrace:
        """Return the trace with a score added or replaced.

        Args:
            name: Name of the score.
            values: One number per claim; a list, an array or a tensor.

        Raises:
            InvalidValueError: If there are more or fewer than claims.
            InvalidTypeError: If they are no numbers.
        """
        column = floats_of(values, f"the score {name!r}")
        if column.shape != (self.num_claims,):
            given = f"{len(column)} values" if column.ndim == 1 else f"values of shape {column.shape}"
            raise InvalidValueError(f"{given} for the {self.num_claims} claims of {self.name}; give one each")
        claims = tuple(
            replace(claim, scores={**claim.scores, name: value})
            for claim, value in zip(self.claims, column.tolist(), strict=True)
        )
        return replace(self, claims=claims)

    def permuted(self, order: Sequence[int]) -> ReasoningTrace:
        """Return the same trace with its claims in another order.

        Args:
            order: The old index of each new claim.

        Raises:
            InvalidValueError: If an index is missing, repeated or out of range.
        """
        if sorted(order) != list(range(self.num_claims)):
            raise InvalidValueError(
                f"order {list(order)} is no order of the {self.num_claims} claims of {self.name}; give each index once"
            )
        new = {old: position for position, old in enumerate(order)}
        return replace(
            self,
            claims=tuple(self.claims[old] for old in order),
            graph=self.graph.permuted(order),
            subset_annotations={
                frozenset(new[index] for index in subset): verdict
                for subset, verdict in self.subset_annotations.items()
            },
        )


def claims_from_arrays(
    factual: Iterable[Any] | None = None, texts: Iterable[str | None] | None = None, **scores: Any
) -> tuple[Claim, ...]:
    """Make claims from columns: lists, arrays, tensors or pandas columns, all read by position.

    Args:
        factual: Annotations, if there are any.
        texts: Texts, if there are any.
        **scores: Named columns of scores, e.g. ``frequency=[5, 3, -1]``.

    Returns:
        The claims.

    Raises:
        InvalidValueError: If the columns differ in length or there is none.
        InvalidTypeError: If an annotation is something else than a truth value, such as a text, or a score no number.
    """
    columns = {name: floats_of(values, f"the column {name!r}") for name, values in scores.items()}
    for name, column in columns.items():
        if column.ndim != 1:
            raise InvalidValueError(f"the column {name!r} has shape {column.shape}; give one number per claim")
    verdicts = None if factual is None else [_verdict(value) for value in entries_of(factual, "factual")]
    names = None if texts is None else entries_of(texts, "texts")
    named = {**columns, "factual": verdicts, "texts": names}
    lengths = {name: len(column) for name, column in named.items() if column is not None}
    if len(set(lengths.values())) != 1:
        raise InvalidValueError(f"columns have lengths {lengths}; give at least one, all of the same length")
    size = next(iter(lengths.values()))
    numbers = {name: column.tolist() for name, column in columns.items()}
    return tuple(
        Claim(
            None if names is None else names[row],
            {name: column[row] for name, column in numbers.items()},
            None if verdicts is None else verdicts[row],
        )
        for row in range(size)
    )


def _verdict(value: Any) -> bool | None:
    """Read a truth value; zeros and ones of an array are some too, a text is none."""
    if value is None:
        return None
    try:
        known = not isinstance(value, str | bytes) and value in (0, 1)
    except (TypeError, ValueError):  # pandas.NA, or an array
        known = False
    if not known:
        raise InvalidTypeError(f"annotation {value!r} is not a truth value; give True, False or None")
    return bool(value)


def _check_text(value: object, what: str) -> None:
    if value is not None and not isinstance(value, str):
        raise InvalidTypeError(f"{what} is {value!r}; give a text or None")


def _identifier(value: Any, what: str) -> str | None:
    """Read a name; a column of numbers gives names, too, and files hold them as texts."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(value)
    _check_text(value, what)
    return value


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()

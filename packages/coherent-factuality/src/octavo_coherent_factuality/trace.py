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

from octavo_coherent_factuality.graph import DeducibilityGraph

__all__ = ["Claim", "ReasoningTrace", "claims_from_arrays"]


@dataclass(frozen=True)
class Claim:
    """One claim of an answer.

    Args:
        text: What it says; ``None`` where only the numbers are known.
        scores: Named scores, e.g. ``{"frequency": 4, "self_confidence": 0.9}``; finite numbers.
        factual: Whether the claim is true by itself; ``None`` where nobody has judged it.
        id: Name of the claim, unique within its answer.

    Raises:
        InvalidValueError: If a score is not finite.
        InvalidTypeError: If a score is not a number, or ``factual`` is not a truth value.
    """

    text: str | None = None
    scores: Mapping[str, Any] = field(default_factory=dict)
    factual: bool | None = None
    id: str | None = None

    def __post_init__(self) -> None:
        scores = {}
        for name, score in self.scores.items():
            if isinstance(score, bool | str | bytes) or not hasattr(score, "__float__"):
                raise InvalidTypeError(f"score {name!r} is {score!r}; give a number")
            try:
                number = float(score)
            except OverflowError:
                number = math.inf
            if not math.isfinite(number):
                raise InvalidValueError(f"score {name!r} of claim {self.text!r} is {number}; scores must be finite")
            scores[name] = number
        object.__setattr__(self, "scores", MappingProxyType(scores))
        if self.factual is not None:
            if isinstance(self.factual, str | float) or self.factual not in (0, 1):
                raise InvalidTypeError(f"factual={self.factual!r} is not a truth value; give True, False or None")
            object.__setattr__(self, "factual", bool(self.factual))

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
        id: Name of the trace, unique within a data set. Without one the question stands for it.
        group: Group for group-wise calibration, e.g. a subject or a difficulty.
        subset_annotations: Human judgements of subsets of claims, by frozen set of kept indices.

    Raises:
        InvalidValueError: If there is no claim, the graph has another size, claim ids repeat, or an annotated subset
            has an index out of range.
        InvalidTypeError: If something else stands for the claims or the graph.
    """

    claims: tuple[Claim, ...]
    graph: DeducibilityGraph = None  # ty: ignore[invalid-assignment]
    question: str | None = None
    answer: str | None = None
    id: str | None = None
    group: str | None = None
    subset_annotations: Mapping[frozenset[int], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
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
        for subset in self.subset_annotations:
            if any(not 0 <= index < len(self.claims) for index in subset):
                raise InvalidValueError(
                    f"{name} has a judgement of the subset {sorted(subset)}; indices go from 0 to "
                    f"{len(self.claims) - 1}"
                )

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
        values = [_verdict(value) for value in factual]
        if len(values) != self.num_claims:
            raise InvalidValueError(
                f"{len(values)} annotations for the {self.num_claims} claims of {self.name}; give one each"
            )
        claims = tuple(replace(claim, factual=value) for claim, value in zip(self.claims, values, strict=True))
        return replace(self, claims=claims)

    def with_score(self, name: str, values: Sequence[float] | np.ndarray) -> ReasoningTrace:
        """Return the trace with a score added or replaced.

        Args:
            name: Name of the score.
            values: One number per claim.

        Raises:
            InvalidValueError: If there are more or fewer than claims.
        """
        if len(values) != self.num_claims:
            raise InvalidValueError(
                f"{len(values)} values for the {self.num_claims} claims of {self.name}; give one each"
            )
        claims = tuple(
            replace(claim, scores={**claim.scores, name: value})
            for claim, value in zip(self.claims, np.asarray(values, float).tolist(), strict=True)
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
    factual: Sequence[Any] | np.ndarray | None = None,
    texts: Sequence[str] | None = None,
    **scores: Sequence[float | int] | np.ndarray,
) -> tuple[Claim, ...]:
    """Make claims from columns.

    Args:
        factual: Annotations, if there are any.
        texts: Texts, if there are any.
        **scores: Named columns of scores, e.g. ``frequency=[5, 3, -1]``.

    Returns:
        The claims.

    Raises:
        InvalidValueError: If the columns differ in length or there is none.
        InvalidTypeError: If an annotation is something else than a truth value, such as a text.
    """
    columns = {name: np.asarray(values, float).tolist() for name, values in scores.items()}
    named = {**columns, "factual": factual, "texts": texts}
    lengths = {name: len(column) for name, column in named.items() if column is not None}
    if len(set(lengths.values())) != 1:
        raise InvalidValueError(f"columns have lengths {lengths}; give at least one, all of the same length")
    size = next(iter(lengths.values()))
    return tuple(
        Claim(
            texts[row] if texts is not None else None,
            {name: column[row] for name, column in columns.items()},
            None if factual is None else _verdict(factual[row]),
        )
        for row in range(size)
    )


def _verdict(value: Any) -> bool | None:
    """Read a truth value; zeros and ones of an array are some too, a text is none."""
    if value is None:
        return None
    if isinstance(value, str | bytes) or value not in (0, 1):
        raise InvalidTypeError(f"annotation {value!r} is not a truth value; give True, False or None")
    return bool(value)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()

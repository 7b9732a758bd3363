"""Annotators: which outputs count as right. The guarantee is about exactly this event."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int8
from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_coherent_factuality._checks import mask_of, plain_scalar
from octavo_coherent_factuality.family import NestedFamily
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = [
    "Annotator",
    "CallableAnnotator",
    "Gold",
    "Independent",
    "Partial",
    "Silver",
    "check_annotator",
    "first_wrong",
    "member_verdicts",
    "nonconformity",
]

MISSING = -1


@runtime_checkable
class Annotator(Protocol):
    """What judges outputs: a name for the event, and a verdict on a set of kept claims."""

    @property
    def event(self) -> str:
        """The event that the annotator decides, in words."""
        ...

    def __call__(self, trace: ReasoningTrace, kept: np.ndarray) -> bool:
        """Tell whether the output that keeps the masked claims is right."""
        ...


@dataclass(frozen=True)
class Independent:
    """Every kept claim is true by itself, whatever else was kept."""

    @property
    def event(self) -> str:
        """The event in words."""
        return "every kept claim is factual by itself (independent factuality)"

    def __call__(self, trace: ReasoningTrace, kept: np.ndarray) -> bool:
        """Judge one output."""
        return bool(trace.factual[mask_of(kept, trace.num_claims)].all())

    def members(self, trace: ReasoningTrace, family: NestedFamily) -> Bool[np.ndarray, " members"]:
        """Judge all outputs of a family in one pass."""
        return _bad_counts(trace, family) == 0


@dataclass(frozen=True)
class Silver:
    """The output is ancestor-closed in the deducibility graph and every kept claim is factual."""

    @property
    def event(self) -> str:
        """The event in words."""
        return (
            "the output is ancestor-closed in the deducibility graph and every kept claim is factual "
            "(coherent factuality, silver annotation)"
        )

    def __call__(self, trace: ReasoningTrace, kept: np.ndarray) -> bool:
        """Judge one output."""
        kept = mask_of(kept, trace.num_claims)
        return bool(trace.factual[kept].all()) and trace.graph.is_ancestor_closed(kept)

    def members(self, trace: ReasoningTrace, family: NestedFamily) -> Bool[np.ndarray, " members"]:
        """Judge all outputs of a family in one pass."""
        return (_bad_counts(trace, family) == 0) & _closed_members(trace, family)


@dataclass(frozen=True)
class Partial:
    """Partial factuality: at most some kept claims are false, or at least some share of them is true.

    Args:
        max_bad: Largest number of false kept claims.
        min_fraction: Smallest share of true claims among the kept ones, in (0, 1].
        closed: Whether the output must be ancestor-closed too.

    Raises:
        InvalidValueError: Unless exactly one of the two limits is given, and in range.
        InvalidTypeError: If a limit is not a number.
    """

    max_bad: int | None = None
    min_fraction: float | int | None = None
    closed: bool = True

    def __post_init__(self) -> None:
        for name, value in (("max_bad", self.max_bad), ("min_fraction", self.min_fraction)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float | np.number)):
                raise InvalidTypeError(f"{name}={value!r} is not a number")
            object.__setattr__(self, name, plain_scalar(value))
        if (self.max_bad is None) == (self.min_fraction is None):
            raise InvalidValueError("give either max_bad or min_fraction")
        if self.max_bad is not None and self.max_bad < 0:
            raise InvalidValueError(f"max_bad={self.max_bad} is negative; give 0 or more")
        if self.min_fraction is not None and not 0 < self.min_fraction <= 1:
            raise InvalidValueError(f"min_fraction={self.min_fraction} is out of range; give a share in (0, 1]")

    @property
    def event(self) -> str:
        """The event in words."""
        limit = (
            f"at most {self.max_bad} kept claims are false"
            if self.max_bad is not None
            else f"at least {self.min_fraction:.4g} of the kept claims are factual"
        )
        closed = "the output is ancestor-closed in the deducibility graph and " if self.closed else ""
        return f"{closed}{limit} (partial factuality)"

    def __call__(self, trace: ReasoningTrace, kept: np.ndarray) -> bool:
        """Judge one output."""
        kept = mask_of(kept, trace.num_claims)
        bad = int((~trace.factual[kept]).sum())
        return self._enough(bad, int(kept.sum())) and (not self.closed or trace.graph.is_ancestor_closed(kept))

    def members(self, trace: ReasoningTrace, family: NestedFamily) -> Bool[np.ndarray, " members"]:
        """Judge all outputs of a family in one pass."""
        right = self._enough(_bad_counts(trace, family), family.sizes())
        return right & _closed_members(trace, family) if self.closed else right

    def _enough(self, bad: Any, size: Any) -> Any:
        if self.max_bad is not None:
            return bad <= self.max_bad
        # Counted from the false side: 1 - fraction is rounded, so 9 true of 10 must not fail 0.9 by a bit.
        return size - bad >= (self.min_fraction or 0.0) * size - 1e-9


@dataclass(frozen=True)
class Gold:
    """A judgement of each subset of claims, as stored in the traces.

    Args:
        on_missing: What to do for a subset nobody has judged: raise, fall back to the silver rule, or ask a function
            ``(trace, kept) -> bool``. The empty output always counts as right.

    Raises:
        InvalidValueError: If ``on_missing`` is none of these.
    """

    on_missing: Literal["raise", "silver"] | Callable[[ReasoningTrace, np.ndarray], bool] = "raise"

    def __post_init__(self) -> None:
        if self.on_missing not in ("raise", "silver") and not callable(self.on_missing):
            raise InvalidValueError(f"on_missing={self.on_missing!r} is unknown; give 'raise', 'silver' or a function")

    @property
    def event(self) -> str:
        """The event in words."""
        return "the kept claims were judged coherent as a whole (coherent factuality, gold annotation)"

    def __call__(self, trace: ReasoningTrace, kept: np.ndarray) -> bool:
        """Judge one output.

        Raises:
            InvalidValueError: If the subset has no judgement and ``on_missing`` is ``"raise"``.
        """
        kept = mask_of(kept, trace.num_claims)
        subset = frozenset(np.flatnonzero(kept).tolist())
        if not subset:
            return True
        if subset in trace.subset_annotations:
            if not trace.graph.is_ancestor_closed(kept):
                warnings.warn(
                    f"{trace.name} has a judgement of the subset {sorted(subset)}, which is not ancestor-closed in its "
                    "graph: the graph and the judgement disagree about premises, or the family ignores the graph",
                    stacklevel=2,
                )
            return trace.subset_annotations[subset]
        if not isinstance(self.on_missing, str):
            return bool(self.on_missing(trace, kept))
        if self.on_missing == "silver":
            return Silver()(trace, kept)
        raise InvalidValueError(
            f"{trace.name} has no judgement of the subset {sorted(subset)}; annotate it, or give "
            "Gold(on_missing='silver') or a function that asks"
        )

    def is_known(self, trace: ReasoningTrace, kept: np.ndarray) -> bool:
        """Tell whether a subset can be judged without asking anybody."""
        return (
            self.on_missing == "silver"
            or not kept.any()
            or frozenset(np.flatnonzero(kept).tolist()) in trace.subset_annotations
        )


@dataclass(frozen=True)
class CallableAnnotator:
    """Any function as an annotator.

    Args:
        function: ``(trace, kept) -> bool``.
        event: The event it decides, in words.
    """

    function: Callable[[ReasoningTrace, np.ndarray], bool]
    event: str = "the output is right according to the given function"

    def __call__(self, trace: ReasoningTrace, kept: np.ndarray) -> bool:
        """Judge one output."""
        return bool(self.function(trace, kept))


def check_annotator(annotator: object, name: str = "annotator") -> None:
    """Check that something can judge outputs.

    Args:
        annotator: The annotator.
        name: What error messages call it.

    Raises:
        InvalidTypeError: If it is none.
    """
    if isinstance(annotator, type) or not isinstance(annotator, Annotator):
        raise InvalidTypeError(
            f"{name}={annotator!r} is no annotator; give one such as Silver() or Gold(), or wrap a function "
            "(trace, kept) -> bool in CallableAnnotator"
        )


def member_verdicts(
    annotator: Annotator, trace: ReasoningTrace, family: NestedFamily
) -> Int8[np.ndarray, " members_and_one"]:
    """Judge every output of a family.

    Args:
        annotator: The judge.
        trace: The trace.
        family: Its outputs.

    Returns:
        1 for right, 0 for wrong, -1 where a stored judgement is missing; the empty output is right.
    """
    if (members := getattr(annotator, "members", None)) is not None:
        verdicts = members(trace, family).astype(np.int8)
    else:
        verdicts = np.empty(family.num_members, np.int8)
        sizes = family.sizes().tolist()
        # Judging is one dictionary look-up, question or model call per distinct output.
        for index in range(1, family.num_members):
            if sizes[index] == sizes[index - 1]:
                verdicts[index] = verdicts[index - 1] if index > 1 else 1
                continue
            kept = family.member(index)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                known = not isinstance(annotator, Gold) or callable(annotator.on_missing)
                verdicts[index] = annotator(trace, kept) if known or annotator.is_known(trace, kept) else MISSING
    verdicts[0] = 1
    return verdicts


def first_wrong(annotator: Annotator, trace: ReasoningTrace, family: NestedFamily) -> int | None:
    """Find the first output of a family that is wrong; a judge who is asked is asked no further.

    Args:
        annotator: The judge.
        trace: The trace.
        family: Its outputs.

    Returns:
        The number of the member, or ``None`` if none is wrong.
    """
    if (members := getattr(annotator, "members", None)) is not None:
        wrong = np.flatnonzero(members(trace, family)[1:] == 0)
        return int(wrong[0]) + 1 if wrong.size else None
    sizes = family.sizes().tolist()
    for index in range(1, family.num_members):
        if sizes[index] > sizes[index - 1] and not annotator(trace, family.member(index)):
            return index
    return None


def nonconformity(annotator: Annotator, trace: ReasoningTrace, family: NestedFamily) -> float:
    """Non-conformity score r of a trace: the threshold of the first wrong output, infinite if none is wrong.

    Args:
        annotator: The judge.
        trace: The trace.
        family: Its outputs.

    Returns:
        The score. A higher one is better: more can be kept before something is wrong.
    """
    index = first_wrong(annotator, trace, family)
    return np.inf if index is None else float(family.thresholds[index - 1])


def _bad_counts(trace: ReasoningTrace, family: NestedFamily) -> np.ndarray:
    """How many false claims each member keeps."""
    return np.cumsum(np.bincount(family.rank[~trace.factual], minlength=family.num_members))


def _closed_members(trace: ReasoningTrace, family: NestedFamily) -> Bool[np.ndarray, " members"]:
    """Which members are ancestor-closed: an edge is broken from its claim's entry until its premise's."""
    enters, needed = family.rank[trace.graph.edge_claims], family.rank[trace.graph.indices]
    broken = enters < needed
    opened = np.bincount(enters[broken], minlength=family.num_members)
    closed = np.bincount(needed[broken], minlength=family.num_members)
    return np.cumsum(opened - closed) == 0

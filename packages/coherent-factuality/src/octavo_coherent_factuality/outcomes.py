"""Every outcome of many traces in arrays, so that levels, splits and left-out traces cost look-ups only."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float64, Int8, Int64
from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_coherent_factuality.annotators import Annotator, check_annotator, member_verdicts, nonconformity
from octavo_coherent_factuality.method import FilteringMethod, check_method
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["OutcomeTable", "check_traces", "has_identity", "jitter", "tie_numbers"]


@dataclass(frozen=True, eq=False)
class OutcomeTable:
    """Scores and outcomes of traces under one method; rows are padded to the longest family.

    Args:
        scores: Non-conformity score of each trace under the calibration annotator.
        thresholds: Thresholds of the members 1, 2, ... of each output family; NaN beyond its end.
        kept: Share of the claims that members 0, 1, 2, ... keep.
        verdicts: 1, 0 or -1 (unknown) for members 0, 1, 2, ... under the evaluating annotator.
        names: What error messages call the traces.
    """

    scores: Float64[np.ndarray, " traces"]
    thresholds: Float64[np.ndarray, "traces members"]
    kept: Float64[np.ndarray, "traces members_and_one"]
    verdicts: Int8[np.ndarray, "traces members_and_one"]
    names: tuple[str, ...]

    @classmethod
    def build(
        cls, traces: Sequence[ReasoningTrace], method: FilteringMethod, evaluator: Annotator | None = None
    ) -> OutcomeTable:
        """Work out all outcomes, once per trace.

        Args:
            traces: Annotated traces.
            method: The method.
            evaluator: What counts as right in evaluation; the calibration annotator if left out.

        Returns:
            The table.

        Raises:
            InvalidValueError: If there are no traces, or a trace cannot be used.
            InvalidTypeError: If something else stands for the traces, the method or the evaluator.
        """
        check_traces(traces)
        check_method(method)
        if evaluator is not None:
            check_annotator(evaluator, "evaluator")
        annotator = method.calibration_annotator
        judge = annotator if evaluator is None else evaluator
        scores = np.empty(len(traces))
        thresholds, kept, verdicts = [], [], []
        for row, trace in enumerate(traces):
            calibration, output = method.families(trace)
            scores[row] = nonconformity(annotator, trace, calibration)
            thresholds.append(output.thresholds)
            kept.append(output.sizes() / trace.num_claims)
            verdicts.append(member_verdicts(judge, trace, output))
        return cls(
            scores,
            _padded(thresholds, np.nan, np.float64),
            _padded(kept, np.nan, np.float64),
            _padded(verdicts, -1, np.int8),
            tuple(trace.name for trace in traces),
        )

    def __len__(self) -> int:
        return len(self.scores)

    def chosen(
        self, thresholds: np.ndarray | float, inclusive: np.ndarray | bool, rows: np.ndarray | slice = slice(None)
    ) -> Int64[np.ndarray, " chosen"]:
        """Find the member that each trace outputs.

        Args:
            thresholds: One threshold for all, or one for each row.
            inclusive: Whether a member at exactly the threshold is allowed, for all or for each row.
            rows: The traces to look at; all by default.

        Returns:
            Numbers of members.
        """
        table = self.thresholds[rows]
        limits = np.broadcast_to(np.asarray(thresholds, np.float64), len(table))[:, None]
        ties = (table == limits).sum(1) * np.broadcast_to(np.asarray(inclusive, bool), len(table))
        return (table < limits).sum(1) + ties

    def right(self, members: np.ndarray, rows: np.ndarray | slice = slice(None)) -> Bool[np.ndarray, " chosen"]:
        """Tell which chosen members are right.

        Args:
            members: Numbers of members.
            rows: Their traces.

        Returns:
            Truth values.

        Raises:
            InvalidValueError: If a chosen output was never judged.
        """
        verdicts = np.take_along_axis(self.verdicts[rows], members[:, None], 1)[:, 0]
        if (verdicts < 0).any():
            name = self.names[int(np.arange(len(self))[rows][np.flatnonzero(verdicts < 0)[0]])]
            raise InvalidValueError(
                f"the output for {name} has no judgement; annotate that subset, or evaluate with "
                "Gold(on_missing='silver') or Silver()"
            )
        return verdicts == 1

    def retained(self, members: np.ndarray, rows: np.ndarray | slice = slice(None)) -> Float64[np.ndarray, " chosen"]:
        """Return the share of claims that the chosen members keep.

        Args:
            members: Numbers of members.
            rows: Their traces.
        """
        return np.take_along_axis(self.kept[rows], members[:, None], 1)[:, 0]


def check_traces(traces: Any) -> None:
    """Check that there are traces, and that their ids are unique.

    Args:
        traces: The traces.

    Raises:
        InvalidValueError: If there is none, or two have the same id.
        InvalidTypeError: If something else is among them.
    """
    if isinstance(traces, ReasoningTrace | str | bytes) or not isinstance(traces, Sequence | np.ndarray):
        raise InvalidTypeError(
            f"got a {type(traces).__name__} in place of traces; give a list of ReasoningTrace objects, e.g. from "
            "octavo_coherent_factuality.read_traces"
        )
    if not len(traces):
        raise InvalidValueError("no traces; give at least one")
    for trace in traces:
        if not isinstance(trace, ReasoningTrace):
            raise InvalidTypeError(
                f"got a {type(trace).__name__}; give ReasoningTrace objects, e.g. from octavo_coherent_factuality."
                "read_traces"
            )
    repeated = [name for name, count in Counter(t.id for t in traces if t.id is not None).items() if count > 1]
    if repeated:
        raise InvalidValueError(f"the trace id {repeated[0]!r} occurs more than once; ids are unique in a data set")


def jitter(traces: Sequence[ReasoningTrace], seed: int, role: str) -> Float64[np.ndarray, " traces"]:
    """Draw one uniform number per trace from its identity, so that neither order nor company changes it.

    Args:
        traces: The traces.
        seed: Seed.
        role: What the numbers are for; another role gives independent numbers.

    Returns:
        Numbers in [0, 1). Traces of the same identity get different ones, in their order.
    """
    seen: Counter[str] = Counter()
    numbers = np.empty(len(traces))
    for row, trace in enumerate(traces):
        key = trace.key
        text = f"{seed}\0{role}\0{seen[key]}\0{key}".encode("utf-8", "surrogatepass")
        seen[key] += 1
        numbers[row] = (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 11) * 2.0**-53
    return numbers


def has_identity(trace: ReasoningTrace) -> bool:
    """Tell whether a trace has an id or a question, so that its numbers are not a function of its contents.

    Args:
        trace: The trace.

    Returns:
        Whether it has one.
    """
    return trace.id is not None or trace.question is not None


def tie_numbers(
    traces: Sequence[ReasoningTrace], seed: int, role: Literal["calibration", "prediction"]
) -> Float64[np.ndarray, " traces"]:
    """Draw the numbers that break ties, on the safe side for traces that nothing identifies.

    The numbers of traces with ids (or questions of their own) are as good as random. Those of other traces would be
    functions of their contents, the same whenever the contents are, and the guarantee would fail for a fixed seed. They
    lose every tie instead: below all numbers in calibration, above all in prediction, which is the strict rule.

    Args:
        traces: The traces of one call.
        seed: Seed.
        role: Whether they calibrate or are filtered.

    Returns:
        Numbers in [0, 1); -1 in calibration and infinity in prediction for traces without id and question, and for
        those that share a question and have no id.
    """
    numbers = jitter(traces, seed, role)
    shared = Counter(trace.key for trace in traces)
    unknown = [not has_identity(trace) or shared[trace.key] > 1 for trace in traces]
    numbers[np.array(unknown, bool)] = -1.0 if role == "calibration" else np.inf
    return numbers


def _padded(rows: Sequence[np.ndarray], fill: float | int, dtype: type) -> np.ndarray:
    lengths = np.array([len(row) for row in rows])
    table = np.full((len(rows), lengths.max(initial=0)), fill, dtype)
    table[np.arange(table.shape[1]) < lengths[:, None]] = np.concatenate(rows)
    return table

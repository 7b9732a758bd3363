"""Silver labels without a human: the equations of each claim are checked, given the question and the right premises."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_core.errors import InvalidValueError

from octavo_coherent_factuality.equations import EquationChecker, Verdict
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["annotate_arithmetic", "equation_verdicts"]


def equation_verdicts(trace: ReasoningTrace, checker: EquationChecker) -> list[Verdict]:
    """Check the equations of each claim of a trace.

    The context of a claim are the question and those of its ancestors that hold, so that a false premise never makes a
    conclusion true. Claims without equations, or with ones that cannot be decided, are unknown.

    Args:
        trace: The trace; its claims need texts.
        checker: Does the checking, with its time limit.

    Returns:
        One verdict per claim.
    """
    verdicts: list[Verdict] = ["unknown"] * trace.num_claims
    question = [trace.question] if trace.question else []
    for claim in trace.graph.topological_order.tolist():
        text = trace.claims[claim].text
        if not text:
            continue
        premises = [
            trace.claims[ancestor].text or ""
            for ancestor in sorted(trace.graph.ancestors(claim))
            if verdicts[ancestor] == "true"
        ]
        verdicts[claim] = checker.check(text, [*question, *premises])
    return verdicts


def annotate_arithmetic(
    traces: Sequence[ReasoningTrace], *, time_limit: float | int = 2.0, overwrite: bool = False
) -> list[ReasoningTrace]:
    """Annotate traces by their equations.

    Args:
        traces: Traces with texts.
        time_limit: Seconds for one claim.
        overwrite: Whether annotations that are there already are replaced.

    Returns:
        The traces; claims that could not be decided keep what they had.

    Raises:
        InvalidValueError: If the time limit is not positive.
    """
    if not time_limit > 0:
        raise InvalidValueError(f"time_limit={time_limit} is out of range; give seconds above 0")
    annotated = []
    with EquationChecker(time_limit) as checker:
        for trace in traces:
            verdicts = equation_verdicts(trace, checker)
            factual = [
                claim.factual
                if verdict == "unknown" or (claim.factual is not None and not overwrite)
                else verdict == "true"
                for claim, verdict in zip(trace.claims, verdicts, strict=True)
            ]
            annotated.append(trace.with_factual(factual))
    return annotated

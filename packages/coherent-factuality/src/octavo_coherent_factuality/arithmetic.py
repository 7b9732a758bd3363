"""Silver labels without a human: the equations of each claim are checked, given the question and the right premises."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo_coherent_factuality.equations import EquationChecker, Verdict
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["annotate_arithmetic", "equation_verdicts"]


def equation_verdicts(trace: ReasoningTrace, checker: EquationChecker, *, trust: bool = False) -> list[Verdict]:
    """Check the equations of each claim of a trace.

    The context of a claim are the question and those of its ancestors that hold, so that a false premise never makes a
    conclusion true. Claims without equations, or with ones that cannot be decided, are unknown.

    Args:
        trace: The trace; its claims need texts.
        checker: Does the checking, with its time limit.
        trust: Whether annotations that are there already stand for a check.

    Returns:
        One verdict per claim.
    """
    verdicts: list[Verdict] = ["unknown"] * trace.num_claims
    question = [trace.question] if trace.question else []
    for claim in trace.graph.topological_order.tolist():
        text, known = trace.claims[claim].text, trace.claims[claim].factual
        if trust and known is not None:
            verdicts[claim] = "true" if known else "false"
            continue
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
    traces: Sequence[ReasoningTrace],
    *,
    time_limit: float | int = 2.0,
    overwrite: bool = False,
    save: Callable[[list[ReasoningTrace]], None] | None = None,
) -> list[ReasoningTrace]:
    """Annotate traces by their equations.

    Args:
        traces: Traces with texts.
        time_limit: Seconds for one claim; infinity for no limit.
        overwrite: Whether annotations that are there already are replaced; otherwise those claims are not checked.
        save: Called after every trace with all of them, so that nothing is lost when the work is interrupted.

    Returns:
        The traces; claims that could not be decided keep what they had.

    Raises:
        InvalidValueError: If the time limit is not positive.
    """
    work = list(traces)
    with EquationChecker(time_limit) as checker:
        for row, trace in enumerate(work):
            verdicts = equation_verdicts(trace, checker, trust=not overwrite)
            factual = [
                claim.factual if verdict == "unknown" else verdict == "true"
                for claim, verdict in zip(trace.claims, verdicts, strict=True)
            ]
            work[row] = trace.with_factual(factual)
            if save is not None:
                save(work)
    return work

"""The conventions of the official code (maxrubintoles/Conformal_LM_Reasoning at d864168), for comparison only.

It breaks ties by adding standard normal noise to each question, once to the risks and once more to the thresholds:
noise as large as the gaps between scores. :class:`octavo_coherent_factuality.SplitConformalFilter` does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from octavo_core.metrics import binomial_interval

from octavo_coherent_factuality.annotators import Annotator
from octavo_coherent_factuality.curve import CalibrationCurve, CurvePoint
from octavo_coherent_factuality.method import FilteringMethod
from octavo_coherent_factuality.outcomes import OutcomeTable
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["NEVER_WRONG", "reference_curve", "reference_noise", "reference_quantile"]

NEVER_WRONG = 1000.0
"""Score of a trace none of whose outputs is wrong; its negative stands for abstention."""


def reference_noise(n: int, seed: int = 42) -> Float64[np.ndarray, " traces"]:
    """Draw the noise that the official leave-one-out study adds.

    Args:
        n: Number of traces.
        seed: Seed of NumPy's legacy generator.

    Returns:
        Standard normal numbers.
    """
    return np.random.RandomState(seed).normal(size=n)


def reference_quantile(scores: Sequence[float] | np.ndarray, alpha: float) -> float:
    """The threshold by the official formula in floating point.

    Args:
        scores: Calibration scores.
        alpha: Error level.

    Returns:
        The k-th largest score, or -1000 where there are too few.
    """
    rank = math.ceil((len(scores) + 1) * (1 - alpha))
    return -NEVER_WRONG if rank > len(scores) else float(np.sort(np.asarray(scores, float))[len(scores) - rank])


def reference_curve(
    traces: Sequence[ReasoningTrace],
    alphas: Sequence[float] | np.ndarray,
    *,
    method: FilteringMethod | None = None,
    evaluator: Annotator | None = None,
    noise: Sequence[float] | np.ndarray | None = None,
) -> CalibrationCurve:
    """Leave-one-out curve under the official double-noise rule.

    Args:
        traces: Annotated traces.
        alphas: Error levels.
        method: The method.
        evaluator: What counts as right in the test.
        noise: One number per trace; :func:`reference_noise` if left out.

    Returns:
        The curve.
    """
    method = FilteringMethod() if method is None else method
    table = OutcomeTable.build(traces, method, evaluator)
    shift = 2 * np.asarray(reference_noise(len(table)) if noise is None else noise, np.float64)
    scores = np.where(np.isinf(table.scores), NEVER_WRONG, table.scores + shift)
    shifted = OutcomeTable(scores, table.thresholds + shift[:, None], table.kept, table.verdicts, table.names)
    points = []
    for alpha in alphas:
        level = float(alpha)
        thresholds = np.array([reference_quantile(np.delete(scores, row), level) for row in range(len(scores))])
        members = shifted.chosen(thresholds, True)
        right, kept = shifted.right(members), shifted.retained(members)
        interval = binomial_interval(int(right.sum()), len(right))
        points.append(
            CurvePoint(
                level,
                1 - level,
                float(right.mean()),
                interval.low,
                interval.high,
                float(kept.mean()),
                float((kept == 0.0).mean()),
                len(scores) - 1,
            )
        )
    return CalibrationCurve(tuple(points), "loo", (evaluator or method.calibration_annotator).event)

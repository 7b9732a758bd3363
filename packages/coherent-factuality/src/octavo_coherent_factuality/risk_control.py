"""Conformal risk control: bound an expected loss, such as the share of false claims, instead of an error rate."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import numpy as np
from octavo_core.errors import InvalidValueError

from octavo_coherent_factuality.family import NestedFamily
from octavo_coherent_factuality.filter import ConformalFilter
from octavo_coherent_factuality.method import MethodFamily
from octavo_coherent_factuality.quantile import AlphaLike, exact_alpha
from octavo_coherent_factuality.scorers import Scorer
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["LossName", "RiskControlFilter"]

LossName = Literal["false_share", "false_discovery"]
"""False kept claims over all claims, or over the kept ones."""


class RiskControlFilter(ConformalFilter):
    """Keeps as much as possible while the expected share of false kept claims is at most alpha.

    ``"false_share"`` counts false kept claims over all claims of the answer. ``"false_discovery"`` counts them over
    the kept claims; that is not monotone in the threshold, so its running maximum is controlled, which bounds it.

    Args:
        alpha: Bound on the expected loss.
        loss: The loss.
        scorer: See :class:`SplitConformalFilter`.
        family: See :class:`SplitConformalFilter`; not ``"posthoc"``.
        seed: Not used: the rule is strict, claims at the threshold itself are cut.

    Source:
        Conformal risk control (Angelopoulos et al., 2024); beyond the paper. For exchangeable traces
        ``E[loss] <= alpha``, because the loss grows with the threshold and is at most 1.
    """

    def __init__(
        self,
        alpha: AlphaLike = 0.1,
        *,
        loss: LossName = "false_discovery",
        scorer: Scorer | None = None,
        family: MethodFamily = "subgraph",
        seed: int = 0,
    ) -> None:
        super().__init__(alpha, scorer=scorer, family=family, seed=seed)
        self.loss = loss

    @property
    def event(self) -> str:
        """What the guarantee is about."""
        over = "all claims" if self.loss == "false_share" else "the kept claims (its largest value up to the threshold)"
        return f"the expected share of false kept claims over {over} is at most alpha"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.loss not in ("false_share", "false_discovery") or self.family == "posthoc":
            raise InvalidValueError(
                f"loss={self.loss!r} with family={self.family!r} is not possible; give 'false_share' or "
                "'false_discovery', and a family other than 'posthoc'"
            )

    def _calibrate(self, traces: Sequence[ReasoningTrace]) -> None:
        method = self.method
        curves = []
        for trace in traces:
            family = method.output_family(trace)
            curves.append((family.thresholds, self._losses(trace, family)))
        candidates = np.unique(np.concatenate([thresholds for thresholds, _ in curves]))
        limit = exact_alpha(self.alpha) * (len(traces) + 1) - 1

        def is_safe(threshold: float) -> bool:
            total = Fraction(0)
            for thresholds, losses in curves:
                # Strict: the loss of what is kept below the threshold.
                bad, size = losses[np.searchsorted(thresholds, threshold, side="left")].tolist()
                total += Fraction(bad, max(size, 1))
            return total <= limit

        # The loss grows with the threshold: bisect for the last safe candidate.
        safe, unsafe = -1, len(candidates) + 1
        values = [*candidates.tolist(), math.inf]
        while unsafe - safe > 1:
            middle = (safe + unsafe) // 2
            if is_safe(values[middle]):
                safe = middle
            else:
                unsafe = middle
        self.threshold_ = values[safe] if safe >= 0 else -math.inf
        if safe < 0:
            warnings.warn(
                f"{len(traces)} calibration traces are too few for alpha={self.alpha}: everything is abstained from; "
                f"give at least {math.ceil(1 / exact_alpha(self.alpha)) - 1} traces or a larger alpha",
                stacklevel=3,
            )

    def _losses(self, trace: ReasoningTrace, family: NestedFamily) -> np.ndarray:
        """Numerator and denominator of the monotone loss of each member, (members, 2), exact."""
        bad = np.cumsum(np.bincount(family.rank[~trace.factual], minlength=family.num_members))
        sizes = family.sizes()
        if self.loss == "false_share":
            return np.stack([bad, np.full_like(bad, trace.num_claims)], axis=1)
        ratios = bad / np.maximum(sizes, 1)
        best = np.maximum.accumulate(ratios)
        # Where the running maximum was set: the last member at which the ratio reached it.
        source = np.maximum.accumulate(np.where(ratios >= best, np.arange(len(ratios)), 0))
        return np.stack([bad[source], np.maximum(sizes[source], 1)], axis=1)

    def _cut(self, trace: ReasoningTrace, number: float) -> tuple[float, bool]:
        return self.threshold_, False

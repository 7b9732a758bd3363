"""The methods that ARAM is compared with, in one class and one table."""

from octavo_aram.baselines.correction import BASELINES, Baseline, BaselineAgent

__all__ = ["BASELINES", "Baseline", "BaselineAgent"]

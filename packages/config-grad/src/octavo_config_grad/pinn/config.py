"""Settings of a training run, and the learning-rate schedule they describe."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from octavo_core.errors import InvalidValueError

from octavo_config_grad.pinn.derivatives import MODES
from octavo_config_grad.pinn.problem import PointCounts

__all__ = ["TrainingConfig", "demo_setting", "learning_rate_factor"]

DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class TrainingConfig:
    """Everything but the problem and the method that a run depends on.

    The budget is exactly one of ``steps``, ``backward_passes`` and ``seconds``; results report all three. A backward
    pass is one loss differentiated once, so Adam on m losses spends m a step and M-ConFIG spends ``updates_per_step``.
    Runs by steps or passes repeat bit for bit on one machine; runs by seconds cannot.

    Args:
        steps: Optimizer steps.
        backward_passes: Single-loss backward passes.
        seconds: Seconds of training; evaluation is not counted.
        seed: Seed of the initial network and of the points.
        points: Points of each loss, drawn afresh every ``resample_every`` evaluations of it.
        hidden: Width of each hidden layer.
        lr: Learning rate at the start, after warm-up.
        lr_end: Learning rate at the end of the cosine.
        warmup: Share of the budget in which the learning rate rises from 0, at most 100 steps.
        resample_every: Evaluations of a loss on the same points.
        updates_per_step: Losses that the momentum methods refresh in a step.
        length: Length model of ConFIG.
        rank_policy: Rank policy of ConFIG.
        clip: Largest norm of the combined gradient, for all methods alike but the momentum ones, which have no gradient
            to clip; None for no limit.
        derivatives: How derivatives are computed: one of ``pinn.derivatives.MODES``.
        evaluate_every: Backward passes between evaluations.
        device: Where to compute: ``"auto"``, ``"cpu"``, ``"cuda"``, ...
        dtype: ``"float32"`` or ``"float64"``.

    Raises:
        InvalidValueError: If a number is out of range, a name is unknown, or not exactly one budget is given.

    Source:
        The paper's PINN study (its official training configurations); the default sizes are smaller, for two CPU cores.
    """

    steps: int | None = None
    backward_passes: int | None = None
    seconds: float | int | None = None
    seed: int = 0
    points: PointCounts = field(default_factory=PointCounts)
    hidden: tuple[int, ...] = (20, 20, 20, 20)
    lr: float = 1e-3
    lr_end: float = 1e-4
    warmup: float | int = 0.01
    resample_every: int = 1
    updates_per_step: int = 1
    length: str | int = "projection"
    rank_policy: str = "lstsq"
    clip: float | int | None = None
    derivatives: str = "auto"
    evaluate_every: int = 200
    device: str = "cpu"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        budgets = {name: getattr(self, name) for name in ("steps", "backward_passes", "seconds")}
        given = {name: value for name, value in budgets.items() if value is not None}
        if len(given) != 1:
            raise InvalidValueError(
                f"give exactly one budget of steps, backward_passes and seconds, got {', '.join(given) or 'none'}"
            )
        positive = {
            **given,
            "lr": self.lr,
            "lr_end": self.lr_end,
            "resample_every": self.resample_every,
            "updates_per_step": self.updates_per_step,
            "evaluate_every": self.evaluate_every,
            **({} if self.clip is None else {"clip": self.clip}),
            **{f"hidden[{index}]": width for index, width in enumerate(self.hidden)},
        }
        for name, value in positive.items():
            if not 0 < value < math.inf:
                raise InvalidValueError(f"{name}={value} must be positive")
        if not 0 <= self.warmup < 1:
            raise InvalidValueError(
                f"warmup={self.warmup} must be a share of the budget from 0 up to but not including 1"
            )
        if self.seed < 0:
            raise InvalidValueError(f"seed={self.seed} must be at least 0")
        for name, known in {"derivatives": MODES, "dtype": DTYPES}.items():
            if getattr(self, name) not in known:
                raise InvalidValueError(f"unknown {name} {getattr(self, name)!r}; give one of {', '.join(known)}")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON holds them.

        Returns:
            Names and values; nested mappings and lists instead of dataclasses and tuples.
        """
        found = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def demo_setting(**changes: Any) -> TrainingConfig:
    """Settings of the demonstration: Burgers with two losses, 8000 backward passes on a network of four layers of 20.

    Args:
        **changes: Settings to replace, such as ``seed`` or ``backward_passes``.

    Returns:
        The settings.

    Raises:
        InvalidValueError: As for :class:`TrainingConfig`.

    Source:
        A small version of the paper's Burgers study: 400 interior and 128 boundary and initial points.
    """
    # Another budget takes the place of the default one.
    budget = {} if changes.keys() & {"steps", "seconds"} else {"backward_passes": 8000}
    settings: dict[str, Any] = {**budget, "points": PointCounts(400, 64, 64), **changes}
    return TrainingConfig(**settings)


def learning_rate_factor(position: float | int, end: float | int, warmup: float | int, end_ratio: float | int) -> float:
    """Factor on the learning rate: linear warm-up, then a cosine.

    ``position / warmup`` before ``warmup``, then ``1 - (1 - (cos(pi (e - w) / (E - w)) + 1) / 2) (1 - end_ratio)``.

    Args:
        position: Where the run is (e), from 0 to ``end``, in steps or any other unit.
        end: Where it ends (E).
        warmup: Where the warm-up ends (w).
        end_ratio: The factor at the end.

    Returns:
        The factor, in [0, 1].

    Source:
        The paper's PINN study (its official training configurations).
    """
    if position < warmup:
        return position / warmup
    phase = min(1.0, (position - warmup) / (end - warmup)) if end > warmup else 1.0
    return 1.0 - (1.0 - (math.cos(math.pi * phase) + 1.0) / 2.0) * (1.0 - end_ratio)

"""Adam for parameters that are one vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["FlatAdam"]


class FlatAdam:
    """Adam on one tensor, in six calls.

    For networks of some thousand parameters the bookkeeping of ``torch.optim`` costs more than the update itself, and
    making its first optimiser loads torch's compiler, which takes longer than the embedded example's first thousand
    steps. The update is the same (see the tests).

    Args:
        parameter: What to optimise, in place.
        learning_rate: Step size.
        betas: Decay rates of the two moments.
        eps: Added to the root of the second moment.

    Source: Kingma and Ba 2015, algorithm 1.
    """

    def __init__(
        self,
        parameter: Float[Tensor, " parameters"] | Float[Tensor, ""],
        learning_rate: float | int,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        # The tensor itself and no view of it, so that a copy of its owner still optimises the owner's parameter.
        self._parameter = parameter
        self.learning_rate, self._betas, self._eps = float(learning_rate), betas, eps
        self.first, self.second = torch.zeros_like(self._parameter), torch.zeros_like(self._parameter)
        self.steps = 0

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        """Update the parameter.

        Args:
            gradient: Gradient of the loss, of the parameter's shape.
        """
        self.steps += 1
        decay, decay_second = self._betas
        self.first.lerp_(gradient, 1 - decay)
        self.second.mul_(decay_second).addcmul_(gradient, gradient, value=1 - decay_second)
        scale = (1 - decay_second**self.steps) ** 0.5
        denominator = self.second.sqrt().add_(self._eps * scale)
        self._parameter.addcdiv_(self.first, denominator, value=-self.learning_rate * scale / (1 - decay**self.steps))

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs.

        Returns:
            Moments and the number of steps.
        """
        return {"first": self.first, "second": self.second, "steps": self.steps}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`state_dict` returned.

        Args:
            state: The saved state.
        """
        self.first.copy_(state["first"])
        self.second.copy_(state["second"])
        self.steps = int(state["steps"])

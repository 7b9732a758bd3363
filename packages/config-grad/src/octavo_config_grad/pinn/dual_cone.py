"""Projection onto the dual cone of the gradients, which UPGrad and DualProj of torchjd need, by SciPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

__all__ = ["dual_cone_projector"]

# What torchjd's own projector adds to the Gramian of trace 1, so that both solve the same problem.
_REGULARISATION = 1e-4


def dual_cone_projector() -> Any:
    """Make a projector for ``torchjd.aggregation.UPGrad(projector=...)`` that needs no quadratic-programming package.

    ``min v^T G v`` over ``v >= u`` is a non-negative least-squares problem in ``v - u``: with ``G = L L^T`` it is
    ``min |L^T (v - u) + L^T u|``.

    Returns:
        A ``torchjd.linalg.DualConeProjector``.

    Source:
        Quinton and Rey, "Jacobian descent for multi-objective optimization" (2024), Proposition 1.
    """
    from torchjd.linalg import DualConeProjector

    class NonNegativeProjector(DualConeProjector):
        def __call__(self, U: Tensor, G: Tensor) -> Tensor:
            gramian = G.detach().double().cpu().numpy()
            trace = float(np.trace(gramian))
            if trace <= 0.0:
                return U.clone()
            factor = np.linalg.cholesky(gramian / trace + _REGULARISATION * np.eye(len(gramian))).T
            wanted = U.detach().double().cpu().numpy()
            rows = [row + nnls(factor, -factor @ row)[0] for row in wanted.reshape(-1, len(gramian))]
            return torch.as_tensor(np.stack(rows).reshape(wanted.shape), device=G.device, dtype=G.dtype)

    return NonNegativeProjector()

"""Aggregators that ConFIG is compared with, each as a rule on the Gramian."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from octavo_config_grad._solver import (
    cosine_matrix,
    default_rtol,
    least_squares_coefficients,
    minimum_norm_coefficients,
)
from octavo_config_grad.aggregators import Aggregator
from octavo_config_grad.arguments import check_seed

__all__ = ["IMTLG", "MGDA", "PCGrad", "Sum"]


class Sum(Aggregator):
    """Sum of the gradients: what descending the summed loss does.

    Args:
        nonfinite: ``"raise"`` or ``"skip"``; see ``Aggregator``.
    """

    def coefficients(
        self, gramian: Float64[Tensor, "losses losses"], losses: Float64[Tensor, " losses"] | None
    ) -> Float64[Tensor, " losses"]:
        """Ones.

        Args:
            gramian: Dot products of the gradients.
            losses: Not used.

        Returns:
            ``alpha = 1``, (m,).
        """
        return torch.ones(len(gramian), dtype=torch.float64)


class PCGrad(Aggregator):
    """Projecting conflicting gradients: each gradient loses its components against those that it opposes.

    Every ``g_i`` runs through the other losses j and, where its current value opposes the original ``g_j``, is
    projected onto the normal plane of ``g_j``; the results are summed.

    Args:
        shuffle: Draw the order of j anew for every i and every call, as the paper of PCGrad does, instead of the fixed
            order 0..m-1 of the ConFIG paper's code.
        seed: Seed of the order; its state is part of ``state_dict``.
        nonfinite: ``"raise"`` or ``"skip"``; see ``Aggregator``.

    Raises:
        InvalidTypeError: If ``seed`` is not an integer.

    Source:
        Yu et al., "Gradient Surgery for Multi-Task Learning", NeurIPS 2020, Algorithm 1.
    """

    def __init__(self, shuffle: bool = False, seed: Any = 0, *, nonfinite: str = "raise") -> None:
        super().__init__(nonfinite=nonfinite)
        self.shuffle = shuffle
        self.generator = torch.Generator().manual_seed(check_seed(seed))

    def coefficients(
        self, gramian: Float64[Tensor, "losses losses"], losses: Float64[Tensor, " losses"] | None
    ) -> Float64[Tensor, " losses"]:
        """Coefficients of the sum of the projected gradients.

        Args:
            gramian: Dot products of the gradients.
            losses: Not used.

        Returns:
            ``alpha``, (m,).
        """
        products = gramian.numpy()
        size = len(products)
        rows = np.arange(size)
        if self.shuffle:
            order = torch.rand(size, size, generator=self.generator, dtype=torch.float64).argsort(dim=1).numpy()
        else:
            order = np.tile(rows, (size, 1))
        # Row i holds the coefficients of the running g_i; all i advance together, each along its own order.
        running = np.eye(size)
        for against in order.T:
            dots = np.einsum("ik,ki->i", running, products[:, against])
            opposed = (dots < 0.0) & (against != rows)
            squared_norms = np.where(opposed, products[against, against], 1.0)
            running[rows, against] -= np.where(opposed, dots / squared_norms, 0.0)
        return torch.from_numpy(running.sum(axis=0))

    def get_extra_state(self) -> dict[str, Any]:
        """State of the random order, for ``state_dict``.

        Returns:
            A dictionary with the generator state.
        """
        return {"generator": self.generator.get_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the random order.

        Args:
            state: What ``get_extra_state`` returned.
        """
        self.generator.set_state(state["generator"].cpu())


class IMTLG(Aggregator):
    """Impartial multi-task learning, gradient part: coefficients that sum to 1 and give equal projections.

    Parallel to ConFIG with equal weights, but uphill for every loss when the unnormalised coefficients sum to a
    negative number; zero when they sum to zero, where it is not defined.

    Args:
        nonfinite: ``"raise"`` or ``"skip"``; see ``Aggregator``.

    Source:
        Liu et al., "Towards Impartial Multi-task Learning", ICLR 2021.
    """

    def coefficients(
        self, gramian: Float64[Tensor, "losses losses"], losses: Float64[Tensor, " losses"] | None
    ) -> Float64[Tensor, " losses"]:
        """Coefficients of equal projections.

        Args:
            gramian: Dot products of the gradients.
            losses: Not used.

        Returns:
            ``alpha_j = (a_j / |g_j|) / sum_k (a_k / |g_k|)`` with ``a = R^+ 1``; zero for a zero gradient.
        """
        norms, nonzero, cosines = cosine_matrix(gramian.numpy())
        alpha = np.zeros(len(norms))
        if nonzero.any():
            block = cosines[np.ix_(nonzero, nonzero)]
            solution, _ = least_squares_coefficients(block, np.ones(len(block)), default_rtol(len(block)))
            # A common factor cancels; the smallest norm keeps the quotients in range.
            scaled = solution * (norms[nonzero].min() / norms[nonzero])
            total = scaled.sum()
            if abs(total) > default_rtol(len(block)) * np.abs(scaled).sum():
                alpha[nonzero] = scaled / total
        return torch.from_numpy(alpha)


class MGDA(Aggregator):
    """Multiple-gradient descent: the point of smallest norm in the convex hull of the gradients.

    A loss with a zero gradient, or zero in the hull, makes the update zero: the point is Pareto-stationary.

    Args:
        nonfinite: ``"raise"`` or ``"skip"``; see ``Aggregator``.

    Source:
        Desideri, "Multiple-gradient descent algorithm (MGDA)", 2012; Sener and Koltun, NeurIPS 2018.
    """

    def coefficients(
        self, gramian: Float64[Tensor, "losses losses"], losses: Float64[Tensor, " losses"] | None
    ) -> Float64[Tensor, " losses"]:
        """Coefficients of the convex combination.

        Args:
            gramian: Dot products of the gradients.
            losses: Not used.

        Returns:
            ``alpha >= 0`` with sum 1, or all zero at a Pareto-stationary point.
        """
        norms, nonzero, cosines = cosine_matrix(gramian.numpy())
        if not nonzero.all():
            return torch.zeros(len(norms), dtype=torch.float64)
        inverse = norms.min() / norms
        # g_i = u_i / w_i with w_i = 1 / |g_i|, so the solver's hull is that of the gradients themselves.
        solution, _ = minimum_norm_coefficients(cosines, inverse)
        alpha = solution * inverse
        total = alpha.sum()
        return torch.from_numpy(alpha / total if total > 0.0 else alpha)

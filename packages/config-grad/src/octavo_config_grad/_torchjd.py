"""Classes that join this package's aggregators and torchjd's; importing this module imports torchjd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float64
from octavo_core.errors import InvalidStateError
from torch import Tensor
from torchjd.aggregation import Aggregator as TorchJDAggregator
from torchjd.aggregation import GramianWeightedAggregator, WeightedAggregator, Weighting

from octavo_config_grad._solver import cosine_matrix, default_rtol, numerical_rank
from octavo_config_grad.aggregators import Aggregator
from octavo_config_grad.gramian import Gradients, coarsest_dtype, gramian, scaled_gramian, weighted_sum
from octavo_config_grad.info import UpdateInfo, check_finite, nonfinite_losses, report, skipped_info
from octavo_config_grad.overflow import overflow_error

__all__ = ["ExportedAggregator", "ExportedWeighting", "ImportedAggregator", "ImportedWeighting", "TorchJDAggregator"]


class ExportedWeighting(Weighting):
    """An aggregator of this package as a torchjd weighting of Gramians.

    Args:
        aggregator: The aggregator.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__()
        self.aggregator = aggregator

    def forward(self, stat: Tensor, /) -> Tensor:
        """Weights for a Gramian.

        Args:
            stat: Gramian (m, m).

        Returns:
            Weights (m,) in its dtype.
        """
        return self.aggregator.weights(stat).to(stat.dtype)


class ExportedAggregator(GramianWeightedAggregator):
    """An aggregator of this package as a torchjd aggregator, with the Gramian and the sum in float64.

    Args:
        aggregator: The aggregator.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        weighting = ExportedWeighting(aggregator)
        super().__init__(weighting)
        # torchjd would form the Gramian in the dtype of the Jacobian.
        self.weighting = weighting << _scaled_gramian_matrix

    def forward(self, matrix: Tensor, /) -> Tensor:
        """Combine the rows of a Jacobian.

        Args:
            matrix: Jacobian (m, N).

        Returns:
            The update (N,).
        """
        combined = weighted_sum(matrix, self.weighting(matrix), accumulate=torch.float64)
        assert isinstance(combined, Tensor)
        return combined

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.gramian_weighting.aggregator!r})"


class ImportedWeighting(Aggregator):
    """A torchjd aggregator or weighting that needs the Gramian alone.

    Args:
        weighting: Weighting of Gramians, or of matrices through their Gramian.
        of_matrix: Whether the weighting reads a matrix; it is then shown a square root of the Gramian.
        nonfinite: ``"raise"`` or ``"skip"``.
    """

    def __init__(self, weighting: Weighting, *, of_matrix: bool, nonfinite: str) -> None:
        super().__init__(nonfinite=nonfinite)
        self.weighting = weighting
        self.of_matrix = of_matrix

    def coefficients(
        self, gramian: Float64[Tensor, "losses losses"], losses: Float64[Tensor, " losses"] | None
    ) -> Float64[Tensor, " losses"]:
        """Coefficients that the torchjd weighting gives.

        Args:
            gramian: Dot products of the gradients.
            losses: Not used.

        Returns:
            ``alpha``, (m,).
        """
        shown = gramian
        if self.of_matrix:
            eigenvalues, vectors = torch.linalg.eigh(gramian)
            shown = vectors * eigenvalues.clamp_min(0.0).sqrt()
        return self.weighting(shown).detach().to("cpu", torch.float64)


class ImportedAggregator(Aggregator):
    """A torchjd aggregator that works on the coordinates of the gradients, such as GradDrop.

    Args:
        aggregator: The torchjd aggregator.
        nonfinite: ``"raise"`` or ``"skip"``.
    """

    needs_gradients = True

    def __init__(self, aggregator: TorchJDAggregator, *, nonfinite: str) -> None:
        super().__init__(nonfinite=nonfinite)
        self.aggregator = aggregator

    def coefficients(
        self, gramian: Float64[Tensor, "losses losses"], losses: Float64[Tensor, " losses"] | None
    ) -> Float64[Tensor, " losses"]:
        """Refuse: the update is not a combination of whole gradients.

        Args:
            gramian: Not used.
            losses: Not used.

        Raises:
            InvalidStateError: Always.
        """
        raise InvalidStateError(
            f"torchjd's {type(self.aggregator).__name__} works on the coordinates of the gradients and gives no "
            "coefficients: call the aggregator on the gradients themselves"
        )

    def _aggregate(
        self, gradients: Gradients, losses: Tensor | Sequence[Tensor | float | int] | None
    ) -> tuple[Tensor | list[Tensor], UpdateInfo]:
        # torchjd wants one flat matrix; alpha is NaN in the report, as the update need not lie in the gradients' span.
        product = gramian(gradients).cpu()
        zero = weighted_sum(gradients, torch.zeros(len(product), dtype=torch.float64))
        if self.nonfinite == "skip" and nonfinite_losses(product):
            return zero, skipped_info(product)
        check_finite(product)
        matrix = _flatten(gradients)
        vector = self.aggregator(matrix).detach()
        if not bool(vector.isfinite().all()):
            if self.nonfinite == "raise":
                raise overflow_error()
            return zero, skipped_info(product)
        augmented = gramian(torch.cat([matrix, vector.to(matrix).unsqueeze(0)])).cpu().numpy()
        info = _report_of_vector(augmented, coarsest_dtype(gradients))
        if isinstance(zero, Tensor):
            return vector.reshape(zero.shape).to(zero), info
        pieces = vector.split([target.numel() for target in zero])
        return [piece.reshape(target.shape).to(target) for piece, target in zip(pieces, zero, strict=True)], info


def _scaled_gramian_matrix(matrix: Tensor) -> Tensor:
    return scaled_gramian(matrix)[0]


def _flatten(gradients: Gradients) -> Tensor:
    if isinstance(gradients, Tensor):
        return gradients.detach()
    rows = [[row] if isinstance(row, Tensor) else row for row in gradients]
    return torch.stack(
        [torch.cat([tensor.detach().reshape(-1) for tensor in row if tensor is not None]) for row in rows]
    )


def _report_of_vector(augmented: Float64[np.ndarray, "rows rows"], gradient_dtype: torch.dtype) -> UpdateInfo:
    """Report of an update whose dot products with the gradients are the last row of a Gramian."""
    size = len(augmented) - 1
    norms, nonzero, cosines = cosine_matrix(augmented[:size, :size])
    update_norm = float(np.sqrt(augmented[size, size]))
    scale = norms * update_norm
    update_cosines = np.divide(augmented[:size, size], scale, out=np.zeros(size), where=scale > 0.0)
    rank = numerical_rank(cosines[np.ix_(nonzero, nonzero)], default_rtol(size))
    info = report(norms, cosines, np.zeros(size), update_cosines, update_norm, rank, default_rtol(size), gradient_dtype)
    return replace(info, alpha=torch.full((size,), torch.nan, dtype=torch.float64))


def import_aggregator(source: TorchJDAggregator | Weighting, nonfinite: str) -> Aggregator:
    """Wrap a torchjd object by what it needs to see; see ``interop.from_torchjd``.

    Args:
        source: The torchjd aggregator or weighting.
        nonfinite: ``"raise"`` or ``"skip"``.

    Returns:
        The wrapper.
    """
    if isinstance(source, GramianWeightedAggregator):
        return ImportedWeighting(source.gramian_weighting, of_matrix=False, nonfinite=nonfinite)
    if isinstance(source, WeightedAggregator):
        return ImportedWeighting(source.weighting, of_matrix=True, nonfinite=nonfinite)
    if isinstance(source, Weighting):
        return ImportedWeighting(source, of_matrix=False, nonfinite=nonfinite)
    return ImportedAggregator(source, nonfinite=nonfinite)

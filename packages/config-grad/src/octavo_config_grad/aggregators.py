"""Aggregators: how the gradients of several losses become one update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, overload

import torch
from jaxtyping import Float64
from octavo_core.errors import InvalidStateError, InvalidValueError
from torch import Tensor, nn

from octavo_config_grad._compile import outside_graphs
from octavo_config_grad.gramian import Gradients, accumulation, coarsest_dtype, scaled_gramian, weighted_sum
from octavo_config_grad.info import (
    UpdateInfo,
    check_finite,
    check_gramian,
    check_rtol,
    nonfinite_losses,
    real_array,
    skipped_info,
    update_info,
)
from octavo_config_grad.length import LengthModel, check_length_model
from octavo_config_grad.overflow import overflow_error, overflows
from octavo_config_grad.update import check_rank_policy, config_weights

__all__ = ["NONFINITE_POLICIES", "Aggregator", "ConFIG", "DirectionWeights", "LossRatio"]

DirectionWeights = Tensor | Sequence[float | int] | Callable[..., Any] | None
"""None (equal), one positive number per loss, or a function ``(gramian, losses) -> weights``."""

NONFINITE_POLICIES = ("raise", "skip")
"""What to do with gradients, or an update of finite ones, that hold NaN or infinity: raise, or make the update zero."""


class Aggregator(nn.Module):
    """Base of all aggregators: a rule that turns the Gramian of the gradients into the coefficients of an update.

    A subclass implements ``coefficients``. A module, so that state (loss-ratio references, random generators) is in
    ``state_dict`` and hooks work; it has no parameters.

    Args:
        nonfinite: For gradients that hold NaN or infinity, and updates that leave the range of their dtype,
            ``"raise"`` or ``"skip"`` (the update is zero and ``info.skipped`` is set).

    Raises:
        InvalidValueError: If ``nonfinite`` is another word.

    Attributes:
        needs_gradients: Whether the rule works on the gradients themselves, not on their Gramian, so that only
            ``aggregate`` and calling it are possible (some aggregators from ``from_torchjd``).
    """

    needs_gradients: bool = False

    def __init__(self, *, nonfinite: str = "raise") -> None:
        super().__init__()
        if nonfinite not in NONFINITE_POLICIES:
            raise InvalidValueError(
                f"unknown nonfinite policy {nonfinite!r}: use one of {', '.join(NONFINITE_POLICIES)}"
            )
        self.nonfinite = nonfinite

    def coefficients(
        self, gramian: Float64[Tensor, "losses losses"], losses: Float64[Tensor, " losses"] | None
    ) -> Tensor:
        """Coefficients of the update; the one method a subclass must implement.

        Args:
            gramian: Finite dot products of the gradients, float64 on the CPU; not to be changed in place.
            losses: Loss values, float64 on the CPU, or None when the caller has none.

        Returns:
            ``alpha``, (m,): the update is ``sum_j alpha_j g_j``.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement coefficients(gramian, losses)")

    @outside_graphs
    def solve(
        self,
        gramian: Tensor,
        losses: Tensor | Sequence[Tensor | float | int] | None = None,
        *,
        gradient_dtype: torch.dtype = torch.float64,
    ) -> tuple[Float64[Tensor, " losses"], UpdateInfo]:
        """Coefficients of the update and the report of what it does.

        Args:
            gramian: Dot products of the gradients, (m, m), best in float64.
            losses: Loss values, one per loss, for the rules that depend on them.
            gradient_dtype: Precision of the gradients behind the Gramian, for ``info.reliable``.

        Returns:
            ``alpha``, float64 on the device of ``gramian``, and the report.

        Raises:
            InvalidValueError: If the Gramian is not square, or not finite under ``nonfinite="raise"``, or ``losses``
                has another length.
        """
        entries = check_gramian(gramian)
        values = _loss_values(losses, len(entries))
        if self.nonfinite == "skip" and nonfinite_losses(entries):
            info = skipped_info(entries)
        else:
            check_finite(entries)
            info = self._solve_finite(entries, values, gradient_dtype)
        return info.alpha.to(gramian.device, copy=True), info

    def _solve_finite(
        self,
        gramian: Float64[Tensor, "losses losses"],
        losses: Float64[Tensor, " losses"] | None,
        gradient_dtype: torch.dtype,
    ) -> UpdateInfo:
        return update_info(gramian, self.coefficients(gramian, losses), gradient_dtype=gradient_dtype)

    def weights(
        self, gramian: Tensor, losses: Tensor | Sequence[Tensor | float | int] | None = None
    ) -> Float64[Tensor, " losses"]:
        """Coefficients of the update alone; see ``solve``.

        Args:
            gramian: As for ``solve``.
            losses: As for ``solve``.

        Returns:
            ``alpha``, float64 on the device of ``gramian``.
        """
        return self.solve(gramian, losses)[0]

    @overload
    def aggregate(
        self,
        gradients: Tensor | Sequence[Tensor],
        losses: Tensor | Sequence[Tensor | float | int] | None = None,
    ) -> tuple[Tensor, UpdateInfo]: ...

    @overload
    def aggregate(
        self,
        gradients: Sequence[Sequence[Tensor]],
        losses: Tensor | Sequence[Tensor | float | int] | None = None,
    ) -> tuple[list[Tensor], UpdateInfo]: ...

    @overload
    def aggregate(
        self, gradients: Gradients, losses: Tensor | Sequence[Tensor | float | int] | None = None
    ) -> tuple[Tensor | list[Tensor], UpdateInfo]: ...

    @outside_graphs
    def aggregate(
        self, gradients: Any, losses: Tensor | Sequence[Tensor | float | int] | None = None
    ) -> tuple[Tensor | list[Tensor], UpdateInfo]:
        """Combine gradients and report what the combination does.

        Args:
            gradients: Matrix (m, N), sequence of m equally shaped tensors, or sequence over losses of sequences with
                one tensor per parameter.
            losses: As for ``solve``.

        Returns:
            The update (a vector, a tensor or a list, as ``gradients``), and the report.

        Raises:
            InvalidValueError: As for ``gramian`` and ``solve``, or if the update leaves the range of its dtype under
                ``nonfinite="raise"``.
            InvalidTypeError: As for ``gramian``.
        """
        return self._aggregate(gradients, losses)

    def _aggregate(
        self, gradients: Any, losses: Tensor | Sequence[Tensor | float | int] | None
    ) -> tuple[Tensor | list[Tensor], UpdateInfo]:
        product, unit = scaled_gramian(gradients)
        product = product.cpu()
        alpha, info = self.solve(product, losses, gradient_dtype=coarsest_dtype(gradients))
        accumulate, reach = accumulation(product, alpha)
        update = weighted_sum(gradients, alpha, accumulate=accumulate)
        if overflows(update, reach * unit):
            if self.nonfinite == "raise":
                raise overflow_error()
            update, info = weighted_sum(gradients, torch.zeros_like(alpha)), skipped_info(product)
        if unit != 1.0:
            info = replace(info, norms=info.norms * unit, length=info.length * unit)
        return update, info

    def forward(
        self, gradients: Any, losses: Tensor | Sequence[Tensor | float | int] | None = None
    ) -> Tensor | list[Tensor]:
        """Combine gradients; see ``aggregate``.

        Args:
            gradients: As for ``aggregate``.
            losses: As for ``solve``.

        Returns:
            The update, to be used in place of the gradient of the summed loss.
        """
        return self.aggregate(gradients, losses)[0]


class ConFIG(Aggregator):
    """Conflict-free inverse gradients: equal (or weighted) positive cosines with every loss gradient.

    Args:
        direction_weights: None for equal weights, one positive number per loss, or a function
            ``(gramian, losses) -> weights`` such as ``LossRatio()``.
        length: Length model; see ``config_weights``.
        rank_policy: For dependent gradients, ``"lstsq"``, ``"maxmin"`` or ``"error"``; see ``config_weights``.
        rtol: Relative eigenvalue cut; see ``config_weights``.
        nonfinite: ``"raise"`` or ``"skip"``; see ``Aggregator``.

    Raises:
        InvalidValueError: If an option is unknown or out of range.
        InvalidTypeError: If an option is of another type.

    Source:
        Paper Eq. 1-3; ``rank_policy="maxmin"`` is beyond the paper.

    Example:
        >>> ConFIG()(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        tensor([3.5000, 3.5000])
    """

    def __init__(
        self,
        direction_weights: Any = None,
        *,
        length: LengthModel = "projection",
        rank_policy: str = "lstsq",
        rtol: Any = None,
        nonfinite: str = "raise",
    ) -> None:
        super().__init__(nonfinite=nonfinite)
        check_length_model(length)
        check_rank_policy(rank_policy)
        check_rtol(rtol, 1)
        if direction_weights is not None and not callable(direction_weights):
            real_array(direction_weights, "direction_weights")
        self.direction_weights: DirectionWeights = direction_weights
        self.length = length
        self.rank_policy = rank_policy
        self.rtol = rtol

    def extra_repr(self) -> str:
        """Options in the printed form of the module.

        Returns:
            The options.
        """
        return f"length={self.length!r}, rank_policy={self.rank_policy!r}, nonfinite={self.nonfinite!r}"

    def coefficients(
        self, gramian: Float64[Tensor, "losses losses"], losses: Float64[Tensor, " losses"] | None
    ) -> Tensor:
        """Coefficients of the ConFIG update; see ``config_weights``.

        Args:
            gramian: Finite dot products of the gradients.
            losses: Loss values, or None.

        Returns:
            ``alpha``, (m,).
        """
        return self._solve_finite(gramian, losses, torch.float64).alpha

    def _solve_finite(
        self,
        gramian: Float64[Tensor, "losses losses"],
        losses: Float64[Tensor, " losses"] | None,
        gradient_dtype: torch.dtype,
    ) -> UpdateInfo:
        given: Any = self.direction_weights
        weights = given(gramian, losses) if callable(given) else given
        return config_weights(
            gramian,
            weights,
            length=self.length,
            rank_policy=self.rank_policy,
            rtol=self.rtol,
            gradient_dtype=gradient_dtype,
        )[1]


class LossRatio(nn.Module):
    """Direction weights that favour the losses that have fallen least: ``w_i`` grows with ``L_i / L_i(first seen)``.

    ``w_i = max((L_i / L_i^0)^exponent, floor * max_j)``, scaled to mean 1. To be passed to
    ``ConFIG(direction_weights=...)``; the reference losses are part of the ``state_dict``.

    Args:
        exponent: Strength of the preference; 0 gives equal weights.
        floor: Smallest weight as a fraction of the largest, in (0, 1].

    Raises:
        InvalidValueError: If ``floor`` lies outside (0, 1] or ``exponent`` is negative.

    Source:
        Beyond the paper, which ships equal weights only: a loss that lags behind can ask for a larger cosine.
    """

    def __init__(self, exponent: float | int = 1.0, *, floor: float | int = 1e-2) -> None:
        super().__init__()
        if exponent < 0 or not 0.0 < floor <= 1.0:
            raise InvalidValueError(f"exponent={exponent} must be at least 0 and floor={floor} must lie in (0, 1]")
        self.exponent = exponent
        self.floor = floor
        self.reference: list[float] | None = None

    def forward(
        self, gramian: Float64[Tensor, "losses losses"], losses: Float64[Tensor, " losses"] | None
    ) -> Float64[Tensor, " losses"]:
        """Weights for the present losses; the first call sets the reference.

        Args:
            gramian: Dot products of the gradients; not used.
            losses: Present loss values, positive at the first call and not negative later.

        Returns:
            Positive weights with mean 1.

        Raises:
            InvalidStateError: If ``losses`` is None.
            InvalidValueError: If a loss is negative or not finite, zero at the first call, or their number changes.
        """
        if losses is None:
            raise InvalidStateError(
                "LossRatio needs the loss values: pass losses= to the aggregator (ConFIGOptimizer and MConFIG do)"
            )
        if self.reference is None:
            _check_positive(losses, strictly=True)
            self.reference = losses.tolist()
        _check_positive(losses, strictly=False)
        if len(losses) != len(self.reference):
            raise InvalidValueError(f"{len(losses)} losses given, but the reference holds {len(self.reference)}")
        ratios = (losses / torch.tensor(self.reference, dtype=torch.float64)) ** self.exponent
        weights = ratios.clamp_min(self.floor * float(ratios.max()))
        return torch.ones_like(weights) if weights.max() == 0.0 else weights / weights.mean()

    def get_extra_state(self) -> dict[str, Any]:
        """Reference losses, for ``state_dict``.

        Returns:
            A dictionary of plain numbers.
        """
        return {"reference": self.reference}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the reference losses.

        Args:
            state: What ``get_extra_state`` returned.
        """
        reference = state["reference"]
        self.reference = None if reference is None else [float(value) for value in reference]


def _check_positive(losses: Float64[Tensor, " losses"], *, strictly: bool) -> None:
    for index, value in enumerate(losses.tolist()):
        if not (value > 0.0 or (value == 0.0 and not strictly)) or value == float("inf"):
            raise InvalidValueError(f"loss {index} is {value:g}: loss-ratio weights need positive, finite losses")


def _loss_values(
    losses: Tensor | Sequence[Tensor | float | int] | None, size: int
) -> Float64[Tensor, " losses"] | None:
    if losses is None:
        return None
    if isinstance(losses, Tensor):
        values = losses.detach().to("cpu", torch.float64).reshape(-1)
    else:
        plain = [loss.item() if isinstance(loss, Tensor) else loss for loss in losses]
        values = torch.tensor(plain, dtype=torch.float64)
    if len(values) != size:
        raise InvalidValueError(f"{len(values)} loss values given for {size} gradients: give one each")
    return values

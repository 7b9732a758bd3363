"""The training methods by name: how each turns the losses of a step into an update."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from octavo_core.errors import InvalidValueError, MissingDependencyError
from torch import Tensor

from octavo_config_grad.aggregators import Aggregator, ConFIG
from octavo_config_grad.baselines import IMTLG, MGDA, PCGrad, Sum
from octavo_config_grad.gradients import per_loss_gradients
from octavo_config_grad.gramian import weighted_sum
from octavo_config_grad.interop import from_torchjd
from octavo_config_grad.loss_weights import (
    DWA,
    LRA,
    RLW,
    GradNorm,
    LossWeighting,
    MinMax,
    ReLoBRaLo,
    UncertaintyWeighting,
)
from octavo_config_grad.momentum import MConFIG
from octavo_config_grad.optimizer import ConFIGOptimizer
from octavo_config_grad.pinn.dual_cone import dual_cone_projector

__all__ = ["AGGREGATORS", "METHODS", "Stepper", "make_aggregator", "make_stepper"]

LossFunction = Callable[[int], Tensor]
"""Evaluates the loss of an index on fresh data, with a graph."""

_AGGREGATORS: dict[str, Callable[[], Aggregator]] = {"sum": Sum, "pcgrad": PCGrad, "imtl-g": IMTLG, "mgda": MGDA}
_TORCHJD = ("upgrad", "dualproj", "aligned-mtl", "cagrad", "nash-mtl")
AGGREGATORS: tuple[str, ...] = ("config", *_AGGREGATORS, *_TORCHJD)
"""Names that ``make_aggregator`` takes."""

_WEIGHTINGS: dict[str, Callable[[int, int], LossWeighting]] = {
    "lra": lambda num_losses, seed: LRA(num_losses),
    "relobralo": lambda num_losses, seed: ReLoBRaLo(num_losses, seed=seed),
    "minmax": lambda num_losses, seed: MinMax(num_losses),
    "uncertainty": lambda num_losses, seed: UncertaintyWeighting(num_losses),
    "dwa": lambda num_losses, seed: DWA(num_losses),
    "rlw": lambda num_losses, seed: RLW(num_losses, seed=seed),
    "gradnorm": lambda num_losses, seed: GradNorm(num_losses),
}

METHODS: dict[str, str] = {
    "adam": "Adam on the sum of the losses",
    "config": "Adam on the ConFIG update",
    "m-config": "M-ConFIG: ConFIG of momenta, one loss refreshed a step",
    "pcgrad": "Adam on the PCGrad update",
    "imtl-g": "Adam on the IMTL-G update",
    "mgda": "Adam on the MGDA update",
    "m-pcgrad": "PCGrad of momenta",
    "m-imtl-g": "IMTL-G of momenta",
    "upgrad": "Adam on the UPGrad update (torchjd)",
    "dualproj": "Adam on the DualProj update (torchjd)",
    "aligned-mtl": "Adam on the Aligned-MTL update (torchjd)",
    "cagrad": "Adam on the CAGrad update (torchjd)",
    "nash-mtl": "Adam on the Nash-MTL update (torchjd)",
    "lra": "Adam with learning-rate annealing of loss weights",
    "relobralo": "Adam with relative loss balancing",
    "minmax": "Adam with loss weights that ascend",
    "uncertainty": "Adam with uncertainty weighting",
    "dwa": "Adam with dynamic weight averaging",
    "rlw": "Adam with random loss weights",
    "gradnorm": "Adam with GradNorm",
}
"""Methods by name, with a line of explanation."""


class Stepper:
    """One training method at work.

    Args:
        optimizer: The optimizer whose parameter groups hold the learning rate.
        passes_per_step: Single-loss backward passes of a step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, passes_per_step: int) -> None:
        self.optimizer = optimizer
        self.passes_per_step = passes_per_step

    def step(self) -> None:
        """Evaluate losses, differentiate them and update the parameters."""
        raise NotImplementedError

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next step.

        Args:
            lr: The rate.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs, except the parameters.

        Returns:
            Nested mapping of tensors and numbers.
        """
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state.

        Args:
            state: What :meth:`state_dict` returned.
        """
        self.optimizer.load_state_dict(state["optimizer"])


class _CombinedStepper(Stepper):
    """Every loss differentiated each step, gradients combined by an aggregator, Adam on the result."""

    def __init__(self, optimizer: ConFIGOptimizer, loss: LossFunction, num_losses: int) -> None:
        super().__init__(optimizer, num_losses)
        self._combined = optimizer
        self._closures = [_closure(loss, index) for index in range(num_losses)]

    def step(self) -> None:
        self._combined.step(self._closures)


class _MomentumStepper(Stepper):
    """Momenta of all losses combined, a few refreshed each step."""

    def __init__(self, optimizer: MConFIG, loss: LossFunction, num_losses: int, updates_per_step: int) -> None:
        super().__init__(optimizer, updates_per_step)
        self._momentum = optimizer
        self._closures = [_closure(loss, index) for index in range(num_losses)]

    def step(self) -> None:
        self._momentum.step({index: self._closures[index] for index in self._momentum.next_losses()})


class _SummedStepper(Stepper):
    """Adam on the sum of the losses, in one sweep through all graphs; weighted where a weighting is given."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        loss: LossFunction,
        num_losses: int,
        weighting: LossWeighting | None = None,
        clip: float | int | None = None,
    ) -> None:
        super().__init__(optimizer, num_losses)
        self._loss = loss
        self._weighting = weighting
        self._clip = clip
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def step(self) -> None:
        losses = [self._loss(index) for index in range(self.passes_per_step)]
        stacked = torch.stack(losses)
        if self._weighting is None:
            gradients = torch.autograd.grad(stacked.sum(), self._parameters, materialize_grads=True)
        elif self._weighting.needs_gradients:
            rows = per_loss_gradients(losses, self._parameters)
            weights = self._weighting.weights(stacked.detach(), rows)
            gradients = weighted_sum(rows, weights)
        else:
            weights = self._weighting.weights(stacked.detach())
            total = (weights.to(stacked) * stacked).sum()
            gradients = torch.autograd.grad(total, self._parameters, materialize_grads=True)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        weighting = {} if self._weighting is None else {"weighting": self._weighting.state_dict()}
        return {**super().state_dict(), **weighting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self._weighting is not None:
            self._weighting.load_state_dict(state["weighting"])


def make_aggregator(
    name: str, num_losses: int, *, length: str | int = "projection", rank_policy: str = "lstsq"
) -> Aggregator:
    """Make an aggregator by its method's name.

    Args:
        name: ``"config"``, ``"sum"``, ``"pcgrad"``, ``"imtl-g"``, ``"mgda"``, or one of torchjd's: ``"upgrad"``,
            ``"dualproj"``, ``"aligned-mtl"``, ``"cagrad"``, ``"nash-mtl"``.
        num_losses: Number of losses.
        length: Length model of ConFIG.
        rank_policy: Rank policy of ConFIG.

    Returns:
        The aggregator.

    Raises:
        InvalidValueError: If the name or an option is unknown.
        MissingDependencyError: If the method needs torchjd, or torchjd an extra of its own, and it is not installed.
    """
    if name == "config":
        return ConFIG(length=length, rank_policy=rank_policy)
    if name in _AGGREGATORS:
        return _AGGREGATORS[name]()
    if name in _TORCHJD:
        return from_torchjd(_torchjd_aggregator(name, num_losses))
    raise InvalidValueError(f"unknown aggregator {name!r}; give one of {', '.join(AGGREGATORS)}")


def make_stepper(
    method: str,
    loss: LossFunction,
    num_losses: int,
    parameters: Iterable[Tensor],
    *,
    lr: float = 1e-3,
    updates_per_step: int = 1,
    length: str | int = "projection",
    rank_policy: str = "lstsq",
    clip: float | int | None = None,
    seed: int = 0,
) -> Stepper:
    """Set a method to work on some losses.

    Args:
        method: A name in ``METHODS``.
        loss: Evaluates the loss of an index.
        num_losses: Number of losses.
        parameters: Parameters to train.
        lr: Learning rate.
        updates_per_step: Losses that the momentum methods refresh in a step, at most ``num_losses``.
        length: Length model of ConFIG.
        rank_policy: Rank policy of ConFIG.
        clip: Largest norm of the combined gradient; the momentum methods have no gradient to clip.
        seed: Seed of the methods that draw.

    Returns:
        The method at work.

    Raises:
        InvalidValueError: If the method is unknown or an option out of range.
        MissingDependencyError: If the method needs a package that is not installed.
    """
    if method not in METHODS:
        raise InvalidValueError(f"unknown method {method!r}; give one of {', '.join(METHODS)}")
    trained = list(parameters)
    if method.startswith("m-"):
        base = method.removeprefix("m-")
        aggregator = make_aggregator(base, num_losses, length=length, rank_policy=rank_policy)
        optimizer = MConFIG(trained, num_losses, lr=lr, updates_per_step=updates_per_step, aggregator=aggregator)
        return _MomentumStepper(optimizer, loss, num_losses, updates_per_step)
    adam = torch.optim.Adam(trained, lr=lr, fused=trained[0].device.type in {"cpu", "cuda"})
    if method == "adam":
        return _SummedStepper(adam, loss, num_losses, clip=clip)
    if method in _WEIGHTINGS:
        return _SummedStepper(adam, loss, num_losses, _WEIGHTINGS[method](num_losses, seed), clip)
    aggregator = make_aggregator(method, num_losses, length=length, rank_policy=rank_policy)
    return _CombinedStepper(ConFIGOptimizer(adam, aggregator, clip=clip), loss, num_losses)


def _closure(loss: LossFunction, index: int) -> Callable[[], Tensor]:
    return lambda: loss(index)


def _torchjd_aggregator(name: str, num_losses: int) -> Any:
    try:
        from torchjd import aggregation
    except ModuleNotFoundError as error:
        raise MissingDependencyError.for_extra("torchjd", "octavo-config-grad", "torchjd") from error
    try:
        match name:
            case "upgrad":
                return aggregation.UPGrad(projector=dual_cone_projector())
            case "dualproj":
                return aggregation.DualProj(projector=dual_cone_projector())
            case "aligned-mtl":
                return aggregation.AlignedMTL()
            case "cagrad":
                return aggregation.CAGrad(c=0.5)
            case _:
                return aggregation.NashMTL(n_tasks=num_losses)
    except ImportError as error:
        raise MissingDependencyError(f"{name!r} needs an extra of torchjd: {error}") from error

"""Loss-weighting baselines: rules that scale the losses before they are summed.

Each is an object with ``weights(losses, gradients=None)``, to be called once per training step; the weights go on the
losses (``(weights * losses).sum().backward()``) or on their gradients. All arithmetic on the m weights is in float64.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float64
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_config_grad.gramian import Gradients

__all__ = ["DWA", "LRA", "RLW", "GradNorm", "LossWeighting", "MinMax", "ReLoBRaLo", "UncertaintyWeighting"]

# Stands for a loss that has reached zero where the formulas divide by it.
_TINY = 1e-30


class LossWeighting:
    """Base of the weighting rules: checks its input and knows its state.

    A subclass implements ``_weights`` and keeps its state in float64 tensors, integers and generators that ``_state``
    names, and its own optimizer, if any, in ``_optimizer``.

    Args:
        num_losses: Number of losses m, at least 1.

    Attributes:
        needs_gradients: Whether ``weights`` needs the gradients of the losses.

    Raises:
        InvalidValueError: If ``num_losses`` is below 1.
    """

    needs_gradients = False
    _state: tuple[str, ...] = ()
    _optimizer: torch.optim.Optimizer | None = None

    def __init__(self, num_losses: int) -> None:
        if num_losses < 1:
            raise InvalidValueError(f"num_losses={num_losses}; give at least 1")
        self.num_losses = num_losses

    @torch.no_grad()
    def weights(self, losses: Tensor, gradients: Gradients | None = None) -> Tensor:
        """Weights for this step; advances the state of the rule.

        Args:
            losses: Present losses (m,), finite.
            gradients: For rules with ``needs_gradients``: the gradients of the unweighted losses, a matrix (m, N) or m
                lists of tensors.

        Returns:
            Weights (m,) with the dtype and device of ``losses``, without a graph.

        Raises:
            InvalidValueError: If there are not m losses, one is not finite, or gradients are needed and missing.
        """
        if tuple(losses.shape) != (self.num_losses,):
            raise InvalidValueError(f"losses has shape {tuple(losses.shape)}; give one vector ({self.num_losses},)")
        values = losses.detach().to("cpu", torch.float64)
        if not bool(values.isfinite().all()):
            index = int((~values.isfinite()).nonzero()[0])
            raise InvalidValueError(
                f"loss {index} is {float(values[index])}; {type(self).__name__} needs finite losses"
            )
        rows: list[list[Tensor]] = []
        if self.needs_gradients:
            if gradients is None or len(gradients) != self.num_losses:
                count = "none" if gradients is None else len(gradients)
                raise InvalidValueError(
                    f"{type(self).__name__} needs the gradients of {self.num_losses} losses, got {count}; pass "
                    "gradients=per_loss_gradients(losses, parameters)"
                )
            rows = [[row] if isinstance(row, Tensor) else [g for g in row if g is not None] for row in gradients]
        return self._weights(values, rows).to(losses)

    def _weights(self, losses: Float64[Tensor, " losses"], gradients: list[list[Tensor]]) -> Tensor:
        raise NotImplementedError

    def _learn(self, parameter: Tensor, gradient: Tensor) -> None:
        assert self._optimizer is not None
        parameter.grad = gradient
        self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state: tensors and numbers only."""
        state: dict[str, Any] = {}
        for name in self._state:
            value = getattr(self, name)
            if isinstance(value, torch.Generator):
                value = value.get_state()
            state[name] = value.clone() if isinstance(value, Tensor) else value
        if self._optimizer is not None:
            state["optimizer"] = self._optimizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        Args:
            state: The state.

        Raises:
            InvalidValueError: If it belongs to another rule or another number of losses.
        """
        expected = {*self._state, *(["optimizer"] if self._optimizer is not None else [])}
        if set(state) != expected:
            raise InvalidValueError(
                f"the state has {sorted(state)}, {type(self).__name__} expects {sorted(expected)}; load the state of "
                "the same rule"
            )
        for name in self._state:
            own, saved = getattr(self, name), state[name]
            if isinstance(own, Tensor) and own.shape != saved.shape:
                raise InvalidValueError(
                    f"the saved {name} has shape {tuple(saved.shape)}, {type(self).__name__} expects "
                    f"{tuple(own.shape)}; build it for the same number of losses"
                )
        for name in self._state:
            own, saved = getattr(self, name), state[name]
            if isinstance(own, torch.Generator):
                own.set_state(saved.cpu())
            elif isinstance(own, Tensor):
                own.copy_(saved)
            else:
                setattr(self, name, saved)
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state["optimizer"])


class LRA(LossWeighting):
    """Learning-rate annealing: every loss's mean gradient is brought to the largest entry of a reference's.

    ``what_i = max|g_0| / mean|g_i|``, ``w_i = beta w_i + (1 - beta) what_i``, with ``w_0 = 1`` for the reference.

    Args:
        num_losses: Number of losses m.
        beta: Decay of the moving average, in [0, 1).
        reference: Index of the reference loss, the PDE residual in a PINN.

    Raises:
        InvalidValueError: If an argument is out of range.

    Source:
        Wang, Teng, Perdikaris, "Understanding and mitigating gradient flow pathologies in physics-informed neural
        networks", SIAM J. Sci. Comput. 2021, Algorithm 1. beta = 0.999 is what the ConFIG study trains with (0.9 is the
        default of its class).
    """

    needs_gradients = True
    _state = ("_average",)

    def __init__(self, num_losses: int, *, beta: float | int = 0.999, reference: int = 0) -> None:
        super().__init__(num_losses)
        _check_fraction("beta", beta, open_end=True)
        if not 0 <= reference < num_losses:
            raise InvalidValueError(f"reference={reference} is out of range; give 0 to {num_losses - 1}")
        self.beta = beta
        self.reference = reference
        self._average = torch.ones(num_losses, dtype=torch.float64)

    def _weights(self, losses: Float64[Tensor, " losses"], gradients: list[list[Tensor]]) -> Tensor:
        largest = max(float(gradient.abs().max()) for gradient in gradients[self.reference] if gradient.numel())
        for index, row in enumerate(gradients):
            mean = sum(float(g.abs().sum(dtype=torch.float64)) for g in row) / sum(g.numel() for g in row)
            # A loss without gradient keeps its weight: no weight would change its effect.
            if index != self.reference and mean > 0.0:
                self._average[index] = self.beta * self._average[index] + (1.0 - self.beta) * largest / mean
        return self._average.clone()


class ReLoBRaLo(LossWeighting):
    """Relative loss balancing with random lookback: weight for losses that have fallen least.

    With ``bal(t, t') = m softmax_i(L_i(t) / (tau L_i(t')))``:
    ``w = alpha (rho w + (1 - rho) bal(t, 0)) + (1 - alpha) bal(t, t - 1)``, ``rho ~ Bernoulli(expected_rho)``. The
    first call returns ones.

    Args:
        num_losses: Number of losses m.
        alpha: Decay of the moving average, in [0, 1].
        tau: Temperature, > 0; small values favour the slowest loss more.
        expected_rho: Probability of looking back at the last step instead of the first, in [0, 1].
        seed: Seed of the draws.

    Raises:
        InvalidValueError: If an argument is out of range.

    Source:
        Bischof, Kraus, "Multi-objective loss balancing for physics-informed deep learning", 2021, with the constants of
        the ConFIG study: alpha = 0.999, tau = 0.1, E[rho] = 0.999.
    """

    _state = ("_average", "_first", "_last", "_count", "_generator")

    def __init__(
        self,
        num_losses: int,
        *,
        alpha: float | int = 0.999,
        tau: float | int = 0.1,
        expected_rho: float | int = 0.999,
        seed: int = 0,
    ) -> None:
        super().__init__(num_losses)
        _check_fraction("alpha", alpha)
        _check_fraction("expected_rho", expected_rho)
        _check_positive("tau", tau)
        self.alpha = alpha
        self.tau = tau
        self.expected_rho = expected_rho
        self._average = torch.ones(num_losses, dtype=torch.float64)
        self._first = torch.ones(num_losses, dtype=torch.float64)
        self._last = torch.ones(num_losses, dtype=torch.float64)
        self._count = 0
        self._generator = torch.Generator().manual_seed(seed)

    def _weights(self, losses: Float64[Tensor, " losses"], gradients: list[list[Tensor]]) -> Tensor:
        if self._count == 0:
            self._first.copy_(losses)
        else:
            draw = torch.rand((), generator=self._generator, dtype=torch.float64)
            kept = self._average if float(draw) < self.expected_rho else self._balance(losses, self._first)
            self._average = self.alpha * kept + (1.0 - self.alpha) * self._balance(losses, self._last)
        self._last.copy_(losses)
        self._count += 1
        return self._average.clone()

    def _balance(self, losses: Tensor, earlier: Tensor) -> Tensor:
        return self.num_losses * torch.softmax(losses / (self.tau * earlier.clamp_min(_TINY)), 0)


class MinMax(LossWeighting):
    """Weights that ascend the weighted sum of the losses while the network descends it.

    ``w = m softmax(z)``; z climbs ``sum_i w_i L_i`` by Adam. The weights returned are those before the ascent step, so
    that network and weights move from the same point.

    Args:
        num_losses: Number of losses m.
        lr: Learning rate of the ascent, > 0.

    Raises:
        InvalidValueError: If an argument is out of range.

    Source:
        Liu, Wang, "A dual-dimer method for training physics-constrained neural networks with minimax architecture",
        Neural Networks 2021; Adam with 1e-3 as in the ConFIG study, whose code returns z itself; weights of mean 1 are
        meant.
    """

    _state = ("_logits",)

    def __init__(self, num_losses: int, *, lr: float | int = 1e-3) -> None:
        super().__init__(num_losses)
        _check_positive("lr", lr)
        self._logits = torch.zeros(num_losses, dtype=torch.float64)
        self._optimizer = torch.optim.Adam([self._logits], lr=lr, maximize=True)

    def _weights(self, losses: Float64[Tensor, " losses"], gradients: list[list[Tensor]]) -> Tensor:
        shares = torch.softmax(self._logits, 0)
        self._learn(self._logits, self.num_losses * shares * (losses - shares @ losses))
        return self.num_losses * shares


class UncertaintyWeighting(LossWeighting):
    """Homoscedastic uncertainty: every loss has a learned variance.

    ``w_i = exp(-s_i) / 2``; the log-variances s descend ``sum_i (exp(-s_i) L_i + s_i) / 2`` by Adam, from 0. The
    weights returned are those before that step.

    Args:
        num_losses: Number of losses m.
        lr: Learning rate of the log-variances, > 0.

    Raises:
        InvalidValueError: If an argument is out of range.

    Source:
        Kendall, Gal, Cipolla, "Multi-task learning using uncertainty to weigh losses", CVPR 2018, Eq. 7.
    """

    _state = ("_log_variances",)

    def __init__(self, num_losses: int, *, lr: float | int = 1e-3) -> None:
        super().__init__(num_losses)
        _check_positive("lr", lr)
        self._log_variances = torch.zeros(num_losses, dtype=torch.float64)
        self._optimizer = torch.optim.Adam([self._log_variances], lr=lr)

    def _weights(self, losses: Float64[Tensor, " losses"], gradients: list[list[Tensor]]) -> Tensor:
        weights = 0.5 * torch.exp(-self._log_variances)
        self._learn(self._log_variances, 0.5 - weights * losses)
        return weights


class DWA(LossWeighting):
    """Dynamic weight average: weight for losses that fell least from the last period but one to the last.

    ``w = m softmax_i(L_i(t - 1) / (T L_i(t - 2)))``; ones during the first two periods.

    Args:
        num_losses: Number of losses m.
        temperature: T > 0; large values even the weights out.
        period: Calls over which losses are averaged, at least 1. The source averages over an epoch: give the number of
            steps of one.

    Raises:
        InvalidValueError: If an argument is out of range.

    Source:
        Liu, Johns, Davison, "End-to-end multi-task learning with attention", CVPR 2019, Eq. 7; T = 2 as there.
    """

    _state = ("_sum", "_last", "_before", "_count")

    def __init__(self, num_losses: int, *, temperature: float | int = 2.0, period: int = 1) -> None:
        super().__init__(num_losses)
        _check_positive("temperature", temperature)
        if period < 1:
            raise InvalidValueError(f"period={period}; give at least 1")
        self.temperature = temperature
        self.period = period
        self._sum = torch.zeros(num_losses, dtype=torch.float64)
        self._last = torch.ones(num_losses, dtype=torch.float64)
        self._before = torch.ones(num_losses, dtype=torch.float64)
        self._count = 0

    def _weights(self, losses: Float64[Tensor, " losses"], gradients: list[list[Tensor]]) -> Tensor:
        weights = torch.ones(self.num_losses, dtype=torch.float64)
        if self._count >= 2 * self.period:
            ratios = self._last / self._before.clamp_min(_TINY)
            weights = self.num_losses * torch.softmax(ratios / self.temperature, 0)
        self._sum += losses
        self._count += 1
        if self._count % self.period == 0:
            self._before.copy_(self._last)
            self._last.copy_(self._sum / self.period)
            self._sum.zero_()
        return weights


class RLW(LossWeighting):
    """Random loss weighting: ``w = softmax(z)``, z drawn anew from a standard normal at every call; the sum is 1.

    Args:
        num_losses: Number of losses m.
        seed: Seed of the draws.

    Source:
        Lin, Ye, Zhang, Tsang, "Reasonable effectiveness of random weighting", TMLR 2022.
    """

    _state = ("_generator",)

    def __init__(self, num_losses: int, *, seed: int = 0) -> None:
        super().__init__(num_losses)
        self._generator = torch.Generator().manual_seed(seed)

    def _weights(self, losses: Float64[Tensor, " losses"], gradients: list[list[Tensor]]) -> Tensor:
        return torch.softmax(torch.randn(self.num_losses, generator=self._generator, dtype=torch.float64), 0)


class GradNorm(LossWeighting):
    """Gradient normalisation: weighted gradient norms follow the relative training rates of the losses.

    With ``G_i = w_i |g_i|`` and ``r_i = (L_i / L_i(0)) / mean_j(L_j / L_j(0))``, w descends
    ``sum_i |G_i - mean_j(G_j) r_i^alpha|`` (targets held fixed) by Adam, and is scaled to sum to m. The weights
    returned are those before that step.

    Args:
        num_losses: Number of losses m.
        alpha: Strength with which slow losses are pulled up, >= 0.
        lr: Learning rate of the weights, > 0.

    Raises:
        InvalidValueError: If an argument is out of range.

    Source:
        Chen, Badrinarayanan, Lee, Rabinovich, "GradNorm", ICML 2018, Algorithm 1; alpha = 1.5 and 0.025 as there.
    """

    needs_gradients = True
    _state = ("_current", "_first", "_count")

    def __init__(self, num_losses: int, *, alpha: float | int = 1.5, lr: float | int = 0.025) -> None:
        super().__init__(num_losses)
        if not 0.0 <= alpha < math.inf:
            raise InvalidValueError(f"alpha={alpha}; give a finite number >= 0")
        _check_positive("lr", lr)
        self.alpha = alpha
        self._current = torch.ones(num_losses, dtype=torch.float64)
        self._first = torch.ones(num_losses, dtype=torch.float64)
        self._count = 0
        self._optimizer = torch.optim.Adam([self._current], lr=lr)

    def _weights(self, losses: Float64[Tensor, " losses"], gradients: list[list[Tensor]]) -> Tensor:
        if self._count == 0:
            self._first.copy_(losses)
        self._count += 1
        weights = self._current.clone()
        norms = torch.tensor([_norm(row) for row in gradients], dtype=torch.float64)
        progress = losses / self._first.clamp_min(_TINY)
        rates = progress / progress.mean().clamp_min(_TINY)
        weighted = weights * norms
        self._learn(self._current, norms * torch.sign(weighted - weighted.mean() * rates**self.alpha))
        # Adam may step past zero, where a weight would turn its loss's descent into ascent.
        self._current.clamp_min_(1e-6)
        self._current *= self.num_losses / self._current.sum()
        return weights


def _norm(row: list[Tensor]) -> float:
    return math.hypot(*[float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) for gradient in row])


def _check_fraction(name: str, value: float | int, *, open_end: bool = False) -> None:
    if not (0.0 <= value < 1.0 or (value == 1.0 and not open_end)):
        raise InvalidValueError(f"{name}={value}; give a number in [0, 1{')' if open_end else ']'}")


def _check_positive(name: str, value: float | int) -> None:
    if not 0.0 < value < math.inf:
        raise InvalidValueError(f"{name}={value}; give a finite number > 0")

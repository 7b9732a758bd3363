"""Policy and critics: multilayer perceptrons that take the preference as a bias of their first layer.

Small networks spend their time in the calls of a framework, not in arithmetic. So the parameters of a network are one
vector (one call for the target's average, a copy for a snapshot), several critics are one batched product, and forward
and backward of a network, and of the squashed Gaussian, are one node of the autograd graph each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["ActionScaling", "DeterministicPolicy", "GaussianPolicy", "StackedMLP", "tanh_gaussian"]

_LOG_STD_RANGE = (-20.0, 2.0)
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
# Inside the logarithm of the tanh correction, as in the reference code.
_CORRECTION = 1e-6


class StackedMLP(nn.Module):
    """Several perceptrons of one shape with ReLU, evaluated together on the same input.

    All parameters are views of one vector, ``flat``.

    Args:
        inputs: Width of the input without the preference.
        hidden: Widths of the hidden layers.
        outputs: Width of the output.
        members: How many perceptrons.
        preferences: Length of the preference; 0 for none.
        generator: Draws the weights (Xavier uniform; biases are zero).
        device: Device of the weights.
        dtype: Precision of the weights.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        members: int = 1,
        preferences: int = 0,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.inputs, self.hidden, self.outputs = inputs, tuple(hidden), outputs
        self.members, self.preferences = members, preferences
        sizes = [inputs + preferences, *hidden, outputs]
        # The members' first layers lie side by side: one product with the input that they share.
        self._shapes: list[tuple[int, ...]] = [
            (inputs, members * hidden[0]),
            (preferences, members * hidden[0]),
            (members * hidden[0],),
        ]
        for fan_in, fan_out in itertools.pairwise(sizes[1:]):
            self._shapes += [(members, fan_in, fan_out), (members, 1, fan_out)]
        total = sum(math.prod(shape) for shape in self._shapes)
        self.flat = nn.Parameter(torch.zeros(total, device=device, dtype=dtype))
        self.parts = self.views(self.flat.detach())
        # Drawn on the CPU in float64: the same seed gives the same network on every device.
        for index, (part, shape) in enumerate(zip(self.parts, self._shapes, strict=True)):
            if index >= 2 and index % 2 == 0:  # a bias
                continue
            fan_in, fan_out = (sizes[0], sizes[1]) if len(shape) == 2 else shape[1:]
            draw = torch.rand(shape, dtype=torch.float64, generator=generator) * 2 - 1
            part.copy_(draw * math.sqrt(6 / (fan_in + fan_out)))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the views, which copying and pickling would separate from ``flat``."""
        return {name: value for name, value in vars(self).items() if name != "parts"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Cut the views anew."""
        super().__setstate__(state)
        self.parts = self.views(self.flat.detach())

    def views(self, flat: Float[Tensor, " parameters"]) -> list[Tensor]:
        """Cut a vector of parameters, or of their gradients, into layers.

        Args:
            flat: The vector.

        Returns:
            First weights, preference weights and bias, then weights and bias of each further layer.
        """
        pieces = flat.split([math.prod(shape) for shape in self._shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def forward(
        self,
        x: Float[Tensor, "batch inputs"],
        preference: Float[Tensor, "*rows objectives"] | None = None,
        *,
        frozen: bool = False,
    ) -> Float[Tensor, "members batch outputs"]:
        """Evaluate.

        Args:
            x: Inputs.
            preference: One preference for all rows, or one for each.
            frozen: Let gradients reach the input and not the parameters.

        Returns:
            The outputs of each member.
        """
        flat = self.flat.detach() if frozen else self.flat
        if torch.is_grad_enabled() and (flat.requires_grad or x.requires_grad):
            return _Perceptrons.apply(flat, x, preference, self)
        return _evaluate(self.parts, x, preference, self.members)[-1]

    def forward_each(
        self, x: Float[Tensor, "batch inputs"], preferences: Float[Tensor, "sets objectives"]
    ) -> Float[Tensor, "sets members batch outputs"]:
        """Evaluate every row with every preference; gradients reach the input and not the parameters.

        Args:
            x: Inputs.
            preferences: The preferences.

        Returns:
            The outputs by preference and member.
        """
        rows = x.expand(len(preferences), *x.shape).flatten(0, 1)
        outputs = self(rows, preferences.repeat_interleave(len(x), 0), frozen=True)
        return outputs.unflatten(1, (len(preferences), len(x))).transpose(0, 1)

    def copy(self) -> StackedMLP:
        """Return a copy that is not trained.

        Returns:
            The copy.
        """
        twin = StackedMLP(
            self.inputs,
            self.hidden,
            self.outputs,
            members=self.members,
            preferences=self.preferences,
            device=self.flat.device,
            dtype=self.flat.dtype,
        )
        twin.flat.requires_grad_(False).copy_(self.flat.detach())
        return twin


def _evaluate(parts: list[Tensor], x: Tensor, preference: Tensor | None, members: int) -> list[Tensor]:
    """Activations of the hidden layers and the output."""
    first, first_preference, bias = parts[:3]
    if preference is None or not len(first_preference):
        hidden = torch.addmm(bias, x, first)
    elif preference.dim() == 1:
        hidden = torch.addmm(torch.addmv(bias, first_preference.t(), preference), x, first)
    else:
        hidden = torch.addmm(bias, preference, first_preference).addmm_(x, first)
    hidden = hidden.relu_()
    if members > 1:
        hidden = hidden.view(len(x), members, -1).transpose(0, 1)
    activations = [hidden]
    last = len(parts) - 2
    for index in range(3, len(parts), 2):
        weight, bias = parts[index], parts[index + 1]
        if members > 1:
            hidden = torch.baddbmm(bias, hidden, weight)
        else:
            hidden = torch.addmm(bias.view(-1), hidden, weight.view(weight.shape[1:]))
        activations.append(hidden.relu_() if index < last else hidden)
    if members == 1:
        activations[-1] = activations[-1].unsqueeze(0)
    return activations


class _Perceptrons(torch.autograd.Function):
    """Forward and backward of a :class:`StackedMLP` by hand."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, x: Tensor, preference: Tensor | None, network: StackedMLP) -> Tensor:
        *activations, output = _evaluate(network.parts, x, preference, network.members)
        # A copy of the weights is not kept: the graph must be used before the optimiser's step.
        ctx.save_for_backward(x, *activations)
        ctx.preference, ctx.network = preference, network
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        network: StackedMLP = ctx.network
        x, *activations = ctx.saved_tensors
        parts, members, gradient = network.parts, network.members, gradients[0]
        needs_flat, needs_x = ctx.needs_input_grad[:2]
        flat = torch.empty_like(network.flat) if needs_flat else None
        pieces = [] if flat is None else network.views(flat)
        if members == 1:
            gradient = gradient[0]
        for index in range(len(parts) - 2, 1, -2):
            weight, hidden = parts[index], activations[(index - 3) // 2]
            if members > 1:
                if pieces:
                    torch.bmm(hidden.transpose(1, 2), gradient, out=pieces[index])
                    torch.sum(gradient, 1, keepdim=True, out=pieces[index + 1])
                gradient = torch.bmm(gradient, weight.transpose(1, 2))
            else:
                if pieces:
                    torch.mm(hidden.t(), gradient, out=pieces[index].view(weight.shape[1:]))
                    torch.sum(gradient, 0, out=pieces[index + 1].view(-1))
                gradient = torch.mm(gradient, weight.view(weight.shape[1:]).t())
            gradient = torch.ops.aten.threshold_backward(gradient, hidden, 0)
        if members > 1:
            gradient = gradient.transpose(0, 1).reshape(len(x), -1)
        if pieces:
            torch.mm(x.t(), gradient, out=pieces[0])
            torch.sum(gradient, 0, out=pieces[2])
            if network.preferences:
                preference = ctx.preference
                if preference is None:
                    pieces[1].zero_()
                elif preference.dim() == 1:
                    torch.outer(preference, pieces[2], out=pieces[1])
                else:
                    torch.mm(preference.t(), gradient, out=pieces[1])
        return flat, torch.mm(gradient, parts[0].t()) if needs_x else None, None, None


class ActionScaling(NamedTuple):
    """How critics see actions: times ``scale``, plus ``shift``, by component.

    Args:
        shift: Added last.
        scale: Factor.
    """

    shift: Float[Tensor, " actions"]
    scale: Float[Tensor, " actions"]

    def join(
        self, obs: Float[Tensor, "batch observations"], actions: Float[Tensor, "batch actions"]
    ) -> Float[Tensor, "batch inputs"]:
        """Put observations and actions side by side.

        Args:
            obs: Observations as the networks see them.
            actions: Actions in [-1, 1].

        Returns:
            Input of the critics.
        """
        return torch.cat((obs, torch.addcmul(self.shift, actions, self.scale)), 1)


class _TanhGaussian(torch.autograd.Function):
    """Squashed Gaussian draw and its log-density, with both gradients by hand."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        scaled = log_std.exp().mul_(noise)
        action = (mean + scaled).tanh_()
        slope = torch.addcmul(torch.ones((), dtype=mean.dtype, device=mean.device), action, action, value=-1)
        terms = (slope + _CORRECTION).log_().add_(log_std).addcmul_(noise, noise, value=0.5)
        log_prob = terms.sum(-1, keepdim=True).add_(action.shape[-1] * _HALF_LOG_TWO_PI).neg_()
        ctx.save_for_backward(action, slope, scaled)
        return action, log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        action, slope, scaled = ctx.saved_tensors
        of_action, of_log_prob = gradients
        # d log pi / d u = 2 a (1 - a^2) / (1 - a^2 + c), where u is the draw before tanh.
        through = (action * slope).div_(slope + _CORRECTION).mul_(2 * of_log_prob).addcmul_(of_action, slope)
        return through, (through * scaled).sub_(of_log_prob), None


def tanh_gaussian(
    mean: Float[Tensor, "*batch actions"],
    log_std: Float[Tensor, "*batch actions"],
    noise: Float[Tensor, "*batch actions"],
) -> tuple[Float[Tensor, "*batch actions"], Float[Tensor, "*batch 1"]]:
    """Squash a Gaussian draw and return its log-density, differentiable in mean and log-deviation.

    Args:
        mean: Mean before tanh.
        log_std: Log-deviation before tanh.
        noise: Standard normal draw.

    Returns:
        Action in (-1, 1) and its log-density in nats, with the reference code's 1e-6 inside the correction.

    Source: section 4, as in soft actor-critic.
    """
    return _TanhGaussian.apply(mean, log_std, noise)


class GaussianPolicy(nn.Module):
    """Tanh-Gaussian policy with the preference as an input.

    Args:
        observations: Length of an observation.
        actions: Length of an action.
        hidden: Widths of the hidden layers.
        preferences: Length of the preference; 0 for none.
        generator: Draws the weights.
        device: Device of the weights.
        dtype: Precision of the weights.
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        preferences: int = 0,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.actions = actions
        self.network = StackedMLP(
            observations,
            hidden,
            2 * actions,
            preferences=preferences,
            generator=generator,
            device=device,
            dtype=dtype,
        )

    def forward(
        self, obs: Float[Tensor, "batch observations"], preference: Float[Tensor, "*rows objectives"] | None = None
    ) -> tuple[Float[Tensor, "batch actions"], Float[Tensor, "batch actions"]]:
        """Return mean and log-deviation of the Gaussian before tanh.

        Args:
            obs: Observations as the networks see them.
            preference: One preference for all rows, or one for each.

        Returns:
            Means, and log-deviations clamped to [-20, 2].
        """
        output = self.network(obs, preference)[0]
        return output[:, : self.actions], output[:, self.actions :].clamp(*_LOG_STD_RANGE)

    def rsample(
        self,
        obs: Float[Tensor, "batch observations"],
        preference: Float[Tensor, "*rows objectives"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[Float[Tensor, "batch actions"], Float[Tensor, "batch 1"]]:
        """Draw an action at each state, differentiable in the weights.

        Args:
            obs: Observations as the networks see them.
            preference: One preference for all rows, or one for each.
            generator: Draws the noise.

        Returns:
            Actions in (-1, 1) and their log-densities.
        """
        mean, log_std = self(obs, preference)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
        return tanh_gaussian(mean, log_std, noise)


class DeterministicPolicy(nn.Module):
    """Deterministic policy of TD3: tanh of a perceptron.

    Args:
        observations: Length of an observation.
        actions: Length of an action.
        hidden: Widths of the hidden layers.
        generator: Draws the weights.
        device: Device of the weights.
        dtype: Precision of the weights.
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        hidden: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.actions = actions
        self.network = StackedMLP(observations, hidden, actions, generator=generator, device=device, dtype=dtype)

    def forward(
        self, obs: Float[Tensor, "batch observations"], preference: Float[Tensor, "*rows objectives"] | None = None
    ) -> Float[Tensor, "batch actions"]:
        """Return the action at each state.

        Args:
            obs: Observations as the networks see them.
            preference: Not used; taken so that all policies are called alike.

        Returns:
            Actions in (-1, 1).
        """
        return self.network(obs)[0].tanh()

"""The tanh network of the study, and its derivatives by forward propagation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["MLP"]


class MLP(nn.Module):
    """Tanh network with a linear output, whose weights are one flat parameter.

    One flat parameter (weight, then bias, layer by layer) keeps the cost of optimizers and aggregators on small
    networks at one tensor operation each. The training of a PINN needs no others: Adam and ConFIG act element by
    element and on whole gradients.

    Args:
        sizes: Width of each layer, from the number of coordinates to the number of fields, e.g. ``(2, 20, 20, 1)``.
        generator: Source of the initial weights; a fresh one with seed 0 if None.
        dtype: Floating-point type.
        device: Device.

    Raises:
        InvalidValueError: If there are fewer than two sizes or one is below 1.

    Source:
        The paper's PINN study (its official training configurations): Xavier-normal weights of gain 1, biases 0.001.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__()
        if len(sizes) < 2 or min(sizes) < 1:
            raise InvalidValueError(f"network sizes {tuple(sizes)} must be two or more numbers, each at least 1")
        self.sizes = tuple(sizes)
        # Drawn on the CPU in float64, so that one seed gives the same network on every device and in every precision.
        generator = generator or torch.Generator().manual_seed(0)
        parts = []
        for inputs, outputs in pairwise(self.sizes):
            scale = math.sqrt(2.0 / (inputs + outputs))
            parts.append(torch.randn(inputs * outputs, generator=generator, dtype=torch.float64) * scale)
            parts.append(torch.full((outputs,), 1e-3, dtype=torch.float64))
        self.vector = nn.Parameter(torch.cat(parts).to(device=device, dtype=dtype))

    def forward(self, points: Float[Tensor, "points coordinates"]) -> Float[Tensor, "points fields"]:
        """Evaluate the network.

        Args:
            points: Points, one a row.

        Returns:
            Fields at the points.
        """
        layers = _layers(self.vector, self.sizes)
        values = points
        for weight, bias in layers[:-1]:
            values = torch.tanh(torch.addmm(bias, values, weight.t()))
        weight, bias = layers[-1]
        return torch.addmm(bias, values, weight.t())

    def derivatives(
        self, points: Float[Tensor, "points coordinates"], first: Sequence[int] = (), second: Sequence[int] = ()
    ) -> Float[Tensor, "fields blocks points"]:
        """Evaluate the fields with first and pure second derivatives in one forward sweep.

        Each layer carries ``z``, ``dz/dx_i`` and ``d2z/dx_i^2`` side by side (second-order forward mode), so the cost
        grows with the number of derivatives, not with the number of fields. Differentiable once with respect to the
        weights; the points get no gradient.

        Args:
            points: Points, one a row.
            first: Coordinates to differentiate by once.
            second: Coordinates to differentiate by twice; they must be the leading entries of ``first``.

        Returns:
            Blocks in the order values, first derivatives as in ``first``, second derivatives as in ``second``.

        Raises:
            InvalidValueError: If ``second`` does not lead ``first``.

        Source:
            Beyond the paper, which nests reverse mode; the same numbers (see the tests) for less time.
        """
        if tuple(first[: len(second)]) != tuple(second):
            raise InvalidValueError(f"second={tuple(second)} must be the leading entries of first={tuple(first)}")
        return _ForwardSweep.apply(self.vector, points, self.sizes, tuple(first), len(second))

    def to_sequential(self) -> nn.Sequential:
        """Copy the network into ordinary layers.

        Returns:
            ``nn.Sequential`` of ``nn.Linear`` and ``nn.Tanh`` with the same weights, for use without this package.
        """
        modules: list[nn.Module] = []
        for weight, bias in _layers(self.vector.detach(), self.sizes):
            outputs, inputs = weight.shape
            linear = nn.Linear(inputs, outputs, device=weight.device, dtype=weight.dtype)
            with torch.no_grad():
                linear.weight.copy_(weight)
                linear.bias.copy_(bias)
            modules += [linear, nn.Tanh()]
        return nn.Sequential(*modules[:-1])


def _layers(vector: Tensor, sizes: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each layer, as views of the flat vector."""
    lengths = [length for inputs, outputs in pairwise(sizes) for length in (inputs * outputs, outputs)]
    parts = iter(vector.split(lengths))
    return [(next(parts).view(outputs, inputs), next(parts)) for inputs, outputs in pairwise(sizes)]


class _ForwardSweep(torch.autograd.Function):
    """Jets through the layers, with a hand-written reverse pass: autograd would store and launch three times as much.

    With ``a = tanh(z)`` and ``s = 1 - a^2``: ``a' = s z'`` and ``a'' = s z'' - 2 a s z'^2``. Tensors are laid out as
    (width, blocks, points) with blocks value | first | second, so that each layer is one matrix product. Both passes
    count operations: on the small networks of PINNs launching them is half the cost.
    """

    @staticmethod
    def forward(
        ctx: Any, vector: Tensor, points: Tensor, sizes: tuple[int, ...], first: tuple[int, ...], num_second: int
    ) -> Tensor:
        num_points, num_first = points.shape[0], len(first)
        blocks = 1 + num_first + num_second
        columns = blocks * num_points
        layers = _layers(vector, sizes)
        states: list[tuple[Tensor, Tensor, Tensor]] = []
        for index, (weight, bias) in enumerate(layers):
            width, inputs = weight.shape
            if index > 0:
                jet = torch.mm(weight, states[-1][1].view(inputs, columns)).view(width, blocks, num_points)
                jet[:, 0].add_(bias.unsqueeze(1))
            elif num_first:
                jet = vector.new_zeros(width, blocks, num_points)
                jet[:, 0] = torch.addmm(bias.unsqueeze(1), weight, points.t())
                jet[:, 1 : 1 + num_first] = weight[:, first].unsqueeze(2)
            else:
                jet = torch.addmm(bias.unsqueeze(1), weight, points.t()).unsqueeze(1)
            if index == len(layers) - 1:
                break
            activated = torch.empty_like(jet)
            value = torch.tanh(jet[:, 0], out=activated[:, 0])
            slope = 1 - value * value
            if num_first:
                derivatives = torch.mul(jet[:, 1:], slope.unsqueeze(1), out=activated[:, 1:])
                if num_second:
                    curvature = derivatives[:, :num_second] * jet[:, 1 : 1 + num_second]
                    derivatives[:, num_first:].sub_(curvature.mul_(value.unsqueeze(1)), alpha=2)
            states.append((jet, activated, slope))
        ctx.save_for_backward(vector, points)
        ctx.layers, ctx.states, ctx.first, ctx.num_second = layers, states, first, num_second
        return jet

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *output_gradients: Tensor) -> tuple[Tensor | None, ...]:
        vector, points = ctx.saved_tensors
        layers, states, first, num_second = ctx.layers, ctx.states, ctx.first, ctx.num_second
        num_first = len(first)
        jet_gradient = output_gradients[0].contiguous()
        columns = jet_gradient[0].numel()
        # One allocation for the gradient of the flat vector, filled layer by layer from its end.
        gradient = torch.empty_like(vector)
        end = gradient.shape[0]
        for index in range(len(layers) - 1, -1, -1):
            weight, _ = layers[index]
            width, inputs = weight.shape
            start = end - width - width * inputs
            weight_gradient = gradient[start : end - width].view(width, inputs)
            torch.sum(jet_gradient[:, 0], 1, out=gradient[end - width : end])
            end = start
            if index == 0:
                torch.mm(jet_gradient[:, 0], points, out=weight_gradient)
                if num_first:
                    weight_gradient[:, first] += jet_gradient[:, 1 : 1 + num_first].sum(2)
                break
            jet, activated, slope = states[index - 1]
            flat = jet_gradient.view(width, columns)
            torch.mm(flat, activated.view(inputs, columns).t(), out=weight_gradient)
            # From here on in place: gradients of a, a', a'' become those of z, z', z'' after one factor s.
            jet_gradient = torch.mm(weight.t(), flat).view(jet.shape).mul_(slope.unsqueeze(1))
            if not num_first:
                continue
            value, value_gradient, rest = activated[:, 0], jet_gradient[:, 0], jet_gradient[:, 1:]
            value_gradient.addcmul_(value, (rest * jet[:, 1:]).sum(1), value=-2)
            if num_second:
                # The terms of -2 a s z'^2: by z' directly, by z through a and s = 1 - a^2 (4 a^2 - 2 s = 4 - 6 s).
                first_order = jet[:, 1 : 1 + num_second]
                weighted = rest[:, num_first:] * first_order
                squares = (weighted * first_order).sum(1)
                value_gradient.addcmul_(squares, slope.mul(-6).add_(4))
                rest[:, :num_second].sub_(weighted.mul_(value.unsqueeze(1)), alpha=4)
        return gradient, None, None, None, None

"""The moments of M-ConFIG in flat buffers: first moments of all losses, pseudo first moment, second moment.

A small network spends an optimizer step on the overhead of calls per parameter, a large one on memory traffic. Flat
buffers answer the first: a handful of calls, however many parameters. Working through them in stretches that stay in
cache answers the second: the (2m + 8)N numbers of a step are moved once, with no temporary of size N.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from octavo_config_grad.distributed import local_tensor

__all__ = ["MOMENT_NAMES", "Moments", "Piece", "Stretch", "to_float64"]

MOMENT_NAMES = {
    "pseudo": {"exp_avgs": True, "pseudo_exp_avg": False, "exp_avg_sq": False},
    "separate": {"exp_avgs": True, "exp_avg_sqs": True},
}
"""Names of a parameter's moments in the optimizer's state, and whether there is one for every loss."""

# Numbers that one stretch touches: what an L2 cache holds, or on an accelerator, enough to hide the launches.
_CACHE_ELEMENTS = 2**20
_ACCELERATOR_ELEMENTS = 2**26
# Elements of a stretch below which the calls would cost more than the arithmetic.
_MIN_STRETCH = 1024


class Piece(NamedTuple):
    """A parameter, or some rows (first dimension) of a large one."""

    position: int
    """Position of the parameter in ``Moments.parameters``."""
    rows: slice | None
    """The rows, None for the whole parameter."""
    size: int
    """Number of elements."""

    def of(self, tensor: Tensor) -> Tensor:
        """Cut the piece out of a tensor shaped like the parameter."""
        return tensor if self.rows is None else tensor[self.rows]


@dataclass(frozen=True)
class Stretch:
    """Consecutive elements of one flat buffer that share a parameter group, and views of the buffers there.

    Attributes:
        group: Index of the parameter group.
        pieces: The parameters inside, in order.
        first: First moments (m, n).
        pseudo: Pseudo first moment M (n,), empty for separate second moments.
        second: Second moment (n,), or (m, n) for separate ones.
        update: Scratch (n,) for the update.
        denominator: Scratch (n,) for the root of the second moment.
        parts: Views of ``update`` in the shapes of the pieces.
    """

    group: int
    pieces: tuple[Piece, ...]
    first: Tensor
    pseudo: Tensor
    second: Tensor
    update: Tensor
    denominator: Tensor
    parts: tuple[Tensor, ...]


class Moments:
    """Moments of ``num_losses`` losses with respect to a list of parameters, all zero at first.

    Args:
        parameters: Parameters that receive updates, in the order of the optimizer's groups.
        groups: Index of the parameter group of each.
        num_losses: Number of losses, m.
        second_moment: ``"pseudo"``: one, of the pseudo gradient; ``"separate"``: every loss has its own.

    Attributes:
        stretches: The parts of the buffers, in the order in which a step works through them.
        views: For each parameter its moments in its own shape, by the names of the optimizer's state: ``exp_avgs``
            (m, ...), ``pseudo_exp_avg`` and ``exp_avg_sq``, or ``exp_avgs`` and ``exp_avg_sqs`` (m, ...) if separate.
    """

    def __init__(
        self, parameters: Sequence[Tensor], groups: Sequence[int], num_losses: int, second_moment: str
    ) -> None:
        self.parameters = list(parameters)
        self.num_losses = num_losses
        self.second_moment = second_moment
        self._sharded = any(local_tensor(parameter) is not parameter for parameter in parameters)
        self.stretches: list[Stretch] = []
        self.views: list[dict[str, Tensor]] = [{} for _ in self.parameters]
        blocks: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for position, parameter in enumerate(self.parameters):
            # Half precision cannot hold beta2 = 0.999, V would stop moving: moments have float32 at least.
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            blocks.setdefault((parameter.device, dtype), []).append(position)
        for (device, dtype), positions in blocks.items():
            self._add_block(positions, groups, device, dtype)

    def _add_block(
        self, positions: Sequence[int], groups: Sequence[int], device: torch.device, dtype: torch.dtype
    ) -> None:
        m = self.num_losses
        local = [local_tensor(self.parameters[position]) for position in positions]
        total = sum(parameter.numel() for parameter in local)
        first = torch.zeros(m, total, device=device, dtype=dtype)
        pseudo = torch.zeros(0 if self.second_moment == "separate" else total, device=device, dtype=dtype)
        second = torch.zeros((m, total) if self.second_moment == "separate" else (total,), device=device, dtype=dtype)

        start = 0
        for position, parameter in zip(positions, local, strict=True):
            window, shape = slice(start, start + parameter.numel()), parameter.shape
            if self.second_moment == "separate":
                moments = {"exp_avg_sqs": second[:, window].view(m, *shape)}
            else:
                moments = {"pseudo_exp_avg": pseudo[window].view(shape), "exp_avg_sq": second[window].view(shape)}
            self.views[position] = {"exp_avgs": first[:, window].view(m, *shape), **moments}
            start += parameter.numel()

        elements = _CACHE_ELEMENTS if device.type == "cpu" else _ACCELERATOR_ELEMENTS
        plan = _cut(
            positions, [groups[position] for position in positions], local, max(elements // (m + 4), _MIN_STRETCH)
        )
        longest = max(sum(piece.size for piece in pieces) for _, pieces in plan)
        update, denominator = torch.empty(2, longest, device=device, dtype=dtype)
        shapes = dict(zip(positions, local, strict=True))
        start = 0
        for group, pieces in plan:
            sizes = [piece.size for piece in pieces]
            window, size = slice(start, start + sum(sizes)), sum(sizes)
            parts = zip(pieces, update[:size].split(sizes), strict=True)
            self.stretches.append(
                Stretch(
                    group=group,
                    pieces=tuple(pieces),
                    first=first[:, window],
                    pseudo=pseudo[window],
                    second=second[..., window],
                    update=update[:size],
                    denominator=denominator[:size],
                    parts=tuple(part.view(piece.of(shapes[piece.position]).shape) for piece, part in parts),
                )
            )
            start += size

    def adopt(self, old: Moments) -> None:
        """Take over the moments of the parameters and losses that ``old`` has too; the rest stays zero."""
        known = {id(parameter): views for parameter, views in zip(old.parameters, old.views, strict=True)}
        for parameter, views in zip(self.parameters, self.views, strict=True):
            for name, tensor in known.get(id(parameter), {}).items():
                per_loss = MOMENT_NAMES[self.second_moment][name]
                (views[name][: old.num_losses] if per_loss else views[name]).copy_(tensor)

    def targets(self, stretch: Stretch, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Cut the pieces of a stretch out of tensors shaped like the parameters, one per parameter."""
        if self._sharded:
            return [piece.of(local_tensor(tensors[piece.position])) for piece in stretch.pieces]
        return [piece.of(tensors[piece.position]) for piece in stretch.pieces]

    def flatten(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """Cut the gradients of one loss into the stretches, in the dtype of the moments.

        Args:
            gradients: One per parameter; None counts as zero.

        Returns:
            One vector per stretch; where a stretch lies within one parameter, a view of its gradient.
        """
        flat: list[Tensor] = []
        for stretch in self.stretches:
            vectors: list[Tensor] = []
            for piece in stretch.pieces:
                gradient = gradients[piece.position]
                if gradient is None:
                    vectors.append(stretch.update.new_zeros(piece.size))
                else:
                    vectors.append(piece.of(gradient).reshape(-1))
            vector = vectors[0] if len(vectors) == 1 else torch.cat(vectors)
            flat.append(vector.to(stretch.update.dtype))
        return flat

    def refresh(self, loss: int, flat: Sequence[Tensor], betas: tuple[float, float]) -> None:
        """Move the first moment of a loss, and its separate second moment, towards a gradient.

        Args:
            loss: Index i of the loss.
            flat: Its gradient as :meth:`flatten` gave it.
            betas: Decays: ``m_i = beta1 m_i + (1 - beta1) g_i``, ``v_i = beta2 v_i + (1 - beta2) g_i^2``.
        """
        beta1, beta2 = betas
        for stretch, vector in zip(self.stretches, flat, strict=True):
            stretch.first[loss].lerp_(vector, 1.0 - beta1)
            if self.second_moment == "separate":
                stretch.second[loss].mul_(beta2).addcmul_(vector, vector, value=1.0 - beta2)

    def dot_products(self, losses: Sequence[int]) -> Float64[np.ndarray, "chosen losses"]:
        """Dot products of the first moments of the chosen losses with those of all, accumulated in float64."""
        launched: list[Tensor] = []
        for stretch in self.stretches:
            wide = to_float64(stretch.first)
            launched.append(torch.mv(wide, wide[losses[0]]) if len(losses) == 1 else wide[losses] @ wide.T)
        shape = (len(losses), self.num_losses)
        return sum((products.numpy(force=True).reshape(shape) for products in launched), start=np.zeros(shape))

    def normalised_gramian(
        self, corrections: Float64[np.ndarray, "2 losses"], eps: Sequence[float]
    ) -> Float64[np.ndarray, "losses losses"]:
        """Gramian of the Adam directions of the losses, for separate second moments.

        Args:
            corrections: Bias corrections ``1 - beta1^t_i`` and ``1 - beta2^t_i``.
            eps: eps of each parameter group.
        """
        total = np.zeros((self.num_losses, self.num_losses))
        for stretch in self.stretches:
            wide = to_float64(_adam_directions(stretch, corrections, eps[stretch.group]))
            total += (wide @ wide.T).cpu().numpy()
        return total

    def pseudo_updates(
        self,
        weights: Float64[np.ndarray, " losses"],
        betas: tuple[float, float],
        step: int,
        eps: Sequence[float],
        *,
        accumulate: torch.dtype | None = None,
    ) -> Iterator[Stretch]:
        """Advance the pseudo moments; yield each stretch with its update in ``parts`` (valid until the next one).

        With ``h = sum_i weights_i m_i``: the pseudo gradient ``g_c = (h (1 - beta1^t) - beta1 M) / (1 - beta1)`` is
        what would have moved M to h; V averages its square; the update is ``h / (sqrt(V / (1 - beta2^t)) + eps)``.

        Args:
            weights: Coefficients of the first moments, bias corrections included.
            betas: Decays beta1, beta2.
            step: Number t of updates, this one included.
            eps: eps of each parameter group.
            accumulate: float64 to form h in that precision; None for the precision of the moments.

        Yields:
            The stretches.
        """
        beta1, beta2 = betas
        correction1, correction2 = 1.0 - beta1**step, 1.0 - beta2**step
        for stretch, coefficients in self._with_coefficients(weights * correction1, accumulate):
            target = _combine(stretch.first, coefficients, stretch.update)  # h (1 - beta1^t), the new M
            # g_c = (target - beta1 M) / (1 - beta1) is an extrapolation from M through the target.
            gradient = stretch.pseudo.lerp_(target, 1.0 / (1.0 - beta1))
            stretch.second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
            stretch.pseudo.copy_(target)
            root = torch.sqrt(stretch.second, out=stretch.denominator)
            root.mul_(correction1 / correction2**0.5).add_(correction1 * eps[stretch.group])
            target.div_(root)
            yield stretch

    def separate_updates(
        self,
        weights: Float64[np.ndarray, " losses"],
        corrections: Float64[np.ndarray, "2 losses"],
        eps: Sequence[float],
        *,
        accumulate: torch.dtype | None = None,
    ) -> Iterator[Stretch]:
        """Yield each stretch with the weighted sum of the losses' Adam directions in ``parts``.

        Args:
            weights: Coefficients of the Adam directions.
            corrections: Bias corrections ``1 - beta1^t_i`` and ``1 - beta2^t_i``.
            eps: eps of each parameter group.
            accumulate: float64 to form the sum in that precision; None for the precision of the moments.

        Yields:
            The stretches.
        """
        for stretch, coefficients in self._with_coefficients(weights, accumulate):
            _combine(_adam_directions(stretch, corrections, eps[stretch.group]), coefficients, stretch.update)
            yield stretch

    def _with_coefficients(
        self, weights: np.ndarray, accumulate: torch.dtype | None
    ) -> Iterator[tuple[Stretch, Tensor]]:
        cast: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        for stretch in self.stretches:
            key = (stretch.update.device, stretch.update.dtype)
            if key not in cast:
                coefficients = torch.from_numpy(weights)
                cast[key] = coefficients if accumulate == torch.float64 else coefficients.to(*key)
            yield stretch, cast[key]


def to_float64(tensor: Tensor) -> Tensor:
    """Cast to float64, on the CPU where the device has none.

    Args:
        tensor: A floating-point tensor.

    Returns:
        The same numbers in float64.
    """
    return tensor.cpu().double() if tensor.device.type == "mps" else tensor.double()


def _combine(rows: Tensor, coefficients: Tensor, out: Tensor) -> Tensor:
    """``sum_i coefficients_i rows_i`` in the precision of the coefficients."""
    if coefficients.dtype == rows.dtype:
        return torch.mv(rows.t(), coefficients.to(rows.device), out=out)
    wide = to_float64(rows)
    return out.copy_(torch.mv(wide.t(), coefficients.to(wide.device)))


def _cut(
    positions: Sequence[int], groups: Sequence[int], parameters: Sequence[Tensor], limit: int
) -> list[tuple[int, list[Piece]]]:
    """Cut parameters into runs of about ``limit`` elements that do not cross a group: (group, pieces)."""
    runs: list[tuple[int, list[Piece]]] = []
    room = 0
    for position, group, parameter in zip(positions, groups, parameters, strict=True):
        if parameter.numel() <= limit:
            pieces = [Piece(position, None, parameter.numel())]
        else:
            row_size = parameter[0].numel()
            count = max(limit // row_size, 1)
            starts = range(0, len(parameter), count)
            rows = [slice(start, min(start + count, len(parameter))) for start in starts]
            pieces = [Piece(position, cut, (cut.stop - cut.start) * row_size) for cut in rows]
        for piece in pieces:
            if not runs or runs[-1][0] != group or piece.size > room:
                runs.append((group, []))
                room = limit
            runs[-1][1].append(piece)
            room -= piece.size
    return runs


def _adam_directions(stretch: Stretch, corrections: np.ndarray, eps: float) -> Tensor:
    scales = torch.as_tensor(corrections, dtype=stretch.first.dtype, device=stretch.first.device)
    second = stretch.second / scales[1][:, None]
    return stretch.first / scales[0][:, None] / second.sqrt_().add_(eps)

"""Gramian of per-loss gradients and weighted sums of them, without flattening a model.

Everything that ConFIG decides depends on the gradients through ``K = G G^T`` alone (m x m for m losses), so the
gradients are read twice: once for ``K``, once for the weighted sum. ``K`` is accumulated in float64, since a float32
Gramian loses the answer once two gradients are nearly opposite (relative error 1e-4 at cosine -0.99995).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast, overload

import torch
from jaxtyping import Float64
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_config_grad._compile import outside_graphs

__all__ = ["Gradients", "gramian", "weighted_sum"]

Gradients = Tensor | Sequence[Tensor] | Sequence[Sequence[Tensor | None]]
"""Gradients of m losses: a matrix (m, N), m equally shaped tensors, or m lists with one tensor per parameter.

``None`` in a list is refused with an error that names the loss and the parameter.
"""

# One tuple per parameter, of one tensor per loss.
Columns = list[tuple[Tensor, ...]]

# Float64 numbers in a chunk: 1 MiB stays in the cache of a CPU core; a GPU wants fewer and larger products.
_CPU_CHUNK_ELEMENTS = 2**17
_GPU_CHUNK_ELEMENTS = 2**22
# Squared norms outside this range have lost bits to under- or overflow; only float64 gradients can leave it.
_SQUARED_NORM_RANGE = (1e-270, 1e300)
# Coefficients outside this range may not fit float32 although their product with a gradient does.
_FLOAT32_COEFFICIENT_RANGE = (2.0**-100, 2.0**100)


def gramian(gradients: Gradients, *, chunk_elements: int | None = None) -> Float64[Tensor, "losses losses"]:
    """Dot products between the gradients of all losses, accumulated in float64.

    Args:
        gradients: Matrix (m, N), sequence of m equally shaped tensors, or sequence over losses of sequences with one
            tensor per parameter. Real floating point; dtypes and devices may differ between parameters.
        chunk_elements: Float64 numbers held at a time, at least 1; the default fits a CPU cache, or is larger on a GPU.

    Returns:
        ``K_ij = g_i . g_j`` on the device of the first parameter (on the CPU where that device has no float64).
        Gradients in float16, bfloat16 and float32 cannot under- or overflow it; float64 ones can, beyond norms of
        1e-150 and 1e150. A gradient that is not finite gives a diagonal entry that is not finite.

    Raises:
        InvalidValueError: If there is no loss, or shapes, dtypes or devices differ between losses.
        InvalidTypeError: If a gradient is missing, sparse, or not of a real floating-point dtype.

    Source:
        Beyond the paper, whose code decomposes the m x N matrix: ``x = U^+ w = U^T (U U^T)^+ w``, so that the dot
        products suffice, and float64 sums keep nearly opposite gradients apart at any number of parameters.
    """
    if chunk_elements is not None and chunk_elements < 1:
        raise InvalidValueError(f"chunk_elements={chunk_elements} must be at least 1")
    return _accumulate(_checked(gradients), chunk_elements, scale=1.0)


@overload
def weighted_sum(
    gradients: Tensor | Sequence[Tensor], alpha: Tensor, *, accumulate: torch.dtype | None = None
) -> Tensor: ...


@overload
def weighted_sum(
    gradients: Sequence[Sequence[Tensor]], alpha: Tensor, *, accumulate: torch.dtype | None = None
) -> list[Tensor]: ...


@overload
def weighted_sum(
    gradients: Gradients, alpha: Tensor, *, accumulate: torch.dtype | None = None
) -> Tensor | list[Tensor]: ...


@outside_graphs
def weighted_sum(
    gradients: Gradients, alpha: Tensor, *, accumulate: torch.dtype | None = None
) -> Tensor | list[Tensor]:
    """Combine the gradients: ``sum_j alpha_j g_j``, in their own dtype.

    Half types accumulate in float32, and coefficients that float32 cannot hold are applied in float64. A loss whose
    coefficient is exactly 0 is not read, so its gradient need not be finite.

    Args:
        gradients: As for ``gramian``.
        alpha: One coefficient per loss, (m,), float64.
        accumulate: ``torch.float64`` to sum in float64, chunk by chunk, whatever the dtype of the gradients, as a sum
            that cancels needs (``accumulation`` tells). None sums in float32, or in float64 where the gradients
            have it.

    Returns:
        A vector (N,) for a matrix, a tensor of the shape of one gradient for a sequence of tensors, or a list with one
        tensor per parameter for a sequence of sequences. Always newly allocated.

    Raises:
        InvalidValueError: If ``alpha`` has another length than ``gradients``, or as for ``gramian``.
        InvalidTypeError: As for ``gramian``.
    """
    checked = _checked(gradients)
    num_losses = len(checked) if isinstance(checked, Tensor) else len(checked[0])
    if tuple(alpha.shape) != (num_losses,):
        raise InvalidValueError(
            f"alpha has shape {tuple(alpha.shape)}, but there are {num_losses} losses: give one coefficient each"
        )
    terms = [(loss, coefficient) for loss, coefficient in enumerate(alpha.tolist()) if coefficient != 0.0]
    with torch.no_grad(), autocast_off(_first(checked).device):
        if isinstance(checked, Tensor):
            return _combine_matrix(checked, terms, accumulate)
        combined = _combine_columns(checked, terms, accumulate)
    return combined[0] if isinstance(gradients[0], Tensor) else combined


def scaled_gramian(gradients: Any) -> tuple[Float64[Tensor, "losses losses"], float]:
    """Gramian of ``gradients / unit``, where ``unit`` is 1 unless the plain Gramian would under- or overflow.

    A common factor does not change the coefficients of an update, so they follow from the scaled Gramian; norms and
    lengths derived from it must be multiplied by ``unit``.

    Args:
        gradients: As for ``gramian``; norms may span a factor of 1e300.

    Returns:
        The Gramian, and the unit (a power of two).

    Raises:
        InvalidValueError: As for ``gramian``.
        InvalidTypeError: As for ``gramian``.
    """
    checked = _checked(gradients)
    product = _accumulate(checked, None, scale=1.0)
    columns = [tuple(checked)] if isinstance(checked, Tensor) else checked
    if all(column[0].dtype != torch.float64 for column in columns):
        return product, 1.0
    lowest, highest = _SQUARED_NORM_RANGE
    squared_norms = product.diagonal().tolist()
    suspects = [loss for loss, squared in enumerate(squared_norms) if not lowest < squared < highest]
    if not any(_peak(columns, loss) > 0.0 for loss in suspects):
        return product, 1.0
    peaks = [peak for peak in (_peak(columns, loss) for loss in range(len(squared_norms))) if peak > 0.0]
    if not all(map(math.isfinite, peaks)):
        return product, 1.0
    top, bottom = math.log2(max(peaks)), math.log2(min(peaks))
    # Halfway between the largest and the smallest gradient, but never so low that the largest would overflow.
    unit = 2.0 ** min(1000, max(-1000, round(max((top + bottom) / 2.0, top - 480.0))))
    return _accumulate(checked, None, scale=1.0 / unit), unit


def _peak(columns: Columns, loss: int) -> float:
    """Largest magnitude in the gradient of a loss; infinite where it is not finite."""
    peaks = [float(torch.linalg.vector_norm(column[loss], torch.inf)) for column in columns if column[loss].numel()]
    return max(peaks, default=0.0) if all(map(math.isfinite, peaks)) else math.inf


def accumulation(
    gramian: Float64[Tensor, "losses losses"], alpha: Float64[Tensor, " losses"]
) -> tuple[torch.dtype | None, float]:
    """Precision that the weighted sum of an update needs, and how far its terms reach.

    Args:
        gramian: Dot products of the gradients.
        alpha: Coefficients of the update, on the same device.

    Returns:
        float64 where the terms ``alpha_j g_j`` cancel so far that rounding them in float32 could turn the update
        against a loss, None where the ordinary precision serves; and ``sum_j |alpha_j| |g_j|``.
    """
    # Rounding turns d by eps / r for r = |d| / sum_j |alpha_j g_j|, and cosines can be as small as r: their signs are
    # safe for r well above sqrt(eps(float32)) = 3e-4.
    total = float(alpha.abs() @ gramian.diagonal().sqrt())
    return torch.float64 if float(alpha @ gramian @ alpha) < (1e-2 * total) ** 2 else None, total


def autocast_off(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Keep autocast from rounding float32 products to half precision.

    Args:
        device: Where the products are formed.

    Returns:
        A context manager.
    """
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def coarsest_dtype(gradients: Gradients) -> torch.dtype:
    """Dtype with the largest rounding error among the gradients.

    Args:
        gradients: As for ``gramian``, already checked by it.

    Returns:
        The dtype, on which the meaning of a cosine depends.
    """
    first = gradients if isinstance(gradients, Tensor) else gradients[0]
    if isinstance(first, Tensor):
        return first.dtype
    return max({cast(Tensor, gradient).dtype for gradient in first}, key=lambda dtype: torch.finfo(dtype).eps)


def _checked(gradients: Any) -> Tensor | Columns:
    """A matrix as it is, lists regrouped by parameter; or the error that says what is wrong."""
    if isinstance(gradients, Tensor):
        if gradients.dim() != 2:
            raise InvalidValueError(
                f"a gradient tensor must be a matrix with one row per loss, but its shape is {tuple(gradients.shape)}"
            )
        if len(gradients) == 0:
            raise InvalidValueError("no gradients: give the gradient of at least one loss")
        _check_kind(gradients, "the gradient matrix")
        return gradients.detach()
    if not isinstance(gradients, Sequence) or isinstance(gradients, str):
        raise InvalidTypeError(
            f"gradients is a {type(gradients).__name__}: give a matrix (losses, parameters), a list of tensors, or a "
            "list with one list of tensors per loss"
        )
    if len(gradients) == 0:
        raise InvalidValueError("no gradients: give the gradient of at least one loss")
    rows = [[gradient] for gradient in gradients] if isinstance(gradients[0], Tensor) else gradients
    for loss, row in enumerate(rows):
        if not isinstance(row, Sequence) or isinstance(row, str):
            raise InvalidTypeError(
                f"the gradient of loss {loss} is a {type(row).__name__}: give a list with one tensor per parameter"
            )
    if len(rows[0]) == 0:
        raise InvalidValueError("the gradient of loss 0 is an empty list: give one tensor per parameter")
    for loss, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise InvalidValueError(
                f"the gradient of loss {loss} has {len(row)} tensors but that of loss 0 has {len(rows[0])}: give one "
                "tensor per parameter for every loss"
            )
    columns = list(zip(*rows, strict=True))
    for parameter, column in enumerate(columns):
        first = column[0]
        _check_kind(first, f"the gradient of loss 0 for parameter {parameter}")
        kind = first.shape, first.dtype, first.device, torch.strided
        for loss, gradient in enumerate(column):
            if (
                not isinstance(gradient, Tensor)
                or (gradient.shape, gradient.dtype, gradient.device, gradient.layout) != kind
            ):
                _check_kind(gradient, f"the gradient of loss {loss} for parameter {parameter}")
                raise InvalidValueError(
                    f"the gradient of loss {loss} for parameter {parameter} is {_describe(gradient)} but that of loss "
                    f"0 is {_describe(first)}: they must agree"
                )
    return columns


def _check_kind(gradient: object, name: str) -> None:
    if not isinstance(gradient, Tensor):
        raise InvalidTypeError(
            f"{name} is {type(gradient).__name__}, not a tensor: a parameter that a loss does not reach needs zeros "
            "(per_loss_gradients fills them in)"
        )
    if not gradient.dtype.is_floating_point:
        raise InvalidTypeError(f"{name} has dtype {gradient.dtype}: gradients must be real floating point")
    if gradient.layout != torch.strided:
        raise InvalidTypeError(f"{name} has layout {gradient.layout}: convert it with .to_dense()")


def _describe(gradient: Tensor) -> str:
    return f"{tuple(gradient.shape)} {gradient.dtype} on {gradient.device}"


def _first(checked: Tensor | Columns) -> Tensor:
    return checked if isinstance(checked, Tensor) else checked[0][0]


def _accumulate(checked: Tensor | Columns, chunk_elements: int | None, scale: float) -> Tensor:
    device = _first(checked).device
    num_losses = len(checked) if isinstance(checked, Tensor) else len(checked[0])
    totals: dict[torch.device, Tensor] = {}
    buffer: Tensor | None = None
    with torch.no_grad(), autocast_off(device):
        for block in _blocks(checked, num_losses, chunk_elements):
            target = _float64_device(block.device)
            if block.dtype != torch.float64 or block.device != target:
                # One buffer for all blocks: fresh memory for each would cost more in page faults than the cast.
                if buffer is None or buffer.device != target or buffer.numel() < block.numel():
                    buffer = torch.empty(block.numel(), dtype=torch.float64, device=target)
                block = buffer[: block.numel()].view(block.shape).copy_(block)
            if scale != 1.0:
                block = block * scale
            if target in totals:
                totals[target].addmm_(block, block.T)
            else:
                totals[target] = block @ block.T
        if not totals:
            return torch.zeros(num_losses, num_losses, dtype=torch.float64, device=_float64_device(device))
        total, *others = totals.values()
        for other in others:
            total += other.to(total.device)
    return total


def _float64_device(device: torch.device) -> torch.device:
    return torch.device("cpu") if device.type == "mps" else device


def _blocks(checked: Tensor | Columns, num_losses: int, chunk_elements: int | None) -> Iterator[Tensor]:
    """Consecutive columns of the gradient matrix, small parameters together and large ones in pieces."""
    if isinstance(checked, Tensor):
        yield from checked.split(_chunk_width(checked.device, num_losses, chunk_elements), dim=1)
        return
    group: Columns = []
    group_width = 0
    for column in checked:
        width = _chunk_width(column[0].device, num_losses, chunk_elements)
        numel = column[0].numel()
        if group and (group_width + numel > width or column[0].device != group[0][0].device):
            yield _concatenate(group)
            group, group_width = [], 0
        flat = tuple([gradient.reshape(-1) for gradient in column])
        if numel > width:
            for start in range(0, numel, width):
                yield _concatenate([tuple(gradient[start : start + width] for gradient in flat)])
        elif numel:
            group.append(flat)
            group_width += numel
    if group:
        yield _concatenate(group)


def _chunk_width(device: torch.device, num_losses: int, chunk_elements: int | None) -> int:
    if chunk_elements is None:
        chunk_elements = _CPU_CHUNK_ELEMENTS if device.type == "cpu" else _GPU_CHUNK_ELEMENTS
    return max(1, chunk_elements // num_losses)


def _concatenate(group: Columns) -> Tensor:
    """Matrix (m, n) of flat pieces; mixed dtypes are promoted, which is exact."""
    num_losses = len(group[0])
    return torch.cat([column[loss] for loss in range(num_losses) for column in group]).view(num_losses, -1)


def _working_dtype(dtype: torch.dtype, terms: list[tuple[int, float]], accumulate: torch.dtype | None) -> torch.dtype:
    """Precision of a weighted sum: float32, or float64 where asked for or where float32 cannot hold a coefficient."""
    lowest, highest = _FLOAT32_COEFFICIENT_RANGE
    if torch.float64 in (dtype, accumulate) or not all(lowest < abs(coefficient) < highest for _, coefficient in terms):
        return torch.float64
    return torch.float32


def _combine_matrix(matrix: Tensor, terms: list[tuple[int, float]], accumulate: torch.dtype | None) -> Tensor:
    working = _working_dtype(matrix.dtype, terms, accumulate)
    if working == matrix.dtype and len(terms) == len(matrix):
        return torch.tensor([coefficient for _, coefficient in terms], dtype=working).to(matrix.device) @ matrix
    return _combine_promoted(tuple(matrix), terms, working)


def _combine_columns(columns: Columns, terms: list[tuple[int, float]], accumulate: torch.dtype | None) -> list[Tensor]:
    working = {dtype: _working_dtype(dtype, terms, accumulate) for dtype in {column[0].dtype for column in columns}}
    combined: dict[int, Tensor] = {}
    native = [index for index, column in enumerate(columns) if column[0].dtype == working[column[0].dtype]]
    if native and terms:
        (first, first_coefficient), *rest = terms
        sums = list(torch._foreach_mul([columns[index][first] for index in native], first_coefficient))
        for loss, coefficient in rest:
            torch._foreach_add_(sums, [columns[index][loss] for index in native], alpha=coefficient)
        combined = dict(zip(native, sums, strict=True))
    return [
        combined[index] if index in combined else _combine_promoted(column, terms, working[column[0].dtype])
        for index, column in enumerate(columns)
    ]


def _combine_promoted(column: tuple[Tensor, ...], terms: list[tuple[int, float]], working: torch.dtype) -> Tensor:
    """Sum in another dtype than that of the gradients, a chunk at a time."""
    if not terms:
        return torch.zeros_like(column[0])
    combined = torch.empty_like(column[0], memory_format=torch.contiguous_format)
    device = _float64_device(combined.device) if working == torch.float64 else combined.device
    coefficients = torch.tensor([coefficient for _, coefficient in terms], dtype=torch.float64).to(device, working)
    flat = [column[loss].reshape(-1) for loss, _ in terms]
    width = _chunk_width(combined.device, len(terms), None)
    for start, target in enumerate(combined.view(-1).split(width)):
        block = torch.stack([gradient[start * width : (start + 1) * width] for gradient in flat])
        target.copy_(coefficients @ block.to(device, working))
    return combined

"""One loss at a time from loss to gradient: what both optimizers share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, OctavoError
from torch import Tensor

from octavo_config_grad.distributed import local_tensor
from octavo_config_grad.gramian import autocast_off
from octavo_config_grad.selection import loss_indices

__all__ = [
    "all_finite",
    "check_choice",
    "check_distinct",
    "evaluate_loss",
    "is_scaling",
    "loss_gradient",
    "named_losses",
    "ordered_losses",
    "parameter_names",
    "scaled_loss",
    "unscale_gradients",
]

_DENSE = torch.strided


def named_losses(losses: Any, num_losses: int | None) -> dict[Any, Any]:
    """Bring what ``step`` was given into the form {index: loss}.

    Args:
        losses: A mapping from index to loss; a sequence of losses; a single loss; or a function that returns any of
            these, called with gradients enabled. A loss is a scalar tensor or a function that returns one.
        num_losses: Number of losses a sequence must have, None for any.

    Returns:
        Losses by index, at least one; the indices are not checked.

    Raises:
        InvalidValueError: If there is no loss, or a sequence of the wrong length.
        InvalidTypeError: If ``losses`` is of another type.
    """
    with torch.enable_grad():
        if callable(losses) and not isinstance(losses, Tensor):
            losses = losses()
        if isinstance(losses, Tensor):
            losses = list(losses.unbind()) if losses.dim() == 1 else [losses]
    if isinstance(losses, Mapping):
        named = dict(losses)
    elif isinstance(losses, Sequence) and not isinstance(losses, str):
        if losses and num_losses is not None and len(losses) != num_losses:
            raise InvalidValueError(
                f"step got {len(losses)} losses instead of {num_losses}; give all, or some as {{index: loss}}"
            )
        named = dict(enumerate(losses))
    elif losses is None:
        named = {}
    else:
        raise InvalidTypeError(f"step got a {type(losses).__name__}; give losses as a mapping or sequence of tensors")
    if not named:
        raise InvalidValueError("step got no losses; give at least one scalar loss")
    return named


def ordered_losses(losses: Any) -> list[Any]:
    """Bring all losses of a step into the order of their indices.

    Args:
        losses: As for :func:`named_losses`; a mapping must have the keys 0 to m - 1, in any order.

    Returns:
        The losses, at least one.

    Raises:
        InvalidValueError: If there is no loss, or a mapping has other keys.
        InvalidTypeError: As for :func:`named_losses`.
    """
    if isinstance(losses, list | tuple) and losses:
        return list(losses)
    named = named_losses(losses, None)
    try:
        indices = loss_indices(named, len(named), "step")
    except OctavoError:
        raise InvalidValueError(
            f"the losses have the keys {', '.join(map(repr, named))}; give all {len(named)} losses by their indices, "
            f"0 to {len(named) - 1}"
        ) from None
    by_index = dict(zip(indices, named.values(), strict=True))
    return [by_index[index] for index in range(len(named))]


def evaluate_loss(loss: Any, index: int) -> Tensor:
    """Call a loss function, with gradients enabled, and check that the loss can be back-propagated.

    Args:
        loss: A scalar tensor with a graph, or a function without arguments that returns one.
        index: Index of the loss, for messages.

    Returns:
        The loss, a scalar.

    Raises:
        InvalidTypeError: If it is not a real floating-point tensor.
        InvalidValueError: If it is not a scalar or has no graph.
    """
    if callable(loss) and not isinstance(loss, Tensor):
        with torch.enable_grad():
            loss = loss()
    if not isinstance(loss, Tensor):
        raise InvalidTypeError(f"loss {index} is a {type(loss).__name__}; give a scalar tensor or a function of none")
    if loss.numel() != 1:
        raise InvalidValueError(f"loss {index} has shape {tuple(loss.shape)}; give a scalar, e.g. loss.mean()")
    if not loss.is_floating_point():
        raise InvalidTypeError(f"loss {index} has dtype {loss.dtype}; give a real floating-point loss")
    if not loss.requires_grad:
        raise InvalidValueError(
            f"loss {index} has no graph; compute it from the parameters outside torch.no_grad() and without detach()"
        )
    if loss.dim() == 0:
        return loss
    with torch.enable_grad():
        return loss.reshape(())


def check_distinct(losses: Sequence[Any]) -> None:
    """Refuse losses of which two are one object: each needs its own term.

    Args:
        losses: Tensors or functions.

    Raises:
        InvalidValueError: If two are the same object.
    """
    places: dict[int, int] = {}
    for place, loss in enumerate(losses):
        first = places.setdefault(id(loss), place)
        if first != place:
            raise InvalidValueError(
                f"of {len(losses)} losses, numbers {first} and {place} are the same object; give every term a loss of "
                "its own"
            )


def loss_gradient(
    loss: Tensor, index: int, parameters: Sequence[Tensor], *, by: str, retain_graph: bool
) -> list[Tensor | None]:
    """Gradient of one loss, leaving ``.grad`` as it was.

    Args:
        loss: A scalar with a graph.
        index: Its index, for messages.
        parameters: Leaves to differentiate by.
        by: ``"autograd"`` for ``torch.autograd.grad``; ``"backward"`` for ``loss.backward()``, which fires the hooks of
            wrappers that gather and reduce gradients (FSDP, DDP).
        retain_graph: Whether other losses may share the graph.

    Returns:
        One gradient per parameter (the local shard of a DTensor), None where the loss does not reach it.

    Raises:
        InvalidStateError: If the graph was freed by an earlier backward pass.
        InvalidTypeError: If a gradient is sparse.
    """
    gradients = _differentiate(loss, index, parameters, by=by, retain_graph=retain_graph)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None and gradient.layout is not _DENSE:
            raise InvalidTypeError(
                f"the gradient of loss {index} for a parameter of shape {tuple(parameter.shape)} is sparse; set "
                "sparse=False on the embedding"
            )
    return gradients


def _differentiate(
    loss: Tensor, index: int, parameters: Sequence[Tensor], *, by: str, retain_graph: bool
) -> list[Tensor | None]:
    try:
        if by == "autograd":
            with autocast_off(loss.device):
                return list(torch.autograd.grad(loss, parameters, retain_graph=retain_graph, allow_unused=True))
        kept = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        try:
            with torch.enable_grad(), autocast_off(loss.device):
                loss.backward(retain_graph=retain_graph)
            return [None if p.grad is None else local_tensor(p.grad) for p in parameters]
        finally:
            for parameter, gradient in zip(parameters, kept, strict=True):
                parameter.grad = gradient
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise InvalidStateError(
            f"the graph of loss {index} was freed by an earlier backward pass; compute the losses anew for each step"
        ) from error


def unscale_gradients(
    scaler: Any,
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    gradients: Sequence[Sequence[Tensor | None]],
) -> list[list[Tensor | None]]:
    """Unscale the gradients of several losses and let the scaler record whether they are finite.

    Args:
        scaler: An enabled ``torch.amp.GradScaler`` whose ``scale`` was applied to every loss.
        optimizer: The optimizer under which the scaler books the result.
        parameters: The parameters.
        gradients: For each loss one gradient per parameter.

    Returns:
        The unscaled gradients.
    """
    kept = [parameter.grad for parameter in parameters]
    # The scaler looks at .grad only, and only once per optimizer: it is shown the sum, infinite if a summand is.
    for parameter, column in zip(parameters, zip(*gradients, strict=True), strict=True):
        parts = [gradient for gradient in column if gradient is not None]
        parameter.grad = torch.stack(parts).sum(0) if parts else None
    scaler.unscale_(optimizer)
    for parameter, gradient in zip(parameters, kept, strict=True):
        parameter.grad = gradient
    inverse = 1.0 / scaler.get_scale()
    return [[None if gradient is None else gradient * inverse for gradient in row] for row in gradients]


def is_scaling(scaler: Any) -> bool:
    """Whether a GradScaler is given and enabled.

    Args:
        scaler: A ``torch.amp.GradScaler``, or None.

    Returns:
        Whether losses have to be scaled.

    Raises:
        InvalidTypeError: If it is something else.
    """
    if scaler is None:
        return False
    if not hasattr(scaler, "is_enabled"):
        raise InvalidTypeError(f"scaler is a {type(scaler).__name__}; give a torch.amp.GradScaler, or None")
    return scaler.is_enabled()


def scaled_loss(loss: Tensor, scaler: Any) -> Tensor:
    """Scale a loss by a GradScaler that is given and enabled.

    Args:
        loss: A scalar with a graph.
        scaler: A ``torch.amp.GradScaler``, or None.

    Returns:
        The scaled loss, or the loss itself.
    """
    if not is_scaling(scaler):
        return loss
    with torch.enable_grad():
        return scaler.scale(loss)


def all_finite(tensors: Iterable[Tensor | None], *, headroom: float = 1.0) -> bool:
    """Whether no element is infinite or NaN; None counts as finite.

    Args:
        tensors: Tensors; None counts as finite.
        headroom: Below 1, no norm may exceed this share of the largest number of the dtype either; at most the root of
            that number's inverse is looked for.

    Returns:
        Whether that is so.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    # A dot product reads once and is finite unless an element is not, or large enough to overflow: then look closely.
    squares = [torch.dot(vector, vector) for vector in (tensor.detach().reshape(-1) for tensor in present)]
    return all(
        math.isfinite(square.item()) or _fits(tensor, headroom) for square, tensor in zip(squares, present, strict=True)
    )


def _fits(tensor: Tensor, headroom: float) -> bool:
    peak = float(torch.linalg.vector_norm(tensor.detach(), math.inf))
    if headroom == 1.0 or not 0.0 < peak < math.inf:
        return math.isfinite(peak)
    return peak * float(torch.linalg.vector_norm(tensor.detach() / peak)) <= headroom * torch.finfo(tensor.dtype).max


def parameter_names(groups: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Names of parameters for messages, by ``id``: as given to the optimizer, else their position.

    Args:
        groups: Parameter groups of an optimizer.

    Returns:
        Names by ``id`` of the parameter, with shapes.
    """
    names: dict[int, str] = {}
    for number, group in enumerate(groups):
        given = group.get("param_names")
        for position, parameter in enumerate(group["params"]):
            name = given[position] if given else f"parameter {position} of group {number}"
            names[id(parameter)] = f"{name} {tuple(parameter.shape)}"
    return names


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse an option that is not one of the choices.

    Args:
        name: Name of the option.
        value: What was given.
        choices: What is accepted.

    Raises:
        InvalidValueError: If the value is not among the choices.
    """
    if value not in choices:
        raise InvalidValueError(f"{name}={value!r} is unknown; give {' or '.join(map(repr, choices))}")

"""Gradients of several losses, one backward pass each or one vectorised pass, without touching ``.grad``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor, nn

from octavo_config_grad.backward import check_distinct, evaluate_loss, loss_gradient
from octavo_config_grad.gramian import autocast_off

__all__ = ["Losses", "per_loss_gradients"]

Losses = Tensor | Sequence[Tensor] | Sequence[Callable[[], Any]]
"""One tensor (m,) of losses, m scalar tensors, or m functions without arguments that each return a scalar tensor."""

_RETAIN_MODES = ("auto", "graph", "closures")
_NONE_POLICIES = ("zero", "raise")


def per_loss_gradients(
    losses: Losses,
    parameters: Any,
    *,
    retain: str = "auto",
    batched: bool = False,
    chunk: int | None = None,
    none: str = "zero",
    offload: bool = False,
) -> list[list[Tensor]]:
    """Gradient of every loss with respect to every parameter.

    Args:
        losses: One tensor (m,) of losses, m scalar tensors, or m functions without arguments that each return a scalar
            tensor. Functions run with gradients enabled and under the caller's autocast; backward passes run without
            autocast.
        parameters: Iterable of tensors that require gradients.
        retain: ``"graph"`` differentiates losses that may share a graph and frees what they share in the last pass;
            functions are all called first. ``"closures"`` calls one function and differentiates its result before the
            next call, so that one graph lives at a time. ``"auto"`` takes ``"closures"`` for functions and ``"graph"``
            for tensors.
        batched: Differentiate several losses in one vectorised pass (``is_grads_batched``). Needs the graph of all
            losses and operations that ``torch.vmap`` supports.
        chunk: Losses per vectorised pass, at least 1; None takes all at once. Only with ``batched``.
        none: For a parameter that a loss does not reach, ``"zero"`` fills in zeros and ``"raise"`` raises.
            ``"raise"`` needs ``batched=False``, since a vectorised pass cannot tell one loss from another.
        offload: Move each finished gradient to the CPU.

    Returns:
        For each loss a list with one tensor per parameter, of the parameter's shape and dtype: what ``gramian``,
        ``weighted_sum`` and every aggregator accept.

    Raises:
        InvalidValueError: If there is no loss or no parameter, a loss is not a scalar or has no graph, two losses are
            one object, a parameter does not require gradients, an option is unknown or does not fit another, or a loss
            does not reach a parameter under ``none="raise"``.
        InvalidTypeError: If a loss is not a real floating-point tensor or a function that returns one, a parameter not
            a tensor, or a gradient sparse.
        InvalidStateError: If the graph of a loss was freed before.

    Source:
        Beyond the paper, whose code back-propagates one loss at a time into ``.grad`` and flattens it.
    """
    items = _loss_list(losses)
    wanted = _parameter_list(parameters)
    closures = all(not isinstance(item, Tensor) for item in items)
    _check_options(retain, none, chunk, batched=batched, closures=closures)
    one_at_a_time = retain == "closures" or (retain == "auto" and closures and not batched)
    pending = items if one_at_a_time else [evaluate_loss(item, index) for index, item in enumerate(items)]
    if batched:
        with autocast_off(wanted[0].device):
            return _batched_gradients(pending, wanted, chunk or len(pending), offload)
    rows = []
    for index, item in enumerate(pending):
        shared = not one_at_a_time and index < len(pending) - 1
        gradient = loss_gradient(evaluate_loss(item, index), index, wanted, by="autograd", retain_graph=shared)
        rows.append(_complete(gradient, wanted, index, none, offload))
    return rows


def _loss_list(losses: Losses) -> list[Any]:
    if isinstance(losses, Tensor):
        if losses.dim() != 1:
            raise InvalidValueError(
                f"losses has shape {tuple(losses.shape)}: give a vector (m,) or a sequence of m scalar losses"
            )
        items: list[Any] = list(losses.unbind())
    else:
        items = list(losses)
    if not items:
        raise InvalidValueError("no losses: give at least one scalar loss")
    check_distinct(items)
    for index, item in enumerate(items):
        if not isinstance(item, Tensor) and not callable(item):
            raise InvalidTypeError(
                f"loss {index} is a {type(item).__name__}: give a scalar tensor or a function that returns one"
            )
    return items


def _parameter_list(parameters: Any) -> list[Tensor]:
    if isinstance(parameters, nn.Module | Tensor | str) or not isinstance(parameters, Iterable):
        hint = "give its parameters()" if isinstance(parameters, nn.Module) else "give a list of tensors"
        raise InvalidTypeError(f"parameters is a {type(parameters).__name__}: {hint}")
    wanted = list(parameters)
    if not wanted:
        raise InvalidValueError("no parameters: give at least one tensor that requires gradients")
    for index, parameter in enumerate(wanted):
        if not isinstance(parameter, Tensor):
            raise InvalidTypeError(f"parameter {index} is a {type(parameter).__name__}: give tensors")
        if not parameter.requires_grad:
            raise InvalidValueError(
                f"parameter {index} of shape {tuple(parameter.shape)} does not require gradients: leave it out or call "
                "requires_grad_()"
            )
    return wanted


def _check_options(retain: str, none: str, chunk: int | None, *, batched: bool, closures: bool) -> None:
    if retain not in _RETAIN_MODES:
        raise InvalidValueError(f"unknown retain mode {retain!r}: use one of {', '.join(_RETAIN_MODES)}")
    if none not in _NONE_POLICIES:
        raise InvalidValueError(f"unknown none policy {none!r}: use one of {', '.join(_NONE_POLICIES)}")
    if retain == "closures" and not closures:
        raise InvalidValueError("retain='closures' needs every loss as a function without arguments, not as a tensor")
    if retain == "closures" and batched:
        raise InvalidValueError("batched=True needs the graphs of all losses at once: use retain='graph' or 'auto'")
    if batched and none == "raise":
        raise InvalidValueError(
            "none='raise' needs batched=False: a vectorised pass cannot tell which loss is concerned"
        )
    if chunk is not None and (chunk < 1 or not batched):
        raise InvalidValueError(f"chunk={chunk} must be at least 1 and needs batched=True")


def _batched_gradients(losses: list[Tensor], parameters: list[Tensor], chunk: int, offload: bool) -> list[list[Tensor]]:
    rows: list[list[Tensor]] = []
    for start in range(0, len(losses), chunk):
        part = losses[start : start + chunk]
        selectors = [
            torch.eye(len(part), dtype=loss.dtype, device=loss.device)[index] for index, loss in enumerate(part)
        ]
        stacked = torch.autograd.grad(
            part,
            parameters,
            grad_outputs=selectors,
            retain_graph=start + chunk < len(losses),
            allow_unused=True,
            is_grads_batched=True,
        )
        rows += [
            _complete(
                [None if batch is None else batch[index] for batch in stacked], parameters, index, "zero", offload
            )
            for index in range(len(part))
        ]
    return rows


def _complete(
    gradients: Sequence[Tensor | None], parameters: list[Tensor], loss: int, none: str, offload: bool
) -> list[Tensor]:
    """Fill in what a loss does not reach, and move the row if asked."""
    row = []
    for index, (gradient, parameter) in enumerate(zip(gradients, parameters, strict=True)):
        if gradient is None:
            if none == "raise":
                raise InvalidValueError(
                    f"loss {loss} does not reach parameter {index} of shape {tuple(parameter.shape)}: leave the "
                    "parameter out or pass none='zero'"
                )
            gradient = torch.zeros_like(parameter)
        row.append(gradient.cpu() if offload else gradient)
    return row

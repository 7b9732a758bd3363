"""What M-ConFIG refuses: options out of range, and saved states of another optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError, OctavoError
from torch import Tensor

from octavo_config_grad.arguments import check_integer, check_number
from octavo_config_grad.backward import check_choice, parameter_names
from octavo_config_grad.distributed import local_tensor
from octavo_config_grad.moments import MOMENT_NAMES
from octavo_config_grad.saved_state import check_groups
from octavo_config_grad.selection import loss_indices

__all__ = ["check_group", "check_saved_state", "common_betas"]


def check_group(group: dict[str, Any], groups: Sequence[Mapping[str, Any]]) -> None:
    """Check the options and parameters of a new parameter group; betas become a tuple of floats.

    Args:
        group: The new group.
        groups: All groups of the optimizer, the new one included.

    Raises:
        InvalidValueError: If an option is out of range, or betas differ from the other groups'.
        InvalidTypeError: If an option is not a number, or a parameter not of a real floating-point dtype.
    """
    betas = group["betas"]
    pair = isinstance(betas, tuple | list) and len(betas) == 2
    for index, beta in enumerate(betas if pair else ()):
        check_number(f"betas[{index}]", beta)
    if not (pair and all(0.0 <= beta < 1.0 for beta in betas)):
        raise InvalidValueError(f"betas={betas!r}; give two numbers from 0 up to but not including 1")
    group["betas"] = (float(betas[0]), float(betas[1]))
    for name in ("lr", "weight_decay", "eps"):
        check_number(name, group[name])
    for name in ("lr", "weight_decay"):
        if not 0.0 <= float(group[name]) < math.inf:
            raise InvalidValueError(f"{name}={group[name]!r}; give a finite number >= 0")
    if not 0.0 < group["eps"] < math.inf:
        raise InvalidValueError(f"eps={group['eps']!r}; give a finite number > 0")
    names = parameter_names(groups)
    for parameter in group["params"]:
        if not parameter.is_floating_point():
            raise InvalidTypeError(
                f"{names[id(parameter)]} has dtype {parameter.dtype}; M-ConFIG takes real floating-point parameters"
            )
    common_betas(groups)


def common_betas(groups: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the betas that all groups share.

    Args:
        groups: Parameter groups.

    Returns:
        The two decays.

    Raises:
        InvalidValueError: If they differ.
    """
    betas = groups[0]["betas"]
    if any(group["betas"] != betas for group in groups[1:]):
        raise InvalidValueError(
            "betas differ between parameter groups; M-ConFIG needs common ones, since the Gramian of the moments "
            "couples all parameters"
        )
    return betas


def check_saved_state(state: Any, groups: Sequence[Mapping[str, Any]], *, num_losses: int, second_moment: str) -> None:
    """Refuse a saved state that does not fit the optimizer, before anything is changed.

    Args:
        state: What was given as a state.
        groups: The optimizer's parameter groups.
        num_losses: Its number of losses, m.
        second_moment: Its kind of second moment.

    Raises:
        InvalidValueError: If it is of another optimizer, another number of losses, or other parameters (the first
            parameter that differs is named), or if a part is missing, out of range or NaN.
        InvalidTypeError: If a part is of another type.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("mconfig"), Mapping):
        raise InvalidValueError("this is not the state of a MConFIG optimizer; give what its state_dict() returned")
    own = state["mconfig"]
    _check_entries("mconfig", own, _OWN_ENTRIES)
    saved_losses = check_integer("the saved num_losses", own["num_losses"], 1)
    if saved_losses != num_losses:
        raise InvalidValueError(
            f"the saved state has {saved_losses} losses, this optimizer {num_losses}; build it with "
            f"num_losses={saved_losses}, and call add_loss() after loading for more"
        )
    check_choice("second_moment of the saved state", own["second_moment"], (second_moment,))
    check_groups(state, groups)
    for name in ("step", "since_recompute", "skipped_steps"):
        check_integer(f"the saved {name}", own[name], 0)
    _check_options(state["param_groups"], groups)
    _check_history(own["history"], num_losses)
    _check_moments(state["state"], groups, num_losses, second_moment)


_OWN_ENTRIES = (
    "num_losses",
    "second_moment",
    "step",
    "history",
    "since_recompute",
    "skipped_steps",
    "selector",
    "aggregator",
)


def _check_entries(what: str, part: Any, names: Sequence[str]) -> None:
    missing = [name for name in names if name not in part] if isinstance(part, Mapping) else names
    if missing:
        raise InvalidValueError(f"the saved {what} lacks {', '.join(missing)}; give what state_dict() returned")


def _check_options(saved_groups: Sequence[Mapping[str, Any]], groups: Sequence[Mapping[str, Any]]) -> None:
    candidates = []
    for number, (saved, group) in enumerate(zip(saved_groups, groups, strict=True)):
        _check_entries(f"parameter group {number}", saved, ("lr", "betas", "eps", "weight_decay"))
        options = {name: value for name, value in saved.items() if name != "param_names"}
        candidates.append({**options, "params": group["params"]})
        try:
            check_group(candidates[-1], candidates[-1:])
        except OctavoError as error:
            raise type(error)(f"saved parameter group {number}: {error}") from None
    common_betas(candidates)


def _check_history(history: Any, num_losses: int) -> None:
    _check_entries("history", history, ("steps", "values", "gramian", "excluded"))
    for name in ("steps", "excluded"):
        if not isinstance(history[name], list | tuple):
            raise InvalidTypeError(
                f"the saved history.{name} is a {type(history[name]).__name__}; give what state_dict() returned"
            )
    if len(history["steps"]) != num_losses:
        raise InvalidValueError(f"the saved history.steps has {len(history['steps'])} numbers, expected {num_losses}")
    for index, steps in enumerate(history["steps"]):
        check_integer(f"the saved history.steps[{index}]", steps, 0)
    loss_indices(history["excluded"], num_losses, "the saved history.excluded")
    for name, shape in (("values", (num_losses,)), ("gramian", (num_losses, num_losses))):
        _check_tensor(f"history.{name}", history[name], shape)
        if history[name].dtype != torch.float64:
            raise InvalidTypeError(f"the saved history.{name} is {history[name].dtype}; it must be torch.float64")
    # The value of a loss is NaN until it was seen.
    if bool(history["gramian"].isnan().any()):
        raise InvalidValueError("the saved history.gramian holds NaN; resume from an earlier state")


def _check_moments(
    saved: Mapping[Any, Any], groups: Sequence[Mapping[str, Any]], num_losses: int, second_moment: str
) -> None:
    parameters = [parameter for group in groups for parameter in group["params"]]
    names = parameter_names(groups)
    for position, moments in saved.items():
        if not isinstance(position, int) or isinstance(position, bool) or not 0 <= position < len(parameters):
            raise InvalidValueError(
                f"the saved state has moments of parameter {position!r}, this optimizer parameters 0 to "
                f"{len(parameters) - 1}; build it for the same parameters"
            )
        parameter = names[id(parameters[position])]
        _check_entries(f"state of {parameter}", moments, tuple(MOMENT_NAMES[second_moment]))
        shape = tuple(local_tensor(parameters[position]).shape)
        for name, per_loss in MOMENT_NAMES[second_moment].items():
            moment = moments[name]
            _check_tensor(f"{name} of {parameter}", moment, (num_losses, *shape) if per_loss else shape)
            if bool(moment.isnan().any()):
                raise InvalidValueError(f"the saved {name} of {parameter} holds NaN; resume from an earlier state")
            if name.startswith("exp_avg_sq") and bool((moment < 0.0).any()):
                raise InvalidValueError(f"the saved {name} of {parameter}, an average of squares, is negative")


def _check_tensor(what: str, value: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.layout != torch.strided:
        found = f"{value.dtype} {value.layout}" if isinstance(value, Tensor) else type(value).__name__
        raise InvalidTypeError(f"the saved {what} is {found}; it must be a dense real floating-point tensor")
    if tuple(value.shape) != shape:
        raise InvalidValueError(
            f"the saved {what} has shape {tuple(value.shape)}, expected {shape}; build the optimizer for the same "
            "parameters"
        )

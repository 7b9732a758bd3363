"""What M-ConFIG refuses: options out of range, and saved states of another optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_config_grad.backward import check_choice, check_groups, parameter_names
from octavo_config_grad.distributed import local_tensor
from octavo_config_grad.moments import MOMENT_NAMES

__all__ = ["check_group", "check_saved_state", "common_betas"]


def check_group(group: dict[str, Any], groups: Sequence[Mapping[str, Any]]) -> None:
    """Check the options and parameters of a new parameter group; betas become a tuple of floats.

    Args:
        group: The new group.
        groups: All groups of the optimizer, the new one included.

    Raises:
        InvalidValueError: If an option is out of range, or betas differ from the other groups'.
        InvalidTypeError: If a parameter is not of a real floating-point dtype.
    """
    betas = group["betas"]
    if not (isinstance(betas, tuple | list) and len(betas) == 2 and all(0.0 <= beta < 1.0 for beta in betas)):
        raise InvalidValueError(f"betas={betas!r}; give two numbers from 0 up to but not including 1")
    group["betas"] = (float(betas[0]), float(betas[1]))
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
            parameter that differs is named).
    """
    if not isinstance(state, Mapping) or "mconfig" not in state:
        raise InvalidValueError("this is not the state of a MConFIG optimizer; give what its state_dict() returned")
    own = state["mconfig"]
    if own["num_losses"] != num_losses:
        raise InvalidValueError(
            f"the saved state has {own['num_losses']} losses, this optimizer {num_losses}; build it with "
            f"num_losses={own['num_losses']}, and call add_loss() after loading for more"
        )
    check_choice("second_moment of the saved state", own["second_moment"], (second_moment,))
    check_groups(state, groups)
    parameters = [parameter for group in groups for parameter in group["params"]]
    names = parameter_names(groups)
    for position, moments in state["state"].items():
        shape = local_tensor(parameters[position]).shape
        for name, per_loss in MOMENT_NAMES[second_moment].items():
            expected = (num_losses, *shape) if per_loss else tuple(shape)
            found = tuple(moments[name].shape) if name in moments else None
            if found != expected:
                raise InvalidValueError(
                    f"the saved {name} of {names[id(parameters[position])]} has shape {found}, expected {expected}; "
                    "build the optimizer for the same parameters"
                )

"""Saved states of optimizers: what does not fit is refused, and what was loaded half is taken back."""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from octavo_core.errors import InvalidValueError

__all__ = ["check_groups", "check_wrapped_state", "load_or_restore"]


def check_groups(state: Any, groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a state whose parameter groups do not have the sizes of the optimizer's.

    Args:
        state: What was given as the state of an optimizer.
        groups: The optimizer's parameter groups.

    Raises:
        InvalidValueError: If it is not a state, or of other groups.
    """
    if (
        not isinstance(state, Mapping)
        or not isinstance(state.get("state"), Mapping)
        or not isinstance(state.get("param_groups"), list | tuple)
        or not all(
            isinstance(group, Mapping)
            and isinstance(group.get("params"), list | tuple)
            and all(isinstance(key, int | str) for key in group["params"])
            for group in state["param_groups"]
        )
    ):
        raise InvalidValueError("this is not the state of an optimizer; give what state_dict() returned")
    sizes = [len(group["params"]) for group in groups]
    saved_sizes = [len(group["params"]) for group in state["param_groups"]]
    if sizes != saved_sizes:
        raise InvalidValueError(
            f"the saved parameter groups have {saved_sizes} parameters, those of this optimizer {sizes}; build it with "
            "the same groups"
        )


def check_wrapped_state(state: Any, optimizer: torch.optim.Optimizer) -> None:
    """Refuse a state that a ``ConFIGOptimizer`` around an optimizer cannot go on from.

    Args:
        state: What was given as a state.
        optimizer: The wrapped optimizer.

    Raises:
        InvalidValueError: If it is of ``MConFIG``, of other groups, or of another type of optimizer as far as that
            shows in the names of options and of what each parameter has in the state.
    """
    if isinstance(state, Mapping) and "mconfig" in state:
        raise InvalidValueError("this is the state of MConFIG; load it there, or give that of a ConFIGOptimizer")
    check_groups(state, optimizer.param_groups)
    own = state.get("config")
    if own is not None and not (
        isinstance(own, Mapping) and "aggregator" in own and isinstance(own.get("skipped_steps"), int)
    ):
        raise InvalidValueError("the saved state has a damaged 'config'; give what state_dict() returned")
    kind = type(optimizer).__name__
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        expected = _state_names(optimizer, group, saved) if group["params"] else None
        for key in saved["params"]:
            entry = state["state"].get(key, {})
            if not isinstance(entry, Mapping):
                raise InvalidValueError(
                    f"the saved state of parameter {key} is a {type(entry).__name__}, not a mapping; give what "
                    "state_dict() returned"
                )
            found = {name for name, value in entry.items() if value is not None}
            if expected is not None and found and (expected - found or not expected & found):
                raise InvalidValueError(
                    f"the saved state of parameter {key} holds {', '.join(sorted(map(str, found)))}, but {kind} keeps "
                    f"{', '.join(sorted(expected)) or 'nothing'}; wrap an optimizer of the type that was saved"
                )


def load_or_restore(target: Any, state: Any, what: str) -> None:
    """Load a state, or put back the one before if it does not fit.

    Args:
        target: Something with ``state_dict`` and ``load_state_dict``.
        state: The state.
        what: What it is, for the message.

    Raises:
        InvalidValueError: If loading fails.
    """
    before = copy.deepcopy(target.state_dict())
    try:
        target.load_state_dict(state)
    except Exception as error:
        target.load_state_dict(before)
        reason = " ".join(str(error).split())
        raise InvalidValueError(
            f"the saved state of {what} does not fit {type(target).__name__} ({reason}); build the optimizer with the "
            "same one"
        ) from error


def _state_names(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], saved: Mapping[str, Any]
) -> set[str] | None:
    """Names in the state of a parameter under the saved options; None where they cannot be found out."""
    number = group["params"][0].detach().new_zeros(1)
    number.grad = torch.zeros_like(number)
    options = {name: value for name, value in saved.items() if name not in ("params", "param_names")}
    try:
        # One step of a copy on one number: only the optimizer itself knows what it needs. No hook fires.
        trial = copy.copy(optimizer)
        trial.__setstate__({"state": defaultdict(dict), "param_groups": [{**options, "params": [number]}]})
        with torch.no_grad():
            inspect.unwrap(type(optimizer).step)(trial)
        return {name for name, value in trial.state[number].items() if value is not None}
    except KeyError as error:
        (missing,) = error.args or (None,)
        if missing in group and missing not in saved:
            raise InvalidValueError(
                f"the saved parameter groups lack {missing!r}, which {type(optimizer).__name__} has; wrap an optimizer "
                "of the type that was saved"
            ) from error
    except Exception:
        pass  # an optimizer of another library may refuse the trial for any reason
    entries = [optimizer.state[parameter] for parameter in group["params"] if parameter in optimizer.state]
    return set(entries[0]) if entries else None

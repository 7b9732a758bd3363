"""Arguments of a constraint's public methods as a batch of tensors, and the way back to the caller's form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

if TYPE_CHECKING:
    from octavo_aram.constraints.base import Constraint

__all__ = ["Batch"]


@dataclass(frozen=True)
class Batch:
    """Observations and actions as float64 tensors of one leading axis, and the way back to the caller's form."""

    obs: Tensor | None
    act: Tensor
    leading: tuple[int, ...]
    dtype: torch.dtype
    numpy: bool

    @classmethod
    def of(cls, constraint: Constraint, obs: Any, act: Any) -> Batch:
        """Check and convert one call's arguments."""
        action, action_finite = _tensor(act, "action")
        dim = constraint._checked_action_dim()
        if action.ndim == 0 or action.shape[-1] != dim:
            raise InvalidValueError(
                f"action of shape {tuple(action.shape)} does not fit {constraint!r}; "
                f"give [{dim}] or [batch, {dim}], in normalised units"
            )
        dtype = action.dtype if action.is_floating_point() else torch.float64
        action = action.to(_working_dtype(action.device))
        if not action_finite:
            raise InvalidValueError("the action holds NaN or infinite entries; a policy that diverged does this")
        observation = None
        leading = tuple(action.shape[:-1])
        if constraint.needs_obs:
            if obs is None:
                raise InvalidValueError(f"{constraint!r} depends on the state; give the raw observation")
            observation, finite = _tensor(obs, "observation")
            observation = observation.to(device=action.device, dtype=action.dtype)
            least = constraint.min_obs_dim
            if observation.ndim == 0 or observation.shape[-1] < least:
                raise InvalidValueError(
                    f"observation of shape {tuple(observation.shape)} is too short for {constraint!r}, which reads "
                    f"entry {least - 1}; give raw observations [obs] or [batch, obs]"
                )
            if not finite:
                raise InvalidValueError("the observation holds NaN or infinite entries; give raw, finite observations")
            if action.ndim == 1 and observation.ndim == 1:
                return cls(observation[None], action[None], (), dtype, not isinstance(act, Tensor))
            try:
                leading = torch.broadcast_shapes(leading, observation.shape[:-1])
            except RuntimeError as error:
                raise InvalidValueError(
                    f"{tuple(observation.shape[:-1])} observations and {leading} actions do not match; "
                    "give one observation, or one per action"
                ) from error
            observation = observation.expand(*leading, observation.shape[-1]).reshape(-1, observation.shape[-1])
            action = action.expand(*leading, dim)
        return cls(observation, action.reshape(-1, dim), tuple(leading), dtype, not isinstance(act, Tensor))

    @staticmethod
    def array(values: Any, what: str) -> np.ndarray:
        """A new array of real numbers from an array or lists."""
        try:
            array = np.array(values)
        except ValueError as error:
            raise InvalidValueError(
                f"the {what} is no array: its rows differ in length; give an array or a list"
            ) from error
        if array.dtype.kind not in "fiub":
            raise InvalidTypeError(f"the {what} has dtype {array.dtype}; give real numbers")
        if array.dtype.kind == "f" and array.dtype.itemsize > 8:
            array = array.astype(np.float64)
        return array

    def cast(self, values: Tensor) -> Tensor:
        """Floating-point results in the caller's dtype."""
        return values.to(self.dtype)

    def shaped(self, values: Tensor) -> Any:
        """Results [batch, ...] in the caller's leading shape and kind."""
        values = values.reshape((*self.leading, *values.shape[1:]))
        return values.detach().cpu().numpy() if self.numpy else values


def _working_dtype(device: torch.device) -> torch.dtype:
    # The Metal back end has no float64.
    return torch.float32 if device.type == "mps" else torch.float64


def _tensor(values: Any, what: str) -> tuple[Tensor, bool]:
    """A tensor, and whether all its entries are finite."""
    if isinstance(values, Tensor):
        if values.is_complex():
            raise InvalidTypeError(f"the {what} has dtype {values.dtype}; give real numbers")
        return values, bool(torch.isfinite(values.detach()).all())
    array = Batch.array(values, what)
    return torch.from_numpy(array), bool(np.isfinite(array).all())

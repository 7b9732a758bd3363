"""Which observation entries hold the velocity and the angle of each actuated joint, read from the MuJoCo model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64
from octavo_core.errors import InvalidTypeError, InvalidValueError

__all__ = ["JointIndices", "joint_indices"]

# Observations of Reacher: cosines and sines of both joints, target, velocities, fingertip minus target.
_REACHER_VELOCITY = 6
_REACHER_SIZES = {10, 11}
# Hopper and Walker2d clip the velocities that they show.
_CLIPS = (np.inf, 10.0)


@dataclass(frozen=True)
class JointIndices:
    """Indices into the observation, one per actuator, in the order of the action.

    Args:
        velocity: Entries with the joint velocities.
        angle: Entries with the joint angles; ``None`` where the observation shows only their sines and cosines.
    """

    velocity: Int64[np.ndarray, " actuators"]
    angle: Int64[np.ndarray, " actuators"] | None


def joint_indices(env: Any) -> JointIndices:
    """Resolve the observation entries of the actuated joints: from actuator to joint, to qvel, to observation.

    Args:
        env: A MuJoCo environment of Gymnasium (v4 or v5 observations: positions, then velocities), wrapped or not; the
            entries are those of the innermost environment's observation, which constraints read.

    Returns:
        The indices.

    Raises:
        InvalidTypeError: If the environment has no MuJoCo model, or an actuator drives no joint.
        InvalidValueError: If the observation is not laid out as positions then velocities.

    Source:
        Table of constraints: the official code fixes the indices per task; here they follow the model.
    """
    base = (env.envs[0] if hasattr(env, "envs") else env).unwrapped
    model = getattr(base, "model", None)
    if model is None or not hasattr(model, "actuator_trnid"):
        raise InvalidTypeError(
            f"{type(base).__name__} is no MuJoCo environment, so joint velocities cannot be resolved; "
            "build the constraint yourself, for example Orthoplex(w_idx=[...], limit=...)"
        )
    if (np.asarray(model.actuator_trntype) != 0).any():
        raise InvalidTypeError("an actuator of this model drives no joint; build the constraint yourself")
    joints = np.asarray(model.actuator_trnid)[:, 0]
    dofs = np.asarray(model.jnt_dofadr)[joints].astype(np.int64)
    positions = np.asarray(model.jnt_qposadr)[joints].astype(np.int64)
    size = int(np.prod(base.observation_space.shape))
    if type(base).__name__.startswith("Reacher"):
        if size not in _REACHER_SIZES:
            raise InvalidValueError(f"a Reacher observation of {size} entries is not known; accepted: 10 (v5), 11 (v4)")
        return JointIndices(_REACHER_VELOCITY + dofs, None)
    structure = getattr(base, "observation_structure", None)
    if structure and "qpos" in structure:
        shown = int(structure["qpos"])
    else:
        skipped = {"Ant": 2, "Humanoid": 2, "Swimmer": 2}.get(type(base).__name__.removesuffix("Env"), 1)
        hidden = getattr(base, "_exclude_current_positions_from_observation", True)
        shown = int(model.nq) - (skipped if hidden else 0)
    velocity, angle = shown + dofs, positions - (int(model.nq) - shown)
    if velocity.max() >= size or angle.min() < 0:
        raise InvalidValueError(
            f"the observation of {size} entries is too short for {shown} positions and {int(model.nv)} velocities; "
            "build the constraint yourself, for example Orthoplex(w_idx=[...], limit=...)"
        )
    _check_layout(base, velocity, dofs)
    return JointIndices(velocity, angle)


def _check_layout(base: Any, velocity: np.ndarray, dofs: np.ndarray) -> None:
    """Compare the entries with the simulator's velocities, where it has been reset."""
    if not hasattr(base, "_get_obs") or not hasattr(base, "data"):
        return
    shown, actual = np.asarray(base._get_obs())[velocity], np.asarray(base.data.qvel)[dofs]
    if not any(np.allclose(shown, actual.clip(-limit, limit), atol=1e-6) for limit in _CLIPS):
        raise InvalidValueError(
            f"the observation of {type(base).__name__} does not hold joint velocities where they were expected; "
            "build the constraint yourself, for example Orthoplex(w_idx=[...], limit=...)"
        )

"""Which group used an environment object last: two users of one object judge actions on stale observations."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
from octavo_core.errors import InvalidStateError, InvalidValueError

if TYPE_CHECKING:
    from octavo_aram.environment import EnvGroup

__all__ = ["base_of", "hold", "keep_hold", "refuse_training_envs"]

# By the identity of the innermost environment: itself, so that a reused identity is told apart, and its last user.
_users: dict[int, tuple[weakref.ref[Any], weakref.ref[Any]]] = {}


def base_of(env: Any) -> Any:
    """Find the innermost environment.

    Args:
        env: An environment.

    Returns:
        What remains without its wrappers; two wrapped environments share their state if they share this object.
    """
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
    return env


def hold(envs: Sequence[Any], group: EnvGroup | Any) -> None:
    """Note that a group uses environments from now on.

    Args:
        envs: The environments.
        group: The group; it is not kept alive by this.
    """
    for env in envs:
        base = base_of(env)
        forget = functools.partial(_forget, id(base))
        _users[id(base)] = (weakref.ref(base, forget), weakref.ref(group))


def keep_hold(group: EnvGroup | Any) -> bool:
    """Check that nobody else has used a group's environments since the group did.

    Args:
        group: The group.

    Returns:
        Whether the group may go on; False where another one that has ended, such as an evaluation, moved them. The
        group holds them again then.

    Raises:
        InvalidStateError: If an agent that can still learn holds one of them.
    """
    undisturbed = True
    for env in group.envs:
        known, user = _last_user(env)
        if user is group:
            continue
        # Else the user would be kept alive by this name.
        del user
        if _in_training(env):
            raise InvalidStateError(
                f"the environment {group.name!r} of this agent was given to another agent since, and each would judge "
                "its actions on observations that the other has made stale; make an environment for each agent"
            )
        undisturbed &= not known
        hold([env], group)
    return undisturbed


def refuse_training_envs(envs: Sequence[Any]) -> None:
    """Refuse environments that an agent trains in.

    Args:
        envs: Environments that are about to be reset.

    Raises:
        InvalidValueError: If an agent that can still learn holds one of them, also under other wrappers.
    """
    for env in envs:
        if _in_training(env):
            raise InvalidValueError(
                "an agent trains in this environment object, whose running episode an evaluation would break off; make "
                "another one of its kind, e.g. evaluate(agent, make_env())"
            )


def _forget(key: int, _: Any) -> None:
    _users.pop(key, None)


def _last_user(env: Any) -> tuple[bool, Any]:
    """Whether a user of the environment was noted, and the group if it still exists."""
    base = base_of(env)
    owned, user = _users.get(id(base), (None, None))
    known = owned is not None and owned() is base
    return known, user() if known and user is not None else None


def _in_training(env: Any) -> bool:
    if not getattr(_last_user(env)[1], "training", False):
        return False
    # Agents whose networks refer back to them outlive their last name until cycles are collected.
    gc.collect()
    return getattr(_last_user(env)[1], "training", False)

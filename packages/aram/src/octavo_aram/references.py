"""Constraints as users refer to them: the object itself, or the name of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo_core.errors import InvalidTypeError

from octavo_aram.constraints import Constraint
from octavo_aram.registry import make_constraint

__all__ = ["as_constraint"]


def as_constraint(constraint: Constraint | str | Any, env: Any) -> Constraint:
    """Accept a constraint or the name of one.

    Args:
        constraint: A constraint, a name of the registry, a YAML file, or ``module:Class``.
        env: The environment, from which indices are resolved.

    Returns:
        The constraint.

    Raises:
        InvalidTypeError: If it is neither, or a constraint without ``action_dim``.
    """
    if isinstance(constraint, Constraint):
        constraint._checked_action_dim()
        return constraint
    if isinstance(constraint, str | Path):
        name = str(constraint)
        if ":" in name or name.lower().endswith((".yaml", ".yml")):
            from octavo_aram.loading import load_constraint

            return load_constraint(name, env)
        return make_constraint(name, env)
    raise InvalidTypeError(
        f"{constraint!r} is no constraint; give an octavo_aram Constraint, or the name of one such as 'Re+L2'"
    )

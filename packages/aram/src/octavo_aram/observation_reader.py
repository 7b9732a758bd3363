"""What a wrapped environment lets see: its observation, checked, and what the constraint reads of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_aram.user_code import user_errors

__all__ = ["ObservationReader"]


class ObservationReader:
    """Checks observations of an environment and extracts what a constraint reads.

    Args:
        extract: A function of the user's from the observation to the constraint's vector; None for the observation.
        space: The observation space.

    Raises:
        InvalidTypeError: If ``extract`` cannot be called.
    """

    def __init__(self, extract: Callable[[Any], Any] | Any, space: Any) -> None:
        if extract is not None and not callable(extract):
            raise InvalidTypeError(
                f"constraint_obs={extract!r} is a {type(extract).__name__}; give a function that maps an observation "
                "to the vector that the constraint reads"
            )
        self.extract = extract
        self.shape = space.shape if isinstance(space, gymnasium.spaces.Box) else None

    def check(self, obs: Any) -> None:
        """Check that an observation has the shape of its space.

        Args:
            obs: The observation.

        Raises:
            InvalidValueError: If it has another one.
        """
        if self.shape is not None and np.shape(obs) != self.shape:
            raise InvalidValueError(
                f"the environment returned an observation of shape {np.shape(obs)}, but its observation space has "
                f"shape {self.shape}; mend the environment"
            )

    def read(self, obs: Any) -> np.ndarray:
        """Extract what the constraint reads.

        Args:
            obs: The observation.

        Returns:
            The constraint's observation.

        Raises:
            InvalidStateError: If the user's function fails; the message names its file and line.
        """
        if self.extract is None:
            return np.asarray(obs)
        with user_errors("constraint_obs"):
            return np.asarray(self.extract(obs))

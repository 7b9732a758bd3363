"""Replay memory for real transitions and rejected proposals: one preallocated table, one gather a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from octavo_core.errors import InvalidStateError, InvalidValueError
from torch import Tensor

__all__ = ["Batch", "DualReplayBuffer", "memory_text"]


class Batch(NamedTuple):
    """A batch as views of one table; the first columns are the critics' input.

    Args:
        state_action: Observation and action side by side.
        obs: Observation.
        action: Action, as the critics see it.
        next_obs: Next observation; the same one for a rejected proposal.
        rewards: Reward vector.
        continues: 0 where the episode terminated, else 1.
    """

    state_action: Float[Tensor, "batch inputs"]
    obs: Float[Tensor, "batch observations"]
    action: Float[Tensor, "batch actions"]
    next_obs: Float[Tensor, "batch observations"]
    rewards: Float[Tensor, "batch objectives"]
    continues: Float[Tensor, "batch 1"]


class DualReplayBuffer:
    """Two rings in one table: real transitions D, and rejected proposals D_aug.

    Memory is allocated at once (the system commits pages as they are written) and reported by ``nbytes``.

    Args:
        capacity: Real transitions kept.
        augmented_capacity: Rejected proposals kept; 0 for none.
        observations: Length of an observation.
        actions: Length of an action.
        objectives: Length of a reward vector.
        dtype: Precision of the table.

    Raises:
        InvalidValueError: If the capacity is below 1.
        InvalidStateError: If the memory cannot be had.

    Source: section 4.2 of the paper (dual buffers).
    """

    def __init__(
        self,
        capacity: int,
        augmented_capacity: int,
        *,
        observations: int,
        actions: int,
        objectives: int = 2,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if capacity < 1 or augmented_capacity < 0:
            raise InvalidValueError(
                f"buffer capacities {capacity} and {augmented_capacity} are too small; give at least 1 and 0"
            )
        self.capacity = capacity
        self.augmented_capacity = augmented_capacity
        self._obs = observations
        self._input = observations + actions
        self._next = self._input + observations
        self._rewards = self._next + objectives
        shape = (capacity + augmented_capacity, self._rewards + 1)
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        try:
            self._rows = np.zeros(shape, kind)
        except (MemoryError, ValueError) as error:
            # NumPy calls sizes beyond the address space invalid values.
            size = memory_text(shape[0] * shape[1] * kind.itemsize)
            raise InvalidStateError(
                f"no memory for a replay buffer of {size}; give a smaller buffer_capacity"
            ) from error
        self._table = torch.from_numpy(self._rows)
        self.added = 0
        """Real transitions added so far."""
        self.augmented_added = 0
        """Rejected proposals added so far."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the tensor, which copying and pickling would separate from the array that it is a view of."""
        return {name: value for name, value in vars(self).items() if name != "_table"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """View the array anew."""
        vars(self).update(state)
        self._table = torch.from_numpy(self._rows)

    def __len__(self) -> int:
        """Return how many real transitions are held."""
        return min(self.added, self.capacity)

    @property
    def num_augmented(self) -> int:
        """How many rejected proposals are held."""
        return min(self.augmented_added, self.augmented_capacity)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self._rows.nbytes

    @property
    def width(self) -> int:
        """Columns of the table."""
        return self._rows.shape[1]

    @property
    def observation_columns(self) -> tuple[slice, slice]:
        """Columns of the observation and of the next observation."""
        return slice(0, self._obs), slice(self._input, self._next)

    @property
    def action_columns(self) -> slice:
        """Columns of the action."""
        return slice(self._obs, self._input)

    def add(
        self,
        obs: np.ndarray,
        action: np.ndarray,
        rewards: np.ndarray,
        next_obs: np.ndarray,
        terminated: np.ndarray,
    ) -> None:
        """Add real transitions.

        Args:
            obs: Observations, (rows, observations).
            action: Actions, (rows, actions).
            rewards: Reward vectors, (rows, objectives).
            next_obs: Next observations, (rows, observations).
            terminated: Whether the episode ended there and not by a time limit, (rows,).
        """
        self._write(0, self.capacity, self.added, obs, action, rewards, next_obs, terminated)
        self.added += len(obs)

    def add_rejected(self, obs: np.ndarray, action: np.ndarray, rewards: np.ndarray) -> None:
        """Add rejected proposals as self-loops that never end an episode.

        Args:
            obs: Observations, (rows, observations).
            action: Infeasible proposals, (rows, actions).
            rewards: Reward vector (0, -kappa) of all, (objectives,).
        """
        if not self.augmented_capacity or not len(obs):
            return
        self._write(self.capacity, self.augmented_capacity, self.augmented_added, obs, action, rewards, obs, 0.0)
        self.augmented_added += len(obs)

    def _write(
        self,
        start: int,
        capacity: int,
        added: int,
        obs: np.ndarray,
        action: np.ndarray,
        rewards: np.ndarray,
        next_obs: np.ndarray,
        terminated: np.ndarray | float,
    ) -> None:
        count = len(obs)
        first = added % capacity
        if count == 1:
            where: Any = slice(start + first, start + first + 1)
        else:
            # More rows than the ring holds: the last ones stay, as if written one after another.
            skip = max(0, count - capacity)
            where = start + (first + np.arange(skip, count)) % capacity
            if skip:
                obs, action, next_obs = obs[skip:], action[skip:], next_obs[skip:]
                rewards = rewards[skip:] if rewards.ndim == 2 else rewards
                terminated = terminated[skip:] if isinstance(terminated, np.ndarray) else terminated
        rows = self._rows
        rows[where, : self._obs] = obs
        rows[where, self._obs : self._input] = action
        rows[where, self._input : self._next] = next_obs
        rows[where, self._next : self._rewards] = rewards
        rows[where, self._rewards] = 1.0 - np.asarray(terminated, rows.dtype)

    def indices(
        self, batch_size: int, augmented_share: float | int, rng: np.random.Generator
    ) -> Int[np.ndarray, " batch"]:
        """Draw rows: ``floor(share * batch)`` rejected ones, at most as many as there are, the rest real ones.

        Args:
            batch_size: Rows to draw, with replacement.
            augmented_share: Share eta of rejected ones.
            rng: Draws.

        Returns:
            Row numbers of the table.
        """
        augmented = min(int(augmented_share * batch_size), self.num_augmented)
        drawn = rng.integers(0, len(self), batch_size)
        if augmented:
            drawn[batch_size - augmented :] = rng.integers(0, self.num_augmented, augmented)
            drawn[batch_size - augmented :] += self.capacity
        return drawn

    def rows(self, indices: Int[np.ndarray, " batch"]) -> Float[Tensor, "batch width"]:
        """Copy rows of the table.

        Args:
            indices: Row numbers.

        Returns:
            The rows, on the CPU.
        """
        return self._table.index_select(0, torch.from_numpy(indices))

    def split(self, rows: Float[Tensor, "batch width"]) -> Batch:
        """Name the columns of rows.

        Args:
            rows: What :meth:`rows` returned, perhaps rescaled or moved.

        Returns:
            Views of the rows.
        """
        return Batch(
            rows[:, : self._input],
            rows[:, : self._obs],
            rows[:, self._obs : self._input],
            rows[:, self._input : self._next],
            rows[:, self._next : self._rewards],
            rows[:, self._rewards :],
        )

    def observations(self) -> Float[np.ndarray, "rows observations"]:
        """Return the observations of the real transitions held.

        Returns:
            A copy, in no particular order once the ring has turned.
        """
        return self._rows[: len(self), : self._obs].copy()

    def actions(self) -> Float[np.ndarray, "rows actions"]:
        """Return the actions of the real transitions held.

        Returns:
            A copy, in the order of :meth:`observations`.
        """
        return self._rows[: len(self), self.action_columns].copy()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs.

        Returns:
            The rows in use and the counters.
        """
        augmented = slice(self.capacity, self.capacity + self.num_augmented)
        return {
            "real": self._rows[: len(self)].copy(),
            "augmented": self._rows[augmented].copy(),
            "added": self.added,
            "augmented_added": self.augmented_added,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what :meth:`state_dict` returned.

        Args:
            state: The saved state.

        Raises:
            InvalidStateError: If it belongs to a buffer of another shape.
        """
        real, augmented = state["real"], state["augmented"]
        sizes = (min(state["added"], self.capacity), min(state["augmented_added"], self.augmented_capacity))
        if real.shape != (sizes[0], self.width) or augmented.shape != (sizes[1], self.width):
            raise InvalidStateError(
                f"the saved buffers have shapes {real.shape} and {augmented.shape}, this run needs "
                f"{(sizes[0], self.width)} and {(sizes[1], self.width)}; use the settings and environment of that run"
            )
        self._rows[: sizes[0]] = real
        self._rows[self.capacity : self.capacity + sizes[1]] = augmented
        self.added = int(state["added"])
        self.augmented_added = int(state["augmented_added"])


def memory_text(nbytes: int) -> str:
    """Write a number of bytes for a reader.

    Args:
        nbytes: The number.

    Returns:
        For example ``"191 MiB"``.
    """
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"

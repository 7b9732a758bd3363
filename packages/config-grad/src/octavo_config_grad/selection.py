"""Which losses M-ConFIG refreshes in a step: in turn, at random, or as a function of the caller says."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_config_grad.arguments import check_integer, check_seed
from octavo_config_grad.saved_state import load_or_restore

__all__ = ["LossSelector", "loss_indices"]


class LossSelector:
    """Chooses the losses of each step and remembers where it stands.

    Args:
        num_losses: Number of losses, m.
        updates_per_step: Number of losses k in a selection, 1 to m.
        select: ``"round_robin"`` (k consecutive losses, going on where the last selection ended), ``"random"`` (k
            distinct losses, uniformly), or a function ``(selection_count, num_losses) -> indices`` that may return any
            number of distinct indices. A function object with ``state_dict``/``load_state_dict`` has its state saved.
        seed: Seed of the random selection.

    Raises:
        InvalidValueError: If a number is out of range or the name is unknown.
        InvalidTypeError: If ``select`` is neither a name nor a function, or a number not an integer.

    Source: Section 3.2 of the paper (Algorithm 1 refreshes one loss in turn); several per step as in the official
    multi-task study.
    """

    def __init__(
        self, num_losses: int, *, updates_per_step: Any = 1, select: Any = "round_robin", seed: Any = 0
    ) -> None:
        if isinstance(select, str):
            if select not in ("round_robin", "random"):
                raise InvalidValueError(
                    f"select={select!r} is unknown; give 'round_robin', 'random' or a function (count, m) -> indices"
                )
        elif not callable(select):
            raise InvalidTypeError(
                f"select is a {type(select).__name__}; give 'round_robin', 'random' or a function (count, m) -> indices"
            )
        self.updates_per_step = check_integer("updates_per_step", updates_per_step, 1, num_losses)
        self.num_losses = num_losses
        self.select = select
        self._generator = torch.Generator().manual_seed(check_seed(seed))
        self._position = 0
        self._count = 0
        self._pending: list[int] | None = None

    def peek(self) -> list[int]:
        """Return the pending selection, drawing it if there is none: the same until :meth:`advance`."""
        if self._pending is None:
            if self.select == "round_robin":
                chosen = [(self._position + offset) % self.num_losses for offset in range(self.updates_per_step)]
            elif self.select == "random":
                order = torch.randperm(self.num_losses, generator=self._generator)
                chosen = order[: self.updates_per_step].tolist()
            else:
                returned = self.select(self._count, self.num_losses)
                if not isinstance(returned, Iterable):
                    raise InvalidTypeError(
                        f"select returned {reprlib.repr(returned)}, a {type(returned).__name__}; it must return the "
                        "indices of losses as a sequence"
                    )
                chosen = loss_indices(returned, self.num_losses, "select returned")
            self._pending = chosen
        return list(self._pending)

    def advance(self) -> None:
        """Move on to the next selection; without a pending one nothing happens."""
        if self._pending is not None:
            self._position = (self._position + len(self._pending)) % self.num_losses
            self._count += 1
            self._pending = None

    def grow(self) -> None:
        """Count one loss more; a pending selection stays."""
        self.num_losses += 1

    def state_dict(self) -> dict[str, Any]:
        """Return position, count, pending selection, random state and the state of a stateful function."""
        state: dict[str, Any] = {
            "kind": self.select if isinstance(self.select, str) else "function",
            "position": self._position,
            "count": self._count,
            "pending": self._pending,
            "random_state": self._generator.get_state(),
        }
        if hasattr(self.select, "state_dict"):
            state["function"] = self.select.state_dict()
        return state

    def check_state(self, state: Any) -> None:
        """Raise an error if a saved state belongs to another kind of selection, or is damaged."""
        kind = self.select if isinstance(self.select, str) else "function"
        names = ("kind", "position", "count", "pending", "random_state", *self._function_names())
        missing = names if not isinstance(state, Mapping) else [name for name in names if name not in state]
        if missing:
            raise InvalidValueError(
                f"the saved selector lacks {', '.join(missing)}; give what state_dict() returned, with the same select"
            )
        if state["kind"] != kind:
            raise InvalidValueError(
                f"the saved state selects losses by {state['kind']!r}, this optimizer by {kind!r}; "
                "build it with the same select"
            )
        check_integer("the saved selector.position", state["position"], 0, self.num_losses - 1)
        check_integer("the saved selector.count", state["count"], 0)
        if state["pending"] is not None:
            if not isinstance(state["pending"], list | tuple):
                raise InvalidTypeError(
                    f"the saved selector.pending is a {type(state['pending']).__name__}; give what state_dict() "
                    "returned"
                )
            loss_indices(state["pending"], self.num_losses, "the saved selector.pending")
        try:
            torch.Generator().set_state(state["random_state"].cpu())
        except Exception as error:
            raise InvalidValueError(
                f"the saved selector.random_state is not that of a generator ({error}); give what state_dict() returned"
            ) from error

    def load_state_dict(self, state: Any) -> None:
        """Restore what :meth:`state_dict` returned; nothing is changed unless all of it fits."""
        self.check_state(state)
        for name in self._function_names():
            load_or_restore(self.select, state[name], "the selection function")
        self._position = state["position"]
        self._count = state["count"]
        self._pending = None if state["pending"] is None else list(state["pending"])
        self._generator.set_state(state["random_state"].cpu())

    def _function_names(self) -> list[str]:
        """Entries of the state that belong to the function."""
        return ["function"] if hasattr(self.select, "state_dict") and hasattr(self.select, "load_state_dict") else []


def loss_indices(indices: Iterable[Any], num_losses: int, what: str) -> list[int]:
    """Check loss indices and return them as Python integers.

    Args:
        indices: Integers of any kind (Python, NumPy, 0-d integer tensors).
        num_losses: Number of losses, m.
        what: What the indices are, for the message.

    Returns:
        The indices, in the order given.

    Raises:
        InvalidTypeError: If an index is not an integer.
        InvalidValueError: If an index lies outside 0..m-1 or occurs twice.
    """
    checked: list[int] = []
    for index in indices:
        try:
            if isinstance(index, bool):
                raise TypeError
            value = operator.index(index)
        except TypeError:
            raise InvalidTypeError(
                f"{what}: {index!r} is a {type(index).__name__}, not an integer; give 0 to {num_losses - 1}"
            ) from None
        if not 0 <= value < num_losses:
            raise InvalidValueError(f"{what}: index {value} is out of range; give 0 to {num_losses - 1}")
        if value in checked:
            raise InvalidValueError(f"{what}: index {value} is repeated; give each loss at most once")
        checked.append(value)
    return checked

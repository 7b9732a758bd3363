"""What each setting of the learners accepts: counts, ranges, choices, words, weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from octavo_core.errors import InvalidTypeError, InvalidValueError

__all__ = ["check_preference", "check_settings", "plain_value"]

# Lowest value of each count.
_COUNTS = {
    "batch_size": 1,
    "start_steps": 0,
    "updates_per_step": 0,
    "buffer_capacity": 1,
    "max_tries": 1,
    "block": 1,
    "augmented_decay_every": 1,
    "actions_per_state": 1,
    "num_preferences": 1,
    "num_snapshots": 0,
    "snapshot_every": 1,
    "snapshot_start": 0,
    "policy_delay": 1,
    "seed": 0,
    "augmented_capacity": 1,
}
# Highest values; beyond them memory runs out, or a generator takes no such seed.
_LARGEST_COUNT = 10**9
_LARGEST = {
    "seed": 2**32 - 1,
    "buffer_capacity": 10**8,
    "augmented_capacity": 10**8,
    "batch_size": 10**6,
    "block": 10**5,
    "actions_per_state": 10**4,
    "num_preferences": 10**4,
    "num_snapshots": 10**3,
}
# Lowest value, highest value, and whether the highest is itself allowed.
_RANGES = {
    "discount": (0.0, 1.0, False),
    "polyak": (1e-12, 1.0, True),
    "learning_rate": (1e-12, math.inf, False),
    "penalty": (0.0, math.inf, False),
    "augmented_share": (0.0, 1.0, True),
    "augmented_decay": (0.0, 1.0, True),
    "initial_temperature": (1e-8, math.inf, False),
    "violation_weight": (0.0, math.inf, False),
    "frank_wolfe_rate": (0.0, 1.0, True),
    "multiplier_rate": (0.0, math.inf, False),
    "exploration_noise": (0.0, math.inf, False),
    "target_noise": (0.0, math.inf, False),
    "target_noise_clip": (0.0, math.inf, False),
    "reward_scale": (1e-12, math.inf, False),
    "reward_offset": (-math.inf, math.inf, False),
}
_CHOICES = {
    "fallback": ("project", "interior", "hit_and_run", "raise"),
    "observation_scaling": ("auto", "warmup", "none"),
    "action_scaling": ("warmup", "none"),
    "dtype": ("float32", "float64"),
}
_SWITCHES = ("store_proposal", "use_arm", "use_automdp", "dual_buffer")
_WORDS = {"temperature": ("auto",), "target_entropy": ("volume", "dimension")}


def check_preference(preference: Any, *, size: int = 2) -> tuple[float, ...]:
    """Check weights on the simplex.

    Args:
        preference: Non-negative weights that sum to 1 within 1e-6.
        size: How many there must be.

    Returns:
        The weights as floats.

    Raises:
        InvalidValueError: If they are not on the simplex.
    """
    try:
        weights = tuple(float(weight) for weight in preference)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"preference {preference!r} must be {size} weights that sum to 1") from error
    if len(weights) != size or not all(0 <= weight <= 1 for weight in weights) or abs(sum(weights) - 1) > 1e-6:
        raise InvalidValueError(
            f"preference {weights} is not on the simplex; give {size} weights, each at least 0, that sum to 1"
        )
    return weights


def plain_value(value: Any) -> Any:
    """Turn numbers of NumPy and torch into those of Python, which compare, hash and can be written as JSON.

    Args:
        value: A scalar, an array, a tensor, a sequence of them, or anything else.

    Returns:
        Python scalars, tuples for what has entries; anything else as it is.
    """
    # Both libraries have this method; importing torch here would slow the command line down.
    if callable(getattr(value, "tolist", None)):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(plain_value(item) for item in value)
    return value


def check_settings(values: Mapping[str, Any]) -> None:
    """Check settings by name.

    Args:
        values: Settings of :class:`octavo_aram.config.ARAMConfig`, some or all.

    Raises:
        InvalidValueError: If a value is out of range.
        InvalidTypeError: If a value has the wrong type.
    """
    for name, value in values.items():
        optional = name in {"augmented_capacity", "reward_scale", "reward_offset"}
        if optional and value is None:
            continue
        if name in _COUNTS:
            _check_integer(name, value, _COUNTS[name], _LARGEST.get(name, _LARGEST_COUNT))
        elif name in _RANGES:
            low, high, closed_high = _RANGES[name]
            _check_number(name, value, low, high, closed_high=closed_high)
        elif name in _CHOICES and value not in _CHOICES[name]:
            raise InvalidValueError(f"{name}={value!r} is unknown; give one of {', '.join(_CHOICES[name])}")
        elif name in _SWITCHES and not isinstance(value, bool):
            raise InvalidTypeError(f"{name}={value!r} must be true or false")
        elif name in _WORDS:
            _check_word_or_number(name, value, _WORDS[name], positive=name == "temperature")
        elif name == "hidden":
            _check_widths(value)
        elif name == "preference":
            _check_weights(value)
        elif name == "preference_schedule":
            _check_schedule(value)
        elif name == "device" and not isinstance(value, str):
            raise InvalidTypeError(f"device={value!r} must be a word such as 'cpu' or 'cuda'")


def _check_widths(value: Any) -> None:
    listed = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    if not listed or any(isinstance(width, bool) or not isinstance(width, int) or width < 1 for width in value):
        raise InvalidValueError(f"hidden={value!r} must be one or more widths of at least 1, e.g. (64, 64)")


def _check_weights(value: Any) -> None:
    if not isinstance(value, str):
        check_preference(value)
    elif value != "dirichlet":
        raise InvalidValueError(f"preference={value!r} is unknown; give two weights that sum to 1, or 'dirichlet'")


def _check_schedule(value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidTypeError(f"preference_schedule={value!r} must be pairs (step, weights), e.g. ((0, (0.5, 0.5)),)")
    steps = []
    for entry in value:
        if isinstance(entry, str) or not isinstance(entry, Sequence) or len(entry) != 2:
            raise InvalidValueError(f"preference_schedule entry {entry!r} must be a pair (step, weights)")
        _check_integer("the step of preference_schedule", entry[0], 0)
        check_preference(entry[1])
        steps.append(entry[0])
    if steps != sorted(set(steps)):
        raise InvalidValueError(f"the steps {steps} of preference_schedule must rise")


def _check_integer(name: str, value: Any, low: int, high: int = _LARGEST_COUNT) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidTypeError(f"{name}={value!r} must be an integer of at least {low}")
    if value < low:
        raise InvalidValueError(f"{name}={value} is too small; give an integer of at least {low}")
    if value > high:
        raise InvalidValueError(f"{name}={value} is too large; give an integer of at most {high:,}")


def _check_number(name: str, value: Any, low: float, high: float, *, closed_high: bool = True) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidTypeError(f"{name}={value!r} must be a number")
    below_high = value <= high if closed_high else value < high
    if not math.isfinite(value) or not low <= value or not below_high:
        upper = "" if high == math.inf else f" and {'at most' if closed_high else 'below'} {high:g}"
        lower = "" if low == -math.inf else f" of at least {low:g}"
        raise InvalidValueError(f"{name}={value} is out of range; give a finite number{lower}{upper}")


def _check_word_or_number(name: str, value: Any, words: tuple[str, ...], *, positive: bool = False) -> None:
    choices = ", ".join(repr(word) for word in words)
    if isinstance(value, str):
        if value not in words:
            raise InvalidValueError(f"{name}={value!r} is unknown; give {choices} or a number")
        return
    _check_number(name, value, 0.0 if positive else -math.inf, math.inf)

"""The settings of sampled attention, checked where they are made."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from octavo_core.errors import InvalidTypeError, InvalidValueError

__all__ = ["MAX_SEGMENT", "LSHConfig"]

MAX_SEGMENT = 65_535
"""Most keys of a segment: its ids and offsets then fit in 16 bits."""

_MAX_TABLES = 4096
# Positions are 64 bits wide, and so must be the sum of two.
_MAX_TOKENS = 2**62
_CHOICES = {
    "transform": (None, "simple"),
    "planes": ("gaussian", "hadamard"),
    "planes_per": ("layer", "head", "model"),
    "kv_dtype": ("auto", "float32", "bfloat16", "float16"),
    "kernel": ("auto", "native", "numba", "torch"),
}
_AT_LEAST = {
    "key_bits": 1,
    "num_tables": 1,
    "min_hits": 0,
    "sink_tokens": 0,
    "window_tokens": 0,
    "min_context": 0,
    "segment_max": 16,
    "segment_min": 1,
    "heavy_tokens": 0,
    "seed": 0,
}
_AT_MOST = {
    "key_bits": 16,
    "num_tables": _MAX_TABLES,
    "min_hits": 8,
    "min_context": 2**63 - 1,
    "segment_max": MAX_SEGMENT,
    "seed": 2**63 - 1,
}


@dataclass(frozen=True)
class LSHConfig:
    """Settings of LSH-sampled attention.

    Args:
        key_bits: Hash bits of a table (the paper's K), 1 to 16. More bits: fewer keys collide.
        num_tables: Hash tables (the paper's L), 1 to 4096. More tables: more keys are selected, more memory.
        min_hits: Tables in which a key must collide with the query to be selected, 0 to 8; 2 in the paper. 0 selects
            every key, which is exact attention.
        sink_tokens: First tokens that stay exact.
        window_tokens: Last tokens that stay exact, at least; generated tokens join them until a segment of
            ``segment_min`` can be formed.
        dense_layers: Layers that stay exact: a tuple of indices, or ``"auto"`` for 0, 16, 32, ... (0 and half the depth
            in models of 16 layers or fewer).
        center: Subtract the mean key before hashing and in the cosine. Without it almost nothing collides in real
            models.
        transform: ``"simple"`` appends ``sqrt(R^2 - |k|^2)`` to each key, which turns inner-product search into cosine
            search; ``None`` as in the reference code.
        weight_eps: Added to the selection probability in the weight; 1e-4 in the reference code. 0 is unbiased.
        planes: ``"gaussian"``, or ``"hadamard"`` for blocks of randomised Hadamard transforms (beyond the paper).
        planes_per: Whether the planes are shared by the kv heads of a layer (``"layer"``), drawn for each of them
            (``"head"``), or shared by all layers (``"model"``).
        min_context: Tokens in the cache below which attention stays exact.
        segment_max: Most keys of a segment, 16 to 65,535.
        segment_min: Generated tokens that form a new segment together.
        heavy_tokens: Keys of each kv head that stay exact because the last prompt queries attended to them most; 0 for
            the paper's method (beyond the paper, see :func:`octavo_magicpig.heavy.heavy_positions`).
        tolerance: Estimated relative error above which a head is computed exactly instead; ``None`` for the paper's
            method (beyond the paper).
        kv_dtype: Type that keys and values are stored in; ``"auto"`` keeps theirs (float64 becomes float32).
        kernel: ``"native"``, ``"numba"``, ``"torch"``, or ``"auto"`` for the first of them that is available.
        seed: Seed of the planes.

    Raises:
        InvalidTypeError: If a setting is not of the right type.
        InvalidValueError: If a setting is out of range; the message names it and its limits.

    Source:
        Sections 4 and 5 of the paper and its reference code, where the defaults come from.
    """

    key_bits: int | Any = 10
    num_tables: int | Any = 150
    min_hits: int | Any = 2
    sink_tokens: int | Any = 4
    window_tokens: int | Any = 64
    dense_layers: Any = "auto"
    center: bool | Any = True
    transform: str | Any = None
    weight_eps: float | Any = 1e-4
    planes: str | Any = "gaussian"
    planes_per: str | Any = "layer"
    min_context: int | Any = 4096
    segment_max: int | Any = MAX_SEGMENT
    segment_min: int | Any = 1024
    heavy_tokens: int | Any = 0
    tolerance: float | Any = None
    kv_dtype: str | Any = "auto"
    kernel: str | Any = "auto"
    seed: int | Any = 0

    def __post_init__(self) -> None:
        for name, low in _AT_LEAST.items():
            value, high = getattr(self, name), _AT_MOST.get(name, _MAX_TOKENS)
            limits = f"{low} to {high}" if name in _AT_MOST else f"{low} or more, at most 2^62"
            if isinstance(value, bool) or not isinstance(value, numbers.Integral):
                raise InvalidTypeError(f"{name}={value!r} is not an integer; give {limits}")
            if not low <= value <= high:
                raise InvalidValueError(f"{name}={value} is out of range; give {limits}")
            object.__setattr__(self, name, int(value))
        if self.num_tables < self.min_hits:
            raise InvalidValueError(
                f"num_tables={self.num_tables} is below min_hits={self.min_hits}, so no key could be selected; "
                "give at least as many tables as hits"
            )
        if self.segment_min > self.segment_max:
            raise InvalidValueError(
                f"segment_min={self.segment_min} is above segment_max={self.segment_max}; give at most that many"
            )
        for name, accepted in _CHOICES.items():
            value = getattr(self, name)
            if not isinstance(value, (str, type(None))) or value not in accepted:
                raise InvalidValueError(f"{name}={value!r} is unknown; give one of {accepted}")
        if not isinstance(self.center, bool):
            raise InvalidTypeError(f"center={self.center!r} is neither True nor False")
        weight_eps = _number("weight_eps", self.weight_eps)
        if not 0 <= weight_eps < 1:
            raise InvalidValueError(f"weight_eps={self.weight_eps} is out of range; give 0 or more and less than 1")
        object.__setattr__(self, "weight_eps", weight_eps)
        if self.tolerance is not None:
            tolerance = _number("tolerance", self.tolerance)
            if not 0 < tolerance < math.inf:
                raise InvalidValueError(f"tolerance={self.tolerance} is out of range; give a positive error, or None")
            object.__setattr__(self, "tolerance", tolerance)
        if not isinstance(self.dense_layers, str) or self.dense_layers != "auto":
            self._check_dense_layers()

    def _check_dense_layers(self) -> None:
        layers = self.dense_layers
        if not isinstance(layers, (tuple, list)) or not all(
            isinstance(index, numbers.Integral) and not isinstance(index, bool) for index in layers
        ):
            raise InvalidTypeError(f"dense_layers={layers!r} is neither 'auto' nor a tuple of layer indices")
        if any(index < 0 for index in layers):
            raise InvalidValueError(f"dense_layers={layers} holds a negative index; count layers from 0")
        object.__setattr__(self, "dense_layers", tuple(int(index) for index in layers))

    def dense_layer_indices(self, num_layers: int) -> frozenset[int]:
        """List the layers of a model that stay exact.

        Args:
            num_layers: Depth of the model.

        Returns:
            Their indices.

        Raises:
            InvalidValueError: If ``dense_layers`` names a layer that the model does not have.
        """
        if self.dense_layers == "auto":
            return frozenset(range(0, num_layers, 16) if num_layers > 16 else (0, num_layers // 2))
        if beyond := [index for index in self.dense_layers if index >= num_layers]:
            raise InvalidValueError(
                f"dense_layers names layer {beyond[0]}, but the model has {num_layers} layers; "
                f"give 0 to {num_layers - 1}"
            )
        return frozenset(self.dense_layers)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON-ready values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, settings: Any) -> LSHConfig:
        """Make a configuration from what :meth:`to_dict` returned.

        Args:
            settings: Values by name; missing ones take their defaults.

        Returns:
            The configuration.

        Raises:
            InvalidValueError: If a name is unknown or a value out of range.
            InvalidTypeError: If it is no dictionary, or a value is not of the right type.
        """
        if not isinstance(settings, Mapping):
            raise InvalidTypeError(f"{settings!r} is no dictionary; give settings by name, as to_dict() returns them")
        known = {field.name for field in fields(cls)}
        if unknown := [name for name in settings if name not in known]:
            raise InvalidValueError(f"unknown setting {unknown[0]!r}; known are {', '.join(sorted(known))}")
        return cls(**settings)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidTypeError(f"{name}={value!r} is not a number")
    try:
        return float(value)
    except OverflowError:  # an integer beyond what a float holds
        return math.inf if value > 0 else -math.inf

"""Choice of the arithmetic that evaluates the fixed weights."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from octavo_core.errors import InvalidValueError

from octavo_prompt_turing.arguments import check_integer, check_type
from octavo_prompt_turing.precision import check_engine, max_length

__all__ = ["EngineConfig", "engine_config"]


@dataclass(frozen=True)
class EngineConfig:
    """How the fixed weights are evaluated.

    Args:
        engine: ``"exact"`` (integers, no limit, constant time a token; for the construction's weights only),
            ``"deficit64"`` (dense float64 without cancellation, up to 131,072 tokens), ``"reference"`` (dense fixed
            point, the oracle), ``"float64"`` or ``"float32"`` (dense, as written; kept to show where it fails).
        tie_tolerance: For the ``float`` engines: scores that close to the largest are ties, and norms below it are 0.
        bits: For ``reference``: bits after the binary point of a comparison.
        strict: Raise :class:`PrecisionError` beyond the engine's guaranteed length instead of going on.

    Raises:
        InvalidValueError: If the engine is unknown, or a number is not positive.
        InvalidTypeError: If ``tie_tolerance`` is not a number or ``bits`` not a whole one.
    """

    engine: str = "deficit64"
    tie_tolerance: float | None = None
    bits: int = 128
    strict: bool = True

    def __post_init__(self) -> None:
        check_engine(self.engine)
        if self.tie_tolerance is not None:
            check_type("tie_tolerance", self.tie_tolerance, Real, "a number in (0, 1)")
            if not 0 < self.tie_tolerance < 1:
                raise InvalidValueError(f"tie_tolerance={self.tie_tolerance} is not in (0, 1)")
        # NumPy's integers would overflow in fixed point.
        object.__setattr__(self, "bits", check_integer("bits", self.bits))
        if self.bits < 8:
            raise InvalidValueError(f"bits={self.bits} is too small; give 8 or more")

    @property
    def max_length(self) -> int | None:
        """Longest sequence that the engine is guaranteed for; ``None`` for no limit."""
        return max_length(self.engine, tie_tolerance=self.tie_tolerance, bits=self._bits)

    @property
    def _bits(self) -> int | None:
        return self.bits if self.engine == "reference" else None

    @property
    def tolerance(self) -> float:
        """Tie tolerance of the ``float`` engines, the default where none was given."""
        if self.tie_tolerance is not None:
            return self.tie_tolerance
        return 1e-6 if self.engine == "float32" else 4e-15


def engine_config(engine: str | EngineConfig) -> EngineConfig:
    """Accept an engine by its name or with its options.

    Args:
        engine: Name, or options.

    Returns:
        The options.

    Raises:
        InvalidValueError: If there is no such engine.
        InvalidTypeError: If it is neither.
    """
    check_type("engine", engine, (str, EngineConfig), "an EngineConfig, or a name such as 'exact'")
    return EngineConfig(engine) if isinstance(engine, str) else engine

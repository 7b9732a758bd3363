"""Length models: how long the conflict-free step is, given the gradient norms and the cosines to its direction."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_config_grad.arguments import check_number

__all__ = ["LENGTH_MODELS", "LengthModel", "update_length"]

LengthModel = str | int | Callable
"""A name in ``LENGTH_MODELS``, the index k of a loss to track, or a function ``(norms, cosines) -> length``."""

# tau of the official "track" models as a function of the norms of the non-zero gradients.
_SCALES: dict[str, Callable[[np.ndarray], float]] = {
    "min": np.min,
    "max": np.max,
    "mean": np.mean,
    "geometric": lambda norms: np.exp(np.mean(np.log(norms))),
    "harmonic": lambda norms: 1.0 / np.mean(1.0 / norms),
}

LENGTH_MODELS: tuple[str, ...] = ("projection", *_SCALES, *(f"inverse_{name}" for name in _SCALES))
"""Names that ``length=`` accepts, beside a loss index and a function."""


def check_length_model(model: object, num_losses: int | None = None) -> None:
    """Refuse a length model that does not exist.

    Args:
        model: What the caller passed as ``length``.
        num_losses: Number of losses m, when known; an index must lie in ``[0, m)``.

    Raises:
        InvalidValueError: If the name is unknown or the index out of range.
        InvalidTypeError: If it is neither a name, an index nor a function.
    """
    if isinstance(model, str):
        if model not in LENGTH_MODELS:
            raise InvalidValueError(
                f"unknown length model {model!r}: use one of {', '.join(LENGTH_MODELS)}, a loss index or a function "
                "(norms, cosines) -> length"
            )
    elif isinstance(model, int) and not isinstance(model, bool):
        if model < 0 or (num_losses is not None and model >= num_losses):
            known = "use 0 or more" if num_losses is None else f"with {num_losses} losses use 0 to {num_losses - 1}"
            raise InvalidValueError(f"length={model} tracks a loss that does not exist: {known}")
    elif not callable(model):
        raise InvalidTypeError(
            f"length must be a name ({', '.join(LENGTH_MODELS)}), a loss index or a function (norms, cosines) -> "
            f"length, not {type(model).__name__}"
        )


def update_length(
    model: LengthModel, norms: Float64[np.ndarray, " losses"], cosines: Float64[np.ndarray, " losses"]
) -> float:
    """Length of the update along the unit direction ``g_u``.

    ``"projection"`` gives ``sum_i |g_i| cos_i``, for which ``sum_i g_i . d = |d|^2`` (the descent lemma holds). The
    others give ``tau * sum_i cos_i`` with ``tau`` a mean of the norms or the norm of one loss; with Adam, one huge
    gradient dictates Adam's step size, and ``"min"`` or ``"harmonic"`` can help. ``"inverse_*"`` give
    ``tau * sum_i 1 / cos_i``, which grows under conflict instead of shrinking.

    Args:
        model: A name in ``LENGTH_MODELS``, a loss index k (``tau = |g_k|``), or a function of two float64 tensors (m,),
            norms and cosines, that returns the length.
        norms: Gradient norms ``|g_i|``; zero gradients take no part in a mean or a minimum.
        cosines: Cosines between each gradient and the direction, zero for a zero gradient.

    Returns:
        The length l of ``g_ConFIG = l g_u``. ``"inverse_*"`` give 0 when a cosine is not positive, where the formula
        diverges.

    Raises:
        InvalidValueError: If the model is unknown, or a function returns something not finite.
        InvalidTypeError: If the model is of another type, or a function returns something else than a number.

    Source:
        The length models of the paper and its released code; ``"inverse_*"`` are the ``tau / cos`` variants of the
        paper's study code.
    """
    check_length_model(model, len(norms))
    if model == "projection":
        return float(norms @ cosines)
    if isinstance(model, int):
        return float(norms[model] * cosines.sum())
    if not isinstance(model, str):
        return _finite_length(model(torch.from_numpy(norms.copy()), torch.from_numpy(cosines.copy())))
    nonzero = norms > 0.0
    tau = float(_SCALES[model.removeprefix("inverse_")](norms[nonzero]))
    if not model.startswith("inverse_"):
        return tau * float(cosines.sum())
    cosines = cosines[nonzero]
    return tau * float(np.sum(1.0 / cosines)) if cosines.min() > 0.0 else 0.0


def _finite_length(returned: Any) -> float:
    try:
        check_number("length", returned)
    except InvalidTypeError:
        raise InvalidTypeError(
            f"the length function returned {reprlib.repr(returned)}, a {type(returned).__name__}; it must return a "
            "finite number"
        ) from None
    length = float(returned)
    if not math.isfinite(length):
        raise InvalidValueError(f"the length function returned {length}; it must return a finite number")
    return length

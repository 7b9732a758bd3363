"""Aggregators of this package in torchjd, and torchjd's here (extra ``torchjd``)."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from octavo_core.errors import InvalidTypeError, MissingDependencyError

from octavo_config_grad.aggregators import Aggregator

__all__ = ["from_torchjd", "to_torchjd"]


def from_torchjd(aggregator: Any, *, nonfinite: str = "raise") -> Aggregator:
    """Use a torchjd aggregator or weighting wherever this package takes an aggregator.

    One that decides by the Gramian (UPGrad, CAGrad, MGDA, ...) sees the float64 Gramian. One that takes a matrix but
    weights whole rows (NashMTL, Random, ...) sees a square root of the Gramian, which has the same dot products. One
    that works on coordinates (GradDrop, TrimmedMean, torchjd's ConFIG) sees the flattened gradients: it has
    ``needs_gradients = True`` and no ``weights``.

    Args:
        aggregator: A ``torchjd.aggregation.Aggregator``, or a ``Weighting`` of Gramians.
        nonfinite: For gradients that hold NaN or infinity, ``"raise"`` or ``"skip"``.

    Returns:
        The aggregator; what torchjd keeps in ``state_dict`` is part of its own.

    Raises:
        MissingDependencyError: If torchjd is not installed.
        InvalidTypeError: If the object is not from torchjd.
        InvalidValueError: If ``nonfinite`` is another word.

    Source:
        Beyond the paper: torchjd holds the aggregators that the field compares with.
    """
    bridge = _bridge()
    if not isinstance(aggregator, bridge.TorchJDAggregator | bridge.Weighting):
        raise InvalidTypeError(
            f"from_torchjd takes a torchjd.aggregation.Aggregator or Weighting, not {type(aggregator).__name__}"
        )
    return bridge.import_aggregator(aggregator, nonfinite)


def to_torchjd(aggregator: Aggregator) -> Any:
    """Use an aggregator of this package in torchjd: ``jac_to_grad``, and ``autogram`` through ``.gramian_weighting``.

    Args:
        aggregator: The aggregator; one that ``from_torchjd`` made of a torchjd object that works on coordinates gives
            that object back.

    Returns:
        A ``torchjd.aggregation.GramianWeightedAggregator`` that forms the Gramian in float64, whatever the dtype of the
        Jacobian.

    Raises:
        MissingDependencyError: If torchjd is not installed.
        InvalidTypeError: If the object is not an aggregator of this package.

    Source:
        Beyond the paper: torchjd's users asked for ConFIG as a weighting of the Gramian.
    """
    bridge = _bridge()
    if not isinstance(aggregator, Aggregator):
        raise InvalidTypeError(f"to_torchjd takes an aggregator of octavo_config_grad, not {type(aggregator).__name__}")
    if isinstance(aggregator, bridge.ImportedAggregator):
        return aggregator.aggregator
    return bridge.ExportedAggregator(aggregator)


def _bridge() -> ModuleType:
    try:
        return importlib.import_module("octavo_config_grad._torchjd")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "torchjd":
            raise
        raise MissingDependencyError.for_extra("torchjd", "octavo-config-grad", "torchjd") from error

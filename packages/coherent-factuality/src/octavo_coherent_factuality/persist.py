"""Saving a calibrated filter as JSON, and loading it: thresholds, configuration, hash of the data, version."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError, MissingFileError
from octavo_core.files import atomic_write

from octavo_coherent_factuality import annotators, scorers
from octavo_coherent_factuality.filter import SplitConformalFilter
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["data_digest", "load_filter", "save_filter"]

SCHEMA = "octavo-coherent-factuality-filter/1"
_PARTS: dict[str, type] = {
    part.__name__: part
    for part in (
        annotators.Gold,
        annotators.Independent,
        annotators.Partial,
        annotators.Silver,
        scorers.Combined,
        scorers.DescendantWeighted,
        scorers.FrequencyScorer,
        scorers.LogProb,
        scorers.Ordinal,
        scorers.Ranked,
        scorers.ScoreColumn,
        scorers.SelfConfidence,
    )
}


def data_digest(traces: Sequence[ReasoningTrace]) -> str:
    """Hash a data set, whatever the order of traces and claims.

    Args:
        traces: The traces.

    Returns:
        SHA-256 in hexadecimal.
    """
    return hashlib.sha256("\n".join(sorted(trace.content_digest for trace in traces)).encode()).hexdigest()


def save_filter(
    path: str | os.PathLike[str], fitted: SplitConformalFilter, *, traces: Sequence[ReasoningTrace] = ()
) -> Path:
    """Save a calibrated filter.

    Args:
        path: The file; its folder must exist.
        fitted: The filter. Scorer and annotator must be those of this package: code is never stored.
        traces: The calibration traces, if their hash shall be stored.

    Returns:
        The path.

    Raises:
        InvalidStateError: If the filter is not calibrated.
    """
    if not hasattr(fitted, "rank_"):
        raise InvalidStateError("the filter is not calibrated; call fit with annotated traces before saving")
    document = {
        "schema": SCHEMA,
        "version": importlib.metadata.version("octavo-coherent-factuality"),
        "config": {
            "alpha": str(fitted.alpha),
            "delta": None if fitted.delta is None else str(fitted.delta),
            "scorer": _encode(fitted.scorer),
            "family": fitted.family,
            "annotator": _encode(fitted.annotator),
            "ties": fitted.ties,
            "seed": fitted.seed,
        },
        "event": fitted.event,
        "n": fitted.n_,
        "rank": fitted.rank_,
        "threshold": None if math.isinf(fitted.threshold_) else fitted.threshold_,
        # Scores from the largest, null for infinity (never wrong); the last entry stands for "too few" and is implied.
        "scores": [None if math.isinf(score) else score for score in fitted.sorted_scores_[:-1].tolist()],
        "tie_numbers": fitted.sorted_jitter_[:-1].tolist(),
        "calibration_keys": sorted(fitted.calibration_keys_),
        "data_sha256": data_digest(traces) if traces else None,
    }
    return atomic_write(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def load_filter(path: str | os.PathLike[str]) -> SplitConformalFilter:
    """Load a filter that :func:`save_filter` wrote.

    Args:
        path: The file.

    Returns:
        The calibrated filter; it filters exactly as the saved one.

    Raises:
        MissingFileError: If there is no such file.
        InvalidValueError: If it is not a saved filter of a schema this version reads, or was altered.
    """
    file = Path(path)
    if not file.is_file():
        raise MissingFileError(f"no filter at {str(file)!r}; make one with: octavo coherent-factuality fit")
    try:
        document = json.loads(file.read_bytes())
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA!r}")
        config = document["config"]
        fitted = SplitConformalFilter(
            _level(config["alpha"]),
            scorer=_decode(config["scorer"]),
            family=config["family"],
            annotator=_decode(config["annotator"]),
            ties=config["ties"],
            delta=None if config["delta"] is None else _level(config["delta"]),
            seed=int(config["seed"]),
        )
        fitted._check_parameters()
        _ = fitted.method
        scores = np.array([math.inf if score is None else float(score) for score in document["scores"]], np.float64)
        numbers = np.array(document["tie_numbers"], np.float64)
        fitted.n_, fitted.rank_ = int(document["n"]), int(document["rank"])
        if len(scores) != fitted.n_ or len(numbers) != fitted.n_ or not 1 <= fitted.rank_ <= fitted.n_ + 1:
            raise ValueError("its numbers do not fit each other")
        if (scores[1:] > scores[:-1]).any():
            raise ValueError("its scores are not sorted")
        fitted.scores_ = scores
        fitted.sorted_scores_, fitted.sorted_jitter_ = np.r_[scores, -math.inf], np.r_[numbers, 0.0]
        fitted.threshold_ = float(fitted.sorted_scores_[fitted.rank_ - 1])
        fitted.calibration_keys_ = frozenset(document["calibration_keys"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidValueError(f"{str(file)!r} is not a saved filter: {error}") from error
    return fitted


def _level(text: Any) -> Any:
    """Levels are stored as text, so that 0.1 stays 1/10 and Fraction(1, 48) stays exact."""
    try:
        return float(text) if str(float(text)) == text else text
    except ValueError:
        return text


def _encode(part: Any) -> Any:
    if part is None or isinstance(part, str | int | float):
        return part
    if isinstance(part, tuple):
        return [_encode(item) for item in part]
    if is_dataclass(part) and type(part) is _PARTS.get(type(part).__name__):
        return {"type": type(part).__name__} | {f.name: _encode(getattr(part, f.name)) for f in fields(part)}
    raise InvalidTypeError(
        f"{part!r} cannot be saved; only the scorers and annotators of this package can, because code is never stored"
    )


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    if isinstance(value, dict):
        if value.get("type") not in _PARTS:
            raise ValueError(f"it names an unknown part {value.get('type')!r}")
        return _PARTS[value["type"]](**{name: _decode(item) for name, item in value.items() if name != "type"})
    return value

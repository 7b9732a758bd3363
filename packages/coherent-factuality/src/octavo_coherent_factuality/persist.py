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
from octavo_coherent_factuality.quantile import pac_rank, quantile_rank
from octavo_coherent_factuality.trace import ReasoningTrace

__all__ = ["data_digest", "load_filter", "save_filter"]

_SCORERS = (
    scorers.Combined,
    scorers.DescendantWeighted,
    scorers.FrequencyScorer,
    scorers.LogProb,
    scorers.Ordinal,
    scorers.Ranked,
    scorers.ScoreColumn,
    scorers.SelfConfidence,
)
_ANNOTATORS = (annotators.Gold, annotators.Independent, annotators.Partial, annotators.Silver)
SCHEMA = "octavo-coherent-factuality-filter/1"
_PARTS: dict[str, type] = {part.__name__: part for part in (*_ANNOTATORS, *_SCORERS)}


def data_digest(traces: Sequence[ReasoningTrace]) -> str:
    """Hash a data set, whatever the order of traces and claims.

    Args:
        traces: The traces.

    Returns:
        SHA-256 in hexadecimal.
    """
    return hashlib.sha256("\n".join(sorted(trace.content_digest for trace in traces)).encode()).hexdigest()


def save_filter(path: str | os.PathLike[str], fitted: Any, *, traces: Sequence[ReasoningTrace] = ()) -> Path:
    """Save a calibrated :class:`SplitConformalFilter`.

    Args:
        path: The file; its folder must exist.
        fitted: The filter. Scorer and annotator must be those of this package: code is never stored.
        traces: The calibration traces, if their hash shall be stored.

    Returns:
        The path.

    Raises:
        InvalidStateError: If the filter is not calibrated.
        InvalidTypeError: If it is another kind of filter, or has parts that are not of this package.
    """
    if not isinstance(fitted, SplitConformalFilter):
        raise InvalidTypeError(f"a {type(fitted).__name__} cannot be saved; only a SplitConformalFilter can")
    if not hasattr(fitted, "rank_"):
        raise InvalidStateError("the filter is not calibrated; call fit with annotated traces before saving")
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": importlib.metadata.version("octavo-coherent-factuality"),
        "config": {
            "alpha": str(fitted.alpha),
            "delta": None if fitted.delta is None else str(fitted.delta),
            "scorer": _encode(fitted.scorer),
            "family": fitted.family,
            "annotator": _encode(fitted.annotator),
            "ties": fitted.ties,
            "seed": int(fitted.seed),
        },
        "event": fitted.event,
        "n": fitted.n_,
        "rank": fitted.rank_,
        "threshold": None if math.isinf(fitted.threshold_) else fitted.threshold_,
        # Scores from the largest, null for infinity (never wrong); the last entry stands for "too few" and is implied.
        "scores": [None if math.isinf(score) else score for score in fitted.sorted_scores_[:-1].tolist()],
        # Null for a trace without id and question, which loses every tie.
        "tie_numbers": [None if number < 0 else number for number in fitted.sorted_jitter_[:-1].tolist()],
        "calibration_keys": sorted(fitted.calibration_keys_),
        "data_sha256": data_digest(traces) if traces else None,
    }
    document["sha256"] = _checksum(document)
    return atomic_write(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def load_filter(path: str | os.PathLike[str]) -> SplitConformalFilter:
    """Load a filter that :func:`save_filter` wrote.

    Args:
        path: The file.

    Returns:
        The calibrated filter; it filters exactly as the saved one.

    Raises:
        MissingFileError: If there is no such file.
        InvalidValueError: If it is not a saved filter of a schema this version reads, or was altered since: its
            checksum, rank and threshold are worked out anew.
    """
    file = Path(path)
    if file.is_dir():
        raise InvalidValueError(f"{str(file)!r} is a folder; give the file of a filter")
    if not file.is_file():
        raise MissingFileError(f"no filter at {str(file)!r}; make one with: octavo coherent-factuality fit")
    try:
        document = json.loads(file.read_bytes())
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA!r}")
        config = document["config"]
        fitted = SplitConformalFilter(
            _level(config["alpha"]),
            scorer=_part(config["scorer"], _SCORERS, "scorer"),
            family=config["family"],
            annotator=_part(config["annotator"], _ANNOTATORS, "annotator"),
            ties=config["ties"],
            delta=None if config["delta"] is None else _level(config["delta"]),
            seed=config["seed"],
        )
        fitted._check_parameters()
        _ = fitted.method
        scores = np.array([math.inf if score is None else float(score) for score in document["scores"]], np.float64)
        numbers = np.array([-1.0 if n is None else float(n) for n in document["tie_numbers"]], np.float64)
        fitted.n_, fitted.rank_ = document["n"], document["rank"]
        if type(fitted.n_) is not int or len(scores) != fitted.n_ or len(numbers) != fitted.n_:
            raise ValueError("its numbers do not fit each other")
        level, delta = fitted.alpha, fitted.delta
        rank = quantile_rank(fitted.n_, level) if delta is None else pac_rank(fitted.n_, level, delta)
        if fitted.rank_ != rank:
            raise ValueError(f"its rank is {fitted.rank_!r}, and {rank} follows from its level")
        if np.isnan(scores).any() or not ((numbers == -1.0) | (numbers >= 0) & (numbers < 1)).all():
            raise ValueError("its scores or tie-breaking numbers are out of range")
        pairs = list(zip(scores.tolist(), numbers.tolist(), strict=True))
        if pairs != sorted(pairs, reverse=True):
            raise ValueError("its scores are not sorted")
        fitted.scores_ = scores
        fitted.sorted_scores_, fitted.sorted_jitter_ = np.r_[scores, -math.inf], np.r_[numbers, 0.0]
        fitted.threshold_ = float(fitted.sorted_scores_[fitted.rank_ - 1])
        if (None if math.isinf(fitted.threshold_) else fitted.threshold_) != document["threshold"]:
            raise ValueError(f"its threshold is {document['threshold']!r}, and its scores say {fitted.threshold_}")
        fitted.calibration_keys_ = frozenset(document["calibration_keys"])
        if document.pop("sha256", None) != _checksum(document):
            raise ValueError("its checksum does not fit: it was altered, or torn")
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InvalidValueError(f"{str(file)!r} is not a saved filter: {error}") from error
    return fitted


def _checksum(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _part(value: Any, accepted: tuple[type, ...], role: str) -> Any:
    part = _decode(value)
    if part is not None and not isinstance(part, accepted):
        raise ValueError(f"its {role} is {str(part)[:80]!r}, which is none")
    return part


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

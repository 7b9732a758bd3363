"""Reference solutions: where they come from, and the errors measured against them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Float, Float64
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingFileError
from torch import nn

__all__ = ["Errors", "Reference", "load_reference"]

_CHUNK_POINTS = 2**16


@dataclass(frozen=True)
class Errors:
    """Errors of a network against a reference.

    Args:
        mse: Mean square error over points and fields.
        relative_l2: For each field, the norm of the error over the norm of the reference.
        max_error: Largest absolute error over points and fields.
    """

    mse: float
    relative_l2: tuple[float, ...]
    max_error: float


@dataclass(frozen=True)
class Reference:
    """Values of the solution at points.

    Args:
        coordinates: Names of the columns of ``points``.
        fields: Names of the columns of ``values``.
        points: Points, one a row.
        values: Fields at the points.
        axes: The axes, where the points form a grid in the order of ``coordinates`` (the last varies fastest).

    Raises:
        InvalidValueError: If the sizes do not fit together or a number is not finite.
    """

    coordinates: tuple[str, ...]
    fields: tuple[str, ...]
    points: Float64[np.ndarray, "_ coordinates"]
    values: Float64[np.ndarray, "_ fields"]
    axes: tuple[Float64[np.ndarray, " _"], ...] | None = None

    def __post_init__(self) -> None:
        if self.points.shape[1:] != (len(self.coordinates),) or self.values.shape[1:] != (len(self.fields),):
            raise InvalidValueError(
                f"the reference has points {self.points.shape}, values {self.values.shape}; the problem needs columns "
                f"{', '.join(self.coordinates)} and {', '.join(self.fields)}"
            )
        if len(self.points) != len(self.values) or len(self.points) == 0:
            raise InvalidValueError(
                f"the reference has {len(self.points)} points and {len(self.values)} values; give one value for each "
                "of at least one point"
            )
        if not (np.isfinite(self.points).all() and np.isfinite(self.values).all()):
            raise InvalidValueError("the reference holds numbers that are not finite; remove or mend those points")

    @classmethod
    def from_grid(
        cls,
        coordinates: Sequence[str],
        fields: Sequence[str],
        axes: Sequence[Float[np.ndarray, " _"]],
        values: np.ndarray,
    ) -> Reference:
        """Build a reference from values on a grid.

        Args:
            coordinates: Names of the coordinates.
            fields: Names of the fields.
            axes: Grid points of each coordinate.
            values: Array with one dimension for each coordinate, and a last one for the fields.

        Returns:
            The reference.

        Raises:
            InvalidValueError: If the values do not have the shape of the grid.
        """
        expected = (*(len(axis) for axis in axes), len(fields))
        if len(axes) != len(coordinates) or values.shape != expected:
            raise InvalidValueError(
                f"the values have shape {values.shape}, the grid of {', '.join(coordinates)} needs {expected}"
            )
        exact_axes = tuple(np.asarray(axis, dtype=np.float64) for axis in axes)
        points = np.stack([part.reshape(-1) for part in np.meshgrid(*exact_axes, indexing="ij")], axis=1)
        flat = np.asarray(values, dtype=np.float64).reshape(-1, len(fields))
        return cls(tuple(coordinates), tuple(fields), points, flat, exact_axes)

    def grid(self, field: int = 0, values: np.ndarray | None = None) -> Float64[np.ndarray, ...]:
        """Return a field in the shape of the grid.

        Args:
            field: Index of the field.
            values: Other values at the same points, such as a prediction; the reference's own if None.

        Returns:
            Array with one dimension for each coordinate.

        Raises:
            InvalidValueError: If the points do not form a grid.
        """
        if self.axes is None:
            raise InvalidValueError("the reference's points do not form a grid; plot them as scattered points")
        column = (self.values if values is None else values)[:, field]
        return column.reshape([len(axis) for axis in self.axes])

    def fingerprint(self) -> str:
        """Hash of names, points and values.

        Returns:
            A short hexadecimal text. The numbers count in float32, since libraries differ in the last bits of float64.
        """
        digest = hashlib.sha256(repr((self.coordinates, self.fields, self.values.shape)).encode())
        for array in (self.points, self.values):
            digest.update(array.astype("<f4").tobytes())
        return digest.hexdigest()[:16]

    def predict(self, network: nn.Module) -> Float64[np.ndarray, "points fields"]:
        """Evaluate a network at the reference's points.

        Args:
            network: Maps points to fields.

        Returns:
            Its fields in float64.
        """
        parameter = next(network.parameters())
        points = torch.tensor(self.points, dtype=parameter.dtype, device=parameter.device)
        with torch.no_grad():
            parts = [network(chunk) for chunk in points.split(_CHUNK_POINTS)]
        return torch.cat(parts).double().cpu().numpy()

    def errors(self, prediction: Float64[np.ndarray, "points fields"]) -> Errors:
        """Measure a prediction.

        Args:
            prediction: Fields at the reference's points.

        Returns:
            The errors; infinite where the prediction is not finite.

        Source:
            The error measures of the paper's study, plus relative L2 and maximum.
        """
        error = prediction - self.values
        if not np.isfinite(error).all():
            return Errors(math.inf, (math.inf,) * len(self.fields), math.inf)
        norms = np.linalg.norm(self.values, axis=0)
        relative = np.linalg.norm(error, axis=0) / np.where(norms > 0, norms, 1.0)
        return Errors(float(np.mean(error**2)), tuple(map(float, relative)), float(np.abs(error).max()))


def load_reference(
    path: str | Path, coordinates: Sequence[str] = ("x", "t"), fields: Sequence[str] = ("u",)
) -> Reference:
    """Read a reference solution from a file.

    ``.npz`` and ``.mat`` hold arrays named after the coordinates and fields: either axes and a field of the shape of
    their grid (a transposed one is turned when the sizes tell), or as many coordinates as values. ``.npy`` and ``.csv``
    hold one row for each point with the columns coordinates, then fields; a CSV may have a header that names them.

    Args:
        path: The file; nothing in it is executed (no pickle).
        coordinates: Names of the problem's coordinates.
        fields: Names of the problem's fields.

    Returns:
        The reference.

    Raises:
        MissingFileError: If there is no such file.
        InvalidStateError: If the file is damaged or cannot be read.
        InvalidValueError: If its type is unknown, an array is missing, or sizes do not fit.
    """
    file = Path(path)
    readers = {".npz": _read_npz, ".npy": _read_npy, ".csv": _read_csv, ".mat": _read_mat}
    if file.suffix.lower() not in readers:
        raise InvalidValueError(f"reference {str(file)!r} has an unknown type; give one of {', '.join(readers)}")
    if not file.is_file():
        raise MissingFileError(f"no reference at {str(file)!r}; give an existing file")
    names = (*coordinates, *fields)
    try:
        content = readers[file.suffix.lower()](file, names)
    except InvalidValueError:
        raise
    # The readers of NumPy and SciPy raise whatever the torn bytes lead them to.
    except (OSError, ValueError, TypeError, KeyError, IndexError, EOFError, BadZipFile, NotImplementedError) as error:
        raise InvalidStateError(
            f"reference {str(file)!r} cannot be read ({_first_line(error)}); it is damaged or not a "
            f"{file.suffix.lower()} file of plain numbers"
        ) from error
    if isinstance(content, np.ndarray):
        table = _real(content, file, "its table")
        if table.ndim != 2 or table.shape[1] != len(names):
            raise InvalidValueError(
                f"reference {str(file)!r} has shape {table.shape}; give one row for each point with the columns "
                f"{', '.join(names)}"
            )
        split = len(coordinates)
        return _scattered(tuple(coordinates), tuple(fields), table[:, :split], table[:, split:])
    return _from_arrays(content, file, tuple(coordinates), tuple(fields))


def _from_arrays(
    content: dict[str, Any], file: Path, coordinates: tuple[str, ...], fields: tuple[str, ...]
) -> Reference:
    arrays = {}
    for name in (*coordinates, *fields):
        if name not in content:
            raise InvalidValueError(
                f"reference {str(file)!r} has no array {name!r}; it has {', '.join(sorted(content)) or 'none'}"
            )
        arrays[name] = _real(content[name], file, f"array {name!r}")
    axes = [arrays[name].reshape(-1) for name in coordinates]
    shape = tuple(map(len, axes))
    columns = [arrays[name] for name in fields]
    if all(column.squeeze().shape == _squeezed(shape) for column in columns):
        values = [column.reshape(shape) for column in columns]
    elif all(column.squeeze().shape == _squeezed(shape[::-1]) for column in columns):
        values = [column.reshape(shape[::-1]).T for column in columns]
    elif len({*shape, *(column.size for column in columns)}) == 1:
        return _scattered(coordinates, fields, np.stack(axes, 1), np.stack([c.reshape(-1) for c in columns], 1))
    else:
        found = ", ".join(f"{name} {arrays[name].shape}" for name in (*coordinates, *fields))
        raise InvalidValueError(
            f"the arrays of reference {str(file)!r} do not fit together ({found}); give axes and fields of shape "
            f"{shape}, or as many coordinates as values"
        )
    return Reference.from_grid(coordinates, fields, axes, np.stack(values, axis=-1))


def _scattered(
    coordinates: tuple[str, ...],
    fields: tuple[str, ...],
    points: Float64[np.ndarray, "points coordinates"],
    values: Float64[np.ndarray, "points fields"],
) -> Reference:
    """Build a reference from a table, as a grid if its points form one in any order."""
    axes = [np.unique(column) for column in points.T]
    if math.prod(map(len, axes)) == len(points) > 1:
        order = np.lexsort(points.T[::-1])
        grid = np.stack([part.reshape(-1) for part in np.meshgrid(*axes, indexing="ij")], axis=1)
        if np.array_equal(points[order], grid):
            shape = (*map(len, axes), values.shape[1])
            return Reference.from_grid(coordinates, fields, axes, values[order].reshape(shape))
    return Reference(coordinates, fields, points, values)


def _read_npz(file: Path, names: Sequence[str]) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as content:
        # Only what is asked for is unpacked; the names of the others serve an error message.
        return {name: content[name] if name in names else None for name in content.files}


def _read_npy(file: Path, names: Sequence[str]) -> np.ndarray:
    return np.load(file, allow_pickle=False)


def _read_csv(file: Path, names: Sequence[str]) -> np.ndarray | dict[str, Any]:
    with file.open(encoding="utf-8") as lines:
        first = lines.readline().lstrip("#\ufeff").strip()
        if not first:
            raise ValueError("it is empty")
        header = [cell.strip().strip('"') for cell in first.split(",")]
        try:
            [float(cell) for cell in header]
        except ValueError:
            table = np.loadtxt(lines, delimiter=",", ndmin=2)
            if table.shape[1] != len(header):
                raise InvalidValueError(
                    f"reference {str(file)!r} has {len(header)} names in its header and {table.shape[1]} columns"
                ) from None
            return {name: table[:, column] for column, name in enumerate(header)}
        lines.seek(0)
        return np.loadtxt(lines, delimiter=",", ndmin=2)


def _read_mat(file: Path, names: Sequence[str]) -> dict[str, Any]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(file, variable_names=list(names))
    except MatReadError as error:
        raise ValueError(str(error)) from error
    return {name: value for name, value in content.items() if not name.startswith("__")}


def _real(array: Any, file: Path, what: str) -> Float64[np.ndarray, ...]:
    found = np.asarray(array)
    if found.dtype.kind not in "fiu":
        raise InvalidValueError(f"{what} of reference {str(file)!r} holds {found.dtype}; give real numbers")
    return found.astype(np.float64)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:120]

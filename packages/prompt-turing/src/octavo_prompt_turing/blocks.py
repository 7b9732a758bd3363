"""Description of a block by named features, and its translation into dense weight matrices.

A feature is a column of the residual stream. A row of a matrix is written as ``{feature: coefficient}``, so that the
construction reads like the paper's list of formulas and every weight can be traced back to a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from octavo_core.errors import InvalidValueError

__all__ = ["BlockSpec", "BlockWeights", "HeadSpec", "Layout", "Row", "ScoreShape", "build_block"]

Row = Mapping[str, float | int]
"""A linear functional of the residual stream: coefficients by feature name."""

Pair = tuple[Row, Row]


@dataclass(frozen=True)
class HeadSpec:
    """One attention head.

    Args:
        name: What it looks up.
        integers: Query and key rows whose values are integers.
        reals: Query and key rows of real numbers.
        pairs: Query and key rows of two coordinates each that are unit vectors or zero; their product is a cosine.
        values: For every value row, the features that its mean is added to.

    Source:
        Paper, appendix with the construction; the three kinds of score terms are beyond the paper, which computes in
        O(log N) bits: products are the same, but float64 needs to know which terms nearly cancel.
    """

    name: str
    integers: Sequence[tuple[Row, Row]] = ()
    reals: Sequence[tuple[Row, Row]] = ()
    pairs: Sequence[tuple[Pair, Pair]] = ()
    values: Sequence[tuple[Row, Row]] = ()


@dataclass(frozen=True)
class BlockSpec:
    """Attention, group normalisation and feed-forward layer of one block, each added to the residual stream.

    Args:
        heads: Attention heads.
        norms: Source and destination features of each group of one or two coordinates that is divided by its norm.
        units: Hidden relu units: input row, bias, output row.
        output_bias: Constant added after the feed-forward layer.
    """

    heads: Sequence[HeadSpec]
    norms: Sequence[tuple[tuple[str, ...], tuple[str, ...]]] = ()
    units: Sequence[tuple[Row, float | int, Row]] = ()
    output_bias: Row = field(default_factory=dict)


@dataclass(frozen=True)
class ScoreShape:
    """How the rows of the query and key matrices of a block are laid out: integers, then reals, then pairs.

    Args:
        integers: Rows with integer values.
        reals: Rows with real values.
        pairs: Unit vectors, two rows each.
    """

    integers: int
    reals: int
    pairs: int

    @property
    def width(self) -> int:
        """Rows in all."""
        return self.integers + self.reals + 2 * self.pairs


@dataclass(frozen=True)
class Layout:
    """Names of the columns of the residual stream; the first ``num_integers`` always hold integers.

    Args:
        names: Feature names, each once.
        num_integers: Number of leading integer columns.
    """

    names: tuple[str, ...]
    num_integers: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "_index", {name: index for index, name in enumerate(self.names)})

    @property
    def width(self) -> int:
        """Columns of the residual stream, D."""
        return len(self.names)

    def index(self, name: str) -> int:
        """Column of a feature.

        Args:
            name: Feature name.

        Returns:
            Its column.

        Raises:
            InvalidValueError: If there is no such feature.
        """
        index: dict[str, int] = self.__dict__["_index"]
        if name not in index:
            close = [other for other in self.names if name.lower() in other.lower()][:8]
            raise InvalidValueError(f"unknown feature {name!r}; similar names: {', '.join(close) or 'none'}")
        return index[name]

    def row(self, row: Row) -> np.ndarray:
        """Write a row as a vector of length D.

        Args:
            row: Coefficients by name.

        Returns:
            The vector, float64.
        """
        vector = np.zeros(self.width)
        for name, coefficient in row.items():
            vector[self.index(name)] += coefficient
        return vector


@dataclass(frozen=True)
class BlockWeights:
    """Dense weights of a block. Shapes: H heads, Q score rows, V value rows, D features, F hidden units.

    Args:
        query: (H, Q, D).
        key: (H, Q, D).
        value: (H, V, D).
        output: (H, D, V).
        hidden: (F, D).
        hidden_bias: (F,).
        projection: (D, F).
        projection_bias: (D,).
        norm_sources: Columns of each group.
        norm_targets: Columns that each normalised group is added to.
        shape: Layout of the score rows.
        head_names: Name of each head.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray
    hidden: np.ndarray
    hidden_bias: np.ndarray
    projection: np.ndarray
    projection_bias: np.ndarray
    norm_sources: tuple[tuple[int, ...], ...]
    norm_targets: tuple[tuple[int, ...], ...]
    shape: ScoreShape
    head_names: tuple[str, ...]


def build_block(spec: BlockSpec, layout: Layout) -> BlockWeights:
    """Translate a block into matrices. Heads share one shape per block; missing rows are zero and change no score.

    Args:
        spec: The block.
        layout: Columns of the residual stream.

    Returns:
        Its weights, float64.

    Raises:
        InvalidValueError: If a feature does not exist.
    """
    shape = ScoreShape(
        max(len(head.integers) for head in spec.heads),
        max(len(head.reals) for head in spec.heads),
        max(len(head.pairs) for head in spec.heads),
    )
    count, width = len(spec.heads), layout.width
    value_rows = max(len(head.values) for head in spec.heads)
    query, key = np.zeros((count, shape.width, width)), np.zeros((count, shape.width, width))
    value, output = np.zeros((count, value_rows, width)), np.zeros((count, width, value_rows))
    for number, head in enumerate(spec.heads):
        rows: list[tuple[int, Row, Row]] = [(i, q, k) for i, (q, k) in enumerate(head.integers)]
        rows += [(shape.integers + i, q, k) for i, (q, k) in enumerate(head.reals)]
        for i, (queries, keys) in enumerate(head.pairs):
            start = shape.integers + shape.reals + 2 * i
            rows += [(start + j, queries[j], keys[j]) for j in range(2)]
        for position, query_row, key_row in rows:
            query[number, position] = layout.row(query_row)
            key[number, position] = layout.row(key_row)
        for position, (source, target) in enumerate(head.values):
            value[number, position] = layout.row(source)
            output[number, :, position] = layout.row(target)
    return BlockWeights(
        query=query,
        key=key,
        value=value,
        output=output,
        hidden=np.array([layout.row(source) for source, _, _ in spec.units]).reshape(-1, width),
        hidden_bias=np.array([float(bias) for _, bias, _ in spec.units]),
        projection=np.array([layout.row(target) for _, _, target in spec.units]).reshape(-1, width).T.copy(),
        projection_bias=layout.row(spec.output_bias),
        norm_sources=tuple(tuple(layout.index(name) for name in source) for source, _ in spec.norms),
        norm_targets=tuple(tuple(layout.index(name) for name in target) for _, target in spec.norms),
        shape=shape,
        head_names=tuple(head.name for head in spec.heads),
    )

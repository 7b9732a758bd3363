"""Derivatives of the network's fields with respect to the coordinates, as a residual asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor, nn
from torch.func import jvp

from octavo_config_grad.pinn.network import MLP

__all__ = [
    "MODES",
    "AutogradFields",
    "Fields",
    "ForwardFields",
    "PartOfFields",
    "SweepFields",
    "Wanted",
    "evaluate_fields",
]

MODES = ("auto", "autograd", "jvp")
"""How derivatives are computed: ``"autograd"`` nests reverse mode, ``"jvp"`` nests ``torch.func.jvp``; ``"auto"`` sends
values, first and pure second derivatives in one forward sweep through an ``MLP`` and nests reverse mode elsewhere."""

Wanted = set[tuple[int, ...]]
"""Derivatives that a residual asked for, as sorted coordinate indices; kept between steps to plan the next sweep."""


class Fields:
    """What a residual function receives: the fields at some points, and their derivatives by name.

    ``fields("u")`` is the value, ``fields("u", "x")`` the first derivative, ``fields("u", "x", "x")`` the second, and
    ``fields.at("x")`` the coordinate itself; each has the shape (points,).

    Args:
        network: Maps points (N, coordinates) to fields (N, fields).
        points: Points, one a row.
        coordinates: Names of the columns of ``points``.
        names: Names of the columns of the network's output.
    """

    def __init__(self, network: nn.Module, points: Tensor, coordinates: Iterable[str], names: Iterable[str]) -> None:
        self.network = network
        self.points = points
        self._coordinates = {name: index for index, name in enumerate(coordinates)}
        self._names = {name: index for index, name in enumerate(names)}

    def __call__(self, field: str, *coordinates: str) -> Float[Tensor, " points"]:
        """Return a field or one of its derivatives.

        Args:
            field: Name of the field.
            *coordinates: Coordinates to differentiate by, one for each order.

        Returns:
            One number for each point.

        Raises:
            InvalidValueError: If the problem has no such field or coordinate.
        """
        column = _index(self._names, field, "field")
        orders = tuple(sorted(_index(self._coordinates, name, "coordinate") for name in coordinates))
        return self._derivative(column, orders)

    def at(self, coordinate: str) -> Float[Tensor, " points"]:
        """Return a coordinate of the points.

        Args:
            coordinate: Its name.

        Returns:
            One number for each point.

        Raises:
            InvalidValueError: If the problem has no such coordinate.
        """
        return self.points[:, _index(self._coordinates, coordinate, "coordinate")]

    def _derivative(self, column: int, orders: tuple[int, ...]) -> Tensor:
        raise NotImplementedError


class PartOfFields(Fields):
    """Some of the points of other fields, so that conditions can share one evaluation of the network.

    Args:
        whole: The fields at all points.
        start: First point of the part.
        end: The point after its last.
    """

    def __init__(self, whole: Fields, start: int, end: int) -> None:
        super().__init__(whole.network, whole.points[start:end], whole._coordinates, whole._names)
        self._whole, self._rows = whole, slice(start, end)

    def _derivative(self, column: int, orders: tuple[int, ...]) -> Tensor:
        return self._whole._derivative(column, orders)[self._rows]


class AutogradFields(Fields):
    """Derivatives by nested reverse mode; for any network and any order.

    Args:
        network: The network, from points to fields.
        points: Points, one a row.
        coordinates: Names of the columns.
        names: Names of the fields.
    """

    def __init__(self, network: nn.Module, points: Tensor, coordinates: Iterable[str], names: Iterable[str]) -> None:
        super().__init__(network, points.detach().requires_grad_(), coordinates, names)
        self._outputs = network(self.points).unbind(1)
        self._gradients: dict[tuple[int, tuple[int, ...]], tuple[Tensor, ...]] = {}

    def _derivative(self, column: int, orders: tuple[int, ...]) -> Tensor:
        if not orders:
            return self._outputs[column]
        *lower, last = orders
        key = (column, tuple(lower))
        if key not in self._gradients:
            # Points are independent, so the gradient of the sum holds every point's own derivative.
            total = self._derivative(column, key[1]).sum()
            (gradient,) = torch.autograd.grad(total, self.points, create_graph=True, materialize_grads=True)
            self._gradients[key] = gradient.unbind(1)
        return self._gradients[key][last]


class ForwardFields(Fields):
    """Derivatives by nested forward mode, ``torch.func.jvp``; for any network and any order.

    Args:
        network: The network, from points to fields.
        points: Points, one a row.
        coordinates: Names of the columns.
        names: Names of the fields.
    """

    def __init__(self, network: nn.Module, points: Tensor, coordinates: Iterable[str], names: Iterable[str]) -> None:
        super().__init__(network, points.detach(), coordinates, names)
        self._cache: dict[tuple[int, ...], Tensor] = {}

    def _derivative(self, column: int, orders: tuple[int, ...]) -> Tensor:
        if orders not in self._cache:
            function = self.network
            for coordinate in orders:
                function = _directional(function, coordinate)
            self._cache[orders] = function(self.points)
        return self._cache[orders][:, column]


class SweepFields(Fields):
    """First and pure second derivatives by one forward sweep through an ``MLP``.

    The first evaluation of a residual finds out what it asks for, and repeats the sweep when a request is new; from
    then on ``wanted`` holds the plan.

    Args:
        network: The network, from points to fields.
        points: Points, one a row.
        coordinates: Names of the columns.
        names: Names of the fields.
        wanted: The plan of derivatives to compute, extended as requests come.
    """

    def __init__(
        self, network: MLP, points: Tensor, coordinates: Iterable[str], names: Iterable[str], wanted: Wanted
    ) -> None:
        super().__init__(network, points, coordinates, names)
        self._network = network
        self._wanted = wanted
        self._fallback: AutogradFields | None = None
        self._blocks: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        self._sweep()

    def _derivative(self, column: int, orders: tuple[int, ...]) -> Tensor:
        self._wanted.add(orders)
        if not _sweepable(orders):
            if self._fallback is None:
                self._fallback = AutogradFields(self.network, self.points, self._coordinates, self._names)
            return self._fallback._derivative(column, orders)
        if (column, orders) not in self._blocks:
            self._sweep()
        return self._blocks[column, orders]

    def _sweep(self) -> None:
        second = sorted({orders[0] for orders in self._wanted if len(orders) == 2})
        first = second + sorted({orders[0] for orders in self._wanted if len(orders) == 1} - set(second))
        # Values alone are cheaper through autograd's own layers.
        jets = (
            self._network.derivatives(self.points, first, second)
            if first
            else self._network(self.points).t().unsqueeze(1)
        )
        keys = [(), *((i,) for i in first), *((i, i) for i in second)]
        pairs = [(column, orders) for column in range(jets.shape[0]) for orders in keys]
        self._blocks = dict(zip(pairs, jets.flatten(0, 1).unbind(0), strict=True))


def evaluate_fields(
    network: nn.Module,
    points: Float[Tensor, "points coordinates"],
    coordinates: Iterable[str],
    names: Iterable[str],
    *,
    mode: str = "auto",
    wanted: Wanted | None = None,
) -> Fields:
    """Evaluate a network so that a residual can ask for its derivatives.

    Args:
        network: Maps points to fields, one column for each of ``names``.
        points: Points, one a row.
        coordinates: Names of the columns of ``points``.
        names: Names of the fields.
        mode: One of ``MODES``.
        wanted: Derivatives asked for so far; filled by use, to be passed again at the next step.

    Returns:
        The fields.

    Raises:
        InvalidValueError: If the mode is unknown.
    """
    if mode not in MODES:
        raise InvalidValueError(f"unknown derivative mode {mode!r}; give one of {', '.join(MODES)}")
    if mode == "jvp":
        return ForwardFields(network, points, coordinates, names)
    wanted = set() if wanted is None else wanted
    if mode == "auto" and isinstance(network, MLP) and all(map(_sweepable, wanted)):
        return SweepFields(network, points, coordinates, names, wanted)
    return AutogradFields(network, points, coordinates, names)


def _sweepable(orders: tuple[int, ...]) -> bool:
    return len(orders) < 2 or (len(orders) == 2 and orders[0] == orders[1])


def _directional(function: Callable[[Tensor], Tensor], coordinate: int) -> Callable[[Tensor], Tensor]:
    def derivative(points: Tensor) -> Tensor:
        tangent = torch.zeros_like(points)
        tangent[:, coordinate] = 1
        return jvp(function, (points,), (tangent,))[1]

    return derivative


def _index(known: dict[str, int], name: str, kind: str) -> int:
    if name not in known:
        raise InvalidValueError(f"the problem has no {kind} {name!r}; it has {', '.join(known)}")
    return known[name]

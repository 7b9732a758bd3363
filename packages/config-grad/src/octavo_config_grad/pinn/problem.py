"""What a PINN problem is: coordinates, fields, conditions grouped into losses, and perhaps a reference solution."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor, nn

from octavo_config_grad.pinn.derivatives import Fields, PartOfFields, Wanted, evaluate_fields
from octavo_config_grad.pinn.reference import Reference
from octavo_config_grad.pinn.sampling import Box, LatinHypercube, Region, face, faces, inside, periodic
from octavo_config_grad.pinn.user_code import blame_user

__all__ = ["Condition", "Objective", "PointCounts", "Problem", "mean_square"]

Residual = Callable[[Fields], Tensor | Sequence[Tensor]]


@dataclass(frozen=True)
class PointCounts:
    """How many points each kind of condition draws.

    Args:
        interior: Points for PDE residuals.
        boundary: Points for boundary conditions (pairs of points for periodic ones).
        initial: Points for initial conditions.

    Raises:
        InvalidValueError: If a count is below 1.
    """

    interior: int = 400
    boundary: int = 64
    initial: int = 64

    def __post_init__(self) -> None:
        for kind, count in dataclasses.asdict(self).items():
            if count < 1:
                raise InvalidValueError(f"{count} {kind} points asked for; give at least 1")


@dataclass(frozen=True)
class Condition:
    """Something that the solution makes zero on a region.

    Args:
        residual: Function of :class:`Fields` that returns what should be zero at each point: a tensor (points,);
            several, whose mean squares are summed, as for the equations of a system; or one tensor (fields, points),
            whose squares are averaged, as for the deviation from data.
        region: Where.
        points: The entry of :class:`PointCounts` that says how many points it draws.
    """

    residual: Residual
    region: Region
    points: Literal["interior", "boundary", "initial"]


class Problem:
    """Base class of PINN problems; subclass it for your own.

    A subclass names its coordinates and fields, gives the box, and implements :meth:`losses`. With :meth:`exact` or
    :meth:`reference` errors are measured, too. A complete example::

        class Heat(Problem):
            coordinates, fields = ("x", "t"), ("u",)
            lower, upper = (0.0, 0.0), (1.0, 1.0)

            def losses(self):
                return {
                    "pde": self.interior(lambda f: f("u", "t") - 0.1 * f("u", "x", "x")),
                    "boundary": self.boundary(lambda f: f("u"), "x"),
                    "initial": self.initial(lambda f: f("u") - torch.sin(torch.pi * f.at("x"))),
                }

            def exact(self, points):
                x, t = points.unbind(1)
                return (torch.exp(-0.1 * torch.pi**2 * t) * torch.sin(torch.pi * x)).unsqueeze(1)

    Source:
        The paper's PINN study (its official training configurations).
    """

    coordinates: tuple[str, ...] = ()
    """Names of the coordinates, e.g. ``("x", "t")``."""
    fields: tuple[str, ...] = ()
    """Names of the fields that the network outputs, e.g. ``("u", "v")``."""
    lower: tuple[float, ...] = ()
    """Lower end of each coordinate."""
    upper: tuple[float, ...] = ()
    """Upper end of each coordinate."""
    reference_points: tuple[int, ...] | int = 4096
    """For the reference built from :meth:`exact`: points along each coordinate, or the number of scattered points."""

    def losses(self) -> Mapping[str, Condition | Sequence[Condition]]:
        """Name the losses and the conditions that each sums; the PDE comes first.

        Returns:
            Conditions by name of the loss.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement losses()")

    def exact(self, points: Float[Tensor, "points coordinates"]) -> Float[Tensor, "points fields"] | None:
        """Exact solution, where one is known; None otherwise.

        Args:
            points: Points, one a row.

        Returns:
            Fields at the points in the dtype of ``points``, or None.
        """

    def reference(self) -> Reference | None:
        """Solution to measure errors against: by default :meth:`exact` on ``reference_points``, if it is known.

        Returns:
            The reference in float64, or None.

        Raises:
            InvalidTypeError: If :meth:`exact` returns no tensor.
        """
        if isinstance(self.reference_points, int):
            box = self.box()
            points = LatinHypercube(inside(box), self.reference_points, dtype=torch.float64).draw(0)
            axes = None
        else:
            axes = tuple(
                torch.linspace(low, high, count, dtype=torch.float64)
                for low, high, count in zip(self.lower, self.upper, self.reference_points, strict=True)
            )
            points = torch.cartesian_prod(*axes).reshape(-1, len(axes))
        values = self.exact(points)
        if values is None:
            return None
        if not isinstance(values, Tensor):
            raise InvalidTypeError(
                f"{type(self).__name__}.exact() returned a {type(values).__name__}; return a tensor (points, fields)"
            )
        return Reference(
            self.coordinates,
            self.fields,
            points.numpy(),
            values.detach().numpy(),
            None if axes is None else tuple(axis.numpy() for axis in axes),
        )

    def box(self) -> Box:
        """Return the domain.

        Returns:
            The box from ``lower`` to ``upper``.

        Raises:
            InvalidValueError: If the names and ends do not fit together.
            InvalidTypeError: If the ends are not tuples of numbers.
        """
        if not self.coordinates or not self.fields:
            raise InvalidValueError(f"{type(self).__name__} must name its coordinates and fields, e.g. ('x', 't')")
        try:
            lower, upper = tuple(map(float, self.lower)), tuple(map(float, self.upper))
        except (TypeError, ValueError):
            raise InvalidTypeError(
                f"{type(self).__name__} has lower={self.lower!r} and upper={self.upper!r}; give tuples of numbers"
            ) from None
        if len(lower) != len(self.coordinates):
            raise InvalidValueError(
                f"{type(self).__name__} has {len(self.coordinates)} coordinates and {len(lower)} lower ends; "
                "give lower and upper ends for each"
            )
        return Box(lower, upper)

    def interior(self, residual: Residual) -> Condition:
        """Make a condition on the whole domain.

        Args:
            residual: What should be zero.

        Returns:
            The condition, on interior points.
        """
        return Condition(residual, inside(self.box()), "interior")

    def boundary(self, residual: Residual, *coordinates: str) -> Condition:
        """Make a condition on both ends of some coordinates, with points in proportion to the area of each face.

        Args:
            residual: What should be zero.
            *coordinates: Names of the coordinates whose ends form the boundary.

        Returns:
            The condition, on boundary points.
        """
        return Condition(residual, faces(self.box(), [self._index(name) for name in coordinates]), "boundary")

    def periodic(self, residual: Residual, coordinate: str) -> Condition:
        """Make a condition that compares both ends of a coordinate at the same other coordinates.

        Args:
            residual: What should be zero; the lower side is the first half of the points
                (``left, right = f("u").chunk(2)``).
            coordinate: Name of the periodic coordinate.

        Returns:
            The condition, on pairs of boundary points.
        """
        return Condition(residual, periodic(self.box(), self._index(coordinate)), "boundary")

    def initial(self, residual: Residual, coordinate: str = "t") -> Condition:
        """Make a condition at the start of a coordinate.

        Args:
            residual: What should be zero.
            coordinate: Name of the time coordinate.

        Returns:
            The condition, on initial points.
        """
        return Condition(residual, face(self.box(), self._index(coordinate), "lower"), "initial")

    def options(self) -> dict[str, Any]:
        """Return what tells this problem from others of its class, for records and for the check on resuming.

        Returns:
            Its dataclass fields or public attributes, as JSON scalars or text.
        """
        found = (
            {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
            if dataclasses.is_dataclass(self)
            else {name: value for name, value in vars(self).items() if not name.startswith("_")}
        )
        scalars = (bool, int, float, str, type(None))
        return {name: value if isinstance(value, scalars) else str(value) for name, value in found.items()}

    def _index(self, coordinate: str) -> int:
        if coordinate not in self.coordinates:
            raise InvalidValueError(
                f"{type(self).__name__} has no coordinate {coordinate!r}; it has {', '.join(self.coordinates)}"
            )
        return self.coordinates.index(coordinate)


class Objective:
    """The losses of a problem for a network, on fresh points at every call.

    Args:
        problem: The problem.
        network: Maps points to fields.
        points: How many points each condition draws.
        seed: Seed of the points.
        resample_every: Calls of a loss that share the same points.
        mode: How derivatives are computed; see ``pinn.derivatives.MODES``.

    Raises:
        InvalidValueError: If the problem has no losses, or a number is out of range.
        InvalidTypeError: If the problem's losses are not conditions.
        InvalidStateError: If code of the problem fails that is not of this package; the loss and the line are named.
    """

    def __init__(
        self,
        problem: Problem,
        network: nn.Module,
        points: PointCounts,
        *,
        seed: int = 0,
        resample_every: int = 1,
        mode: str = "auto",
    ) -> None:
        if resample_every < 1:
            raise InvalidValueError(f"resample_every={resample_every}; give 1 (fresh points every time) or more")
        self.problem = problem
        self.network = network
        self._resample_every = resample_every
        self._mode = mode
        conditions = _losses(problem)
        self.names = tuple(conditions)
        self._conditions = list(conditions.values())
        parameter = next(network.parameters())
        streams = iter(range(sum(map(len, self._conditions))))
        self._samplers = [
            [
                LatinHypercube(
                    condition.region,
                    getattr(points, condition.points),
                    seed=seed,
                    stream=next(streams),
                    dtype=parameter.dtype,
                    device=parameter.device,
                )
                for condition in group
            ]
            for group in self._conditions
        ]
        self._wanted: list[Wanted] = [set() for _ in self._conditions]
        self.draws = [0] * len(self.names)
        """How often each loss was evaluated: the whole state of the sampling."""
        # Find out which derivatives each loss takes: a resumed run must plan its first step as any other, since plans
        # differ in rounding.
        for index in range(len(self.names)):
            self._evaluate(index, 0)

    def __len__(self) -> int:
        return len(self.names)

    def loss(self, index: int) -> Float[Tensor, ""]:
        """Evaluate a loss on its next points.

        Args:
            index: Which loss.

        Returns:
            The sum of mean squares over its conditions.
        """
        number = self.draws[index] // self._resample_every
        self.draws[index] += 1
        return self._evaluate(index, number)

    def _evaluate(self, index: int, number: int) -> Tensor:
        points = [sampler.draw(number) for sampler in self._samplers[index]]
        try:
            return mean_square(
                self._conditions[index],
                points,
                self.problem,
                self.network,
                mode=self._mode,
                wanted=self._wanted[index],
            )
        except (Exception, SystemExit) as error:
            kind = type(self.problem)
            blame_user(error, f"loss {self.names[index]!r} of {kind.__name__}", kind)
            raise


def mean_square(
    conditions: Sequence[Condition],
    points: Sequence[Float[Tensor, "_ coordinates"]],
    problem: Problem,
    network: nn.Module,
    *,
    mode: str = "auto",
    wanted: Wanted | None = None,
) -> Float[Tensor, ""]:
    """Mean squares of the residuals of some conditions, summed.

    Args:
        conditions: The conditions, which share one evaluation of the network.
        points: Where to evaluate each.
        problem: The problem they belong to.
        network: Maps points to fields.
        mode: How derivatives are computed.
        wanted: See :func:`pinn.derivatives.evaluate_fields`.

    Returns:
        The loss, differentiable with respect to the network's parameters.

    Raises:
        InvalidTypeError: If a residual is not one tensor or several.
        InvalidValueError: If one has another shape than :class:`Condition` allows.
    """
    together = points[0] if len(points) == 1 else torch.cat(list(points))
    fields = evaluate_fields(network, together, problem.coordinates, problem.fields, mode=mode, wanted=wanted)
    if len(points) == 1:
        parts = [fields]
    else:
        ends = list(accumulate(map(len, points)))
        parts = [PartOfFields(fields, start, end) for start, end in pairwise([0, *ends])]
    squares = [
        component.square().mean()
        for condition, part in zip(conditions, parts, strict=True)
        for component in _components(condition.residual(part), problem, part)
    ]
    return squares[0] if len(squares) == 1 else torch.stack(squares).sum()


def _components(residual: Any, problem: Problem, fields: Fields) -> list[Tensor]:
    count = len(fields.points)
    # Half as many where a condition compares the two sides of a periodic region.
    expected = [(*lead, size) for size in (count, count // 2) for lead in ((), (len(problem.fields),))]
    components = list(residual) if isinstance(residual, Sequence) else [residual]
    for component in components:
        if not isinstance(component, Tensor):
            raise InvalidTypeError(f"a residual must return tensors, got {type(component).__name__}")
        if tuple(component.shape) not in expected:
            raise InvalidValueError(
                f"a residual returned shape {tuple(component.shape)} for {count} points; return one number for each "
                "point, shape (points,), several such tensors, or one tensor (fields, points)"
            )
    return components


def _losses(problem: Problem) -> dict[str, list[Condition]]:
    kind = type(problem)
    if kind.losses is Problem.losses:
        raise InvalidTypeError(f"{kind.__name__} has no losses(); write one that returns conditions by name")
    try:
        found = problem.losses()
    except (Exception, SystemExit) as error:
        blame_user(error, f"{kind.__name__}.losses()", kind)
        raise
    if not isinstance(found, Mapping):
        raise InvalidTypeError(
            f"{kind.__name__}.losses() must return a dictionary of conditions by name, got {type(found).__name__}"
        )
    if not found:
        raise InvalidValueError(f"{kind.__name__}.losses() returned no loss; return at least one condition by name")
    conditions = {}
    for name, entry in found.items():
        group = list(entry) if isinstance(entry, Sequence) else [entry]
        if not group or not all(isinstance(condition, Condition) for condition in group):
            raise InvalidTypeError(
                f"loss {name!r} of {kind.__name__} must be conditions made by "
                "self.interior, self.boundary, self.periodic or self.initial"
            )
        conditions[name] = group
    return conditions

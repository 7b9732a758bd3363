"""The NSFNET backbone of 12 nodes and 15 links: routes, flows and the capacity constraint that they imply."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from octavo_core.errors import InvalidValueError

__all__ = [
    "NSFNET_LINKS",
    "NSFNET_V2",
    "NSFNET_V3",
    "Routing",
    "link_constraints",
    "nsfnet_constraint_matrix",
    "routing",
]

NSFNET_LINKS: dict[int, tuple[int, int]] = {
    16: (0, 1),
    17: (0, 4),
    18: (1, 2),
    19: (1, 3),
    20: (2, 4),
    21: (3, 5),
    22: (4, 7),
    23: (5, 6),
    24: (5, 10),
    25: (6, 7),
    26: (6, 8),
    27: (7, 11),
    28: (8, 9),
    29: (9, 10),
    30: (10, 11),
}
"""Backbone links by number, with the nodes that they join."""


@dataclass(frozen=True)
class Routing:
    """Routes of a network task: which links each path uses, and which paths a flow owns.

    Args:
        paths: Link numbers of each path, in order of travel.
        flows: Path numbers of each flow, whose throughput, latency and losses are counted together.
        rate_scale: Packets per interval at action 0; a path sends ``rate_scale (a + 1)`` packets per interval.
        capacity: Packets per second that a link serves.

    Raises:
        InvalidValueError: If a path is empty or passes a link twice, or a flow names a path that is not there or that
            another flow owns.
    """

    paths: tuple[tuple[int, ...], ...]
    flows: tuple[tuple[int, ...], ...]
    rate_scale: float = 50.0
    capacity: float = 50.0

    def __post_init__(self) -> None:
        for number, path in enumerate(self.paths):
            if not path or len(set(path)) != len(path):
                raise InvalidValueError(f"path {number} is {path}; a path needs links, each of them once")
        if sorted(path for flow in self.flows for path in flow) != list(range(len(self.paths))):
            raise InvalidValueError(
                f"the flows {self.flows} must own each of the {len(self.paths)} paths, numbered from 0, exactly once"
            )
        if not (self.rate_scale > 0 and self.capacity > 0):
            raise InvalidValueError("rate_scale and capacity must be positive")

    @property
    def links(self) -> tuple[int, ...]:
        """Numbers of the links in use, in ascending order."""
        return tuple(sorted({link for path in self.paths for link in path}))

    def incidence(self) -> Float64[np.ndarray, "links paths"]:
        """Which paths pass a link: ones and zeros.

        Returns:
            One row per link in use, in the order of ``links``.
        """
        return np.array([[float(link in path) for path in self.paths] for link in self.links])


NSFNET_V2 = Routing(
    paths=(
        (16, 19, 21, 24),
        (16, 19, 21, 23, 25, 27, 30),
        (17, 22, 27, 30),
        (16, 19, 21, 23, 25),
        (16, 18, 20, 22),
        (17, 22),
        (23, 26, 28, 29),
        (24,),
        (23, 25, 27, 30),
    ),
    flows=((0, 1, 2), (3, 4, 5), (6, 7, 8)),
)
"""NSFnetV2: three flows (nodes 0 to 10, 0 to 7, 5 to 10) of three paths each."""

NSFNET_V3 = Routing(
    paths=(
        (16, 19, 21, 24),
        (17,),
        (17, 22, 27),
        (16, 19, 21, 23, 26, 28),
        (23, 25),
        (24, 30),
        (21, 19, 16),
        (24, 29),
        (29, 28),
        (30, 27, 22),
        (24, 21),
        (30, 27, 22, 20),
        (26, 25),
        (28, 29, 30),
        (26, 25, 22, 17),
        (26, 23, 21, 19),
        (17,),
        (22, 25),
        (22, 25, 26),
        (20,),
    ),
    flows=((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15), (16, 17, 18, 19)),
    rate_scale=25.0,
)
"""NSFnetV3: five senders of four paths each."""


def routing(version: str) -> Routing:
    """Routes of a version of the task.

    Args:
        version: ``"V2"`` or ``"V3"``.

    Returns:
        The routes.

    Raises:
        InvalidValueError: If there is no such version.
    """
    found = {"V2": NSFNET_V2, "V3": NSFNET_V3}.get(version)
    if found is None:
        raise InvalidValueError(f"version={version!r}: NSFnet comes as 'V2' (9 paths) or 'V3' (20 paths)")
    return found


def link_constraints(
    routes: Routing, *, drop_implied: bool = False
) -> tuple[Float64[np.ndarray, "rows paths"], Float64[np.ndarray, " rows"]]:
    """Capacity of every link as linear inequalities on actions in [-1, 1].

    A link with n paths carries ``sum rate_scale (a_i + 1) <= capacity``, that is ``sum a_i <= capacity / rate_scale -
    n``.

    Args:
        routes: Paths, and the capacity of their links.
        drop_implied: Leave out links whose paths all pass another link, and links that no action in the box can
            overload.

    Returns:
        ``A`` and ``b`` with feasible actions ``A a <= b``, one row per distinct set of paths, in order of links.

    Source:
        The feasible set of the NSFnet tasks, from the paths themselves (the tables of the reference code omit one path
        of link 19 and add one to link 29 in V3).
    """
    rows = np.unique(routes.incidence(), axis=0, return_index=True)[1]
    incidence = routes.incidence()[np.sort(rows)]
    bounds = routes.capacity / routes.rate_scale - incidence.sum(axis=1)
    if drop_implied:
        contained = (incidence[:, None] <= incidence[None]).all(axis=2) & ~np.eye(len(incidence), dtype=bool)
        kept = ~contained.any(axis=1) & (incidence.sum(axis=1) > bounds)
        incidence, bounds = incidence[kept], bounds[kept]
    return incidence, bounds


def nsfnet_constraint_matrix(
    version: str, *, drop_implied: bool = False
) -> tuple[Float64[np.ndarray, "rows paths"], Float64[np.ndarray, " rows"]]:
    """Link capacities of NSFnet as inequalities ``A a <= b`` on actions in [-1, 1].

    Args:
        version: ``"V2"`` (9 paths) or ``"V3"`` (20 paths).
        drop_implied: As for ``link_constraints``.

    Returns:
        ``A`` and ``b``.

    Raises:
        InvalidValueError: If there is no such version.

    Source:
        As ``link_constraints``.
    """
    return link_constraints(routing(version), drop_implied=drop_implied)

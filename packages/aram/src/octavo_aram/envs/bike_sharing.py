"""Bike sharing: a fixed number of bikes is redistributed over the zones of a city before every step."""

from __future__ import annotations

import operator
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Float64, Int64
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError

from octavo_aram.envs.allocation import Numbers, nearest_integer_allocation

__all__ = ["BSS3Z_DISTANCES", "BSS5Z_DISTANCES", "BikeSharingEnv"]

BSS3Z_DISTANCES: tuple[tuple[float, ...], ...] = (
    (0.0, 7.402, 8.297),
    (7.402, 0.0, 5.865),
    (8.297, 5.865, 0.0),
)
"""Distances between the three zones of BSS3z."""

BSS5Z_DISTANCES: tuple[tuple[float, ...], ...] = (
    (0.0, 6.699, 1.631, 2.282, 5.862),
    (6.699, 0.0, 9.984, 5.876, 4.011),
    (1.631, 9.984, 0.0, 3.362, 3.550),
    (2.282, 5.876, 3.362, 0.0, 10.010),
    (5.862, 4.011, 3.550, 10.010, 0.0),
)
"""Distances between the five zones of BSS5z."""

_PRESETS: dict[int, tuple[tuple[tuple[float, ...], ...], int]] = {3: (BSS3Z_DISTANCES, 10), 5: (BSS5Z_DISTANCES, 0)}
_LEAST_TRIPS, _MOST_TRIPS = 5, 24


class BikeSharingEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """Bike-sharing system (BSS) with lost pick-ups, lost drop-offs and a cost for moved bikes.

    Actions are the wanted numbers of bikes per zone, within the bounds of the action space; the nearest integers that
    sum to the number of bikes are set up (an accepted action's sum may be off by the tolerance of the check). With
    ``a`` in [-1, 1] that is ``15 a + 25`` for three zones and ``20 a + 20`` for five. The observation holds the demand
    of the previous step per origin, the bikes per zone, and the step: 2 n + 1 whole numbers as float64.

    Step: moving ``sum |target - current| / 2`` bikes; origin i serves ``min(bikes_i, demand_i)`` trips in proportion to
    its demand, rounded half to even, the last destination that is not zero taking what the preceding ones leave;
    arrivals are added; a zone above its capacity pushes the surplus to the others, nearest first. The reward is minus
    unserved trips, pushed bikes and twice the moved bikes. An episode is truncated after ``horizon`` steps.

    Args:
        zones: 3 or 5, the benchmark's cities; ignored where ``distances`` is given.
        distances: Distances between the zones (n, n) of another city, non-negative, symmetric, zero on the
            diagonal.
        bikes_per_zone: Bikes per zone at the start.
        capacity: Bikes that a zone holds.
        min_bikes: Least bikes that an action may leave in a zone; default 10 for three zones, otherwise 0.
        horizon: Steps per episode.
        flows: Trips wanted from zone i to zone j at each step (horizon or more, n, n), non-negative whole numbers with
            a zero diagonal, used in every episode; default None draws uniformly from 5 to 24 each episode.

    Raises:
        InvalidValueError: If a number, ``distances`` or ``flows`` does not fit the description above.
        InvalidTypeError: If a count is not a whole number.

    Source:
        The benchmark's bike-sharing tasks, whose capacity is 40 here as in its names ending in D40.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        zones: float | int = 3,
        *,
        distances: Numbers | None = None,
        bikes_per_zone: float | int = 30,
        capacity: float | int = 40,
        min_bikes: float | int | None = None,
        horizon: float | int = 100,
        flows: Numbers | None = None,
    ) -> None:
        if distances is None:
            if zones not in _PRESETS:
                raise InvalidValueError(f"zones={zones}: the benchmark has 3 or 5; give distances for another city")
            table, least = _PRESETS[int(zones)]
        else:
            table, least = distances, 0
        self.distances = _checked_distances(table)
        self.zones = len(self.distances)
        self.capacity = _whole("capacity", capacity, 1)
        self.min_bikes = _whole("min_bikes", least if min_bikes is None else min_bikes, 0)
        self.horizon = _whole("horizon", horizon, 1)
        self.bikes_per_zone = _whole("bikes_per_zone", bikes_per_zone, 1)
        if not self.min_bikes <= self.bikes_per_zone <= self.capacity:
            raise InvalidValueError(
                f"bikes_per_zone={bikes_per_zone} must lie between min_bikes={self.min_bikes} and capacity={capacity}"
            )
        self.total_bikes = self.bikes_per_zone * self.zones
        self._fixed_flows = None if flows is None else self._checked_flows(flows)
        most = _MOST_TRIPS * (self.zones - 1)
        if self._fixed_flows is not None:
            most = max(most, int(self._fixed_flows.sum(axis=2).max()))
        self._most_demand = most
        self.observation_scale = np.array(
            [max(most, 1)] * self.zones + [self.capacity] * self.zones + [self.horizon], dtype=np.float64
        )
        self.observation_space = Box(np.zeros(2 * self.zones + 1), self.observation_scale, dtype=np.float64)
        self.action_space = Box(float(self.min_bikes), float(self.capacity), (self.zones,), dtype=np.float64)
        # Nearest first; a stable sort puts the own zone, at distance zero, before others at distance zero.
        away = self.distances - 2.0 * np.eye(self.zones)
        self._nearest = np.argsort(away, axis=1, kind="stable")[:, 1:].tolist()
        self._flows: np.ndarray | None = None
        self._bikes = np.full(self.zones, self.bikes_per_zone, dtype=np.int64)
        self._demand = np.zeros(self.zones, dtype=np.int64)
        self._time = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float64[np.ndarray, " observation"], dict[str, Any]]:
        """Start an episode with equally filled zones and new demand.

        Args:
            seed: Seed of the demand; None continues the generator.
            options: ``{"flows": array}`` sets the demand of this episode, as for the constructor.

        Returns:
            The observation, and an empty info.

        Raises:
            InvalidValueError: If the flows do not fit, or their demand exceeds the observation space.
        """
        super().reset(seed=seed)
        given = (options or {}).get("flows")
        if given is not None:
            self._flows = self._checked_flows(given)
            if int(self._flows.sum(axis=2).max()) > self._most_demand:
                raise InvalidValueError(
                    f"flows of this episode have more than {self._most_demand} trips from one zone, the bound of the "
                    "observation space; give such flows to the constructor"
                )
        elif self._fixed_flows is not None:
            self._flows = self._fixed_flows
        else:
            shape = (self.horizon, self.zones, self.zones)
            drawn = self.np_random.integers(_LEAST_TRIPS, _MOST_TRIPS, size=shape, endpoint=True)
            self._flows = drawn * (1 - np.eye(self.zones, dtype=np.int64))
        self._bikes = np.full(self.zones, self.bikes_per_zone, dtype=np.int64)
        self._demand = np.zeros(self.zones, dtype=np.int64)
        self._time = 0
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[Float64[np.ndarray, " observation"], float, bool, bool, dict[str, Any]]:
        """Redistribute the bikes, serve the trips of one step and push back what does not fit.

        Args:
            action: Wanted bikes per zone (n,), finite.

        Returns:
            Observation, reward, terminated (never), truncated (after ``horizon`` steps), and an info with
            ``allocation``, ``moved``, ``lost_pickup``, ``lost_dropoff`` and ``revenue`` (served trips).

        Raises:
            InvalidStateError: If the episode is over or was never reset.
            InvalidValueError: If the action has another shape or is not finite.
        """
        if self._flows is None or self._time >= self.horizon:
            raise InvalidStateError("the episode is over or was never started; call reset() first")
        wanted = np.asarray(action, dtype=np.float64)
        if wanted.shape != (self.zones,):
            raise InvalidValueError(f"the action has shape {wanted.shape}; give one number per zone, ({self.zones},)")
        target = nearest_integer_allocation(wanted, self.total_bikes, self.min_bikes, self.capacity)
        moved = float(np.abs(target - self._bikes).sum()) / 2.0
        flow = self._flows[self._time]
        demand = flow.sum(axis=1)
        trips = _served_trips(target, flow)
        # All bikes that are wanted leave, also those whose trips round to nothing; the next redistribution restores
        # the total.
        bikes, pushed = self._push_back(target - np.minimum(target, demand) + trips.sum(axis=0))
        served = int(trips.sum())
        unserved = int(demand.sum()) - served
        self._bikes, self._demand = bikes, demand
        self._time += 1
        info = {
            "allocation": target,
            "moved": moved,
            "lost_pickup": unserved,
            "lost_dropoff": pushed,
            "revenue": served,
        }
        return self._observation(), -float(unserved + pushed + 2 * moved), False, self._time >= self.horizon, info

    def _observation(self) -> Float64[np.ndarray, " observation"]:
        return np.concatenate([self._demand, self._bikes, [self._time]]).astype(np.float64)

    def _push_back(self, bikes: Int64[np.ndarray, " zones"]) -> tuple[Int64[np.ndarray, " zones"], int]:
        """Move what exceeds a zone's capacity to the nearest zones with room, zone by zone."""
        pushed = 0
        held = bikes.tolist()
        for zone in range(self.zones):
            surplus = held[zone] - self.capacity
            for other in self._nearest[zone]:
                if surplus <= 0:
                    break
                taken = min(surplus, max(self.capacity - held[other], 0))
                held[zone], held[other] = held[zone] - taken, held[other] + taken
                surplus, pushed = surplus - taken, pushed + taken
        return np.array(held, dtype=np.int64), pushed

    def _checked_flows(self, flows: Numbers) -> Int64[np.ndarray, "steps zones zones"]:
        table = np.asarray(flows)
        if table.ndim != 3 or table.shape[1:] != (self.zones, self.zones) or not 1 <= self.horizon <= len(table):
            raise InvalidValueError(
                f"flows has shape {table.shape}; give (steps, {self.zones}, {self.zones}) with at least "
                f"horizon={self.horizon} steps"
            )
        if table.dtype.kind not in "iuf" or not np.isfinite(table).all() or (table != np.rint(table)).any():
            raise InvalidValueError("flows must hold whole numbers of trips")
        if (table < 0).any() or table[:, np.eye(self.zones, dtype=bool)].any():
            raise InvalidValueError("flows must be non-negative, and zero from a zone to itself")
        return table.astype(np.int64)


def _served_trips(
    bikes: Int64[np.ndarray, " zones"], flow: Int64[np.ndarray, "zones zones"]
) -> Int64[np.ndarray, "zones zones"]:
    """Trips from each origin: all that are wanted, or as many as there are bikes, in proportion to the demand."""
    demand = flow.sum(axis=1)
    trips = flow.copy()
    for origin in np.flatnonzero(bikes < demand):
        # Multiplying first keeps halves exact, so that they are rounded to even and not by an earlier rounding error.
        row = np.rint(bikes[origin] * flow[origin] / demand[origin]).astype(np.int64)
        leaving = np.flatnonzero(row)
        if leaving.size:
            last = leaving[-1]
            row[last] = bikes[origin] - row[:last].sum()
        trips[origin] = row
    return trips


def _checked_distances(table: Numbers) -> Float64[np.ndarray, "zones zones"]:
    try:
        distances = np.asarray(table, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"distances is no table of numbers: {error}") from error
    if distances.ndim != 2 or distances.shape[0] != distances.shape[1] or len(distances) < 2:
        raise InvalidValueError(f"distances has shape {distances.shape}; give a square table of two zones or more")
    if not np.isfinite(distances).all() or (distances < 0).any() or distances.diagonal().any():
        raise InvalidValueError("distances must be finite, non-negative and zero on the diagonal")
    if not np.allclose(distances, distances.T, rtol=1e-9, atol=0):
        row, column = np.argwhere(~np.isclose(distances, distances.T, rtol=1e-9, atol=0))[0]
        raise InvalidValueError(
            f"distances are not symmetric: {distances[row, column]:g} from zone {row} to {column} and "
            f"{distances[column, row]:g} back; give one distance for both ways, e.g. (D + D.T) / 2"
        )
    return distances


def _whole(name: str, number: Any, least: int) -> int:
    try:
        count = operator.index(number)
    except TypeError as error:
        raise InvalidTypeError(f"{name}={number!r} must be a whole number") from error
    if count < least:
        raise InvalidValueError(f"{name}={number} must be at least {least}")
    return count

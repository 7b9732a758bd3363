"""Deterministic fluid version of the packet network: the same queues, with amounts in place of packets."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from octavo_aram.envs.packets import IntervalStatistics, whole_packets
from octavo_aram.envs.topology import Routing

__all__ = ["FluidNetwork"]


class FluidNetwork:
    """Links that serve a fluid at their capacity, in proportion to what each path has waiting.

    Time advances by the propagation delay: what a link serves during one step reaches the next link in the following
    one. Each bit of fluid carries the time at which it was sent, so that round trips are exact means; amounts are
    conserved. Nothing is drawn: the same actions give the same rewards, which differ from those of the packets by the
    queueing that random service times cause.

    Args:
        routes: Paths and capacity of the links.
        delay: Propagation delay of a link, and time step, in seconds.
        queue: Packets that a link may hold.
        stream_rate: Packets per second that all senders together put into the network.

    Source:
        Beyond the paper: a model without noise, for tests and for seeing what noise costs a learner.
    """

    def __init__(self, routes: Routing, *, delay: float = 0.05, queue: int = 500, stream_rate: float = 500.0) -> None:
        links = routes.links
        self._lengths = np.array([len(path) for path in routes.paths])
        # One place per hop of each path, in order of travel: the place after a hop is that of the next hop.
        self._link = np.array([links.index(link) for path in routes.paths for link in path])
        self._path = np.repeat(np.arange(len(routes.paths)), self._lengths)
        self._last = np.cumsum(self._lengths) - 1
        self._first = self._last - self._lengths + 1
        self._num_links = len(links)
        self._delay, self._queue, self._stream_rate = delay, float(queue), stream_rate
        self._served_per_step = routes.capacity * delay
        self.reset(np.random.default_rng(0))

    def reset(self, generator: np.random.Generator) -> None:
        """Empty every queue and set the clock to zero.

        Args:
            generator: Not used; taken as by ``PacketNetwork.reset``.
        """
        self.time = 0.0
        # First axis: amount, and amount times the time at which it was sent.
        self._waiting = np.zeros((2, len(self._link)))
        self._entering = np.zeros((2, len(self._lengths)))
        self._leaving = np.zeros((2, len(self._lengths)))
        self._held = np.zeros(self._num_links)

    @property
    def in_flight(self) -> float:
        """Amount on its way."""
        return float(self._waiting[0].sum() + self._entering[0].sum() + self._leaving[0].sum())

    def run(self, duration: float, budgets: Float64[np.ndarray, " paths"]) -> IntervalStatistics:
        """Send the amounts of an interval and advance the clock over it.

        Args:
            duration: Seconds to simulate, rounded to whole time steps.
            budgets: Packets that each path sends, non-negative; a fraction counts as a packet.

        Returns:
            Amounts per path.
        """
        amounts = whole_packets(budgets).astype(np.float64)
        total = float(amounts.sum())
        # All paths send in proportion, from the start of the interval on, as the packets' single stream makes them.
        rates = amounts * (self._stream_rate / total) if total > 0.0 else amounts
        sending = min(total / self._stream_rate, duration)
        acked, dropped, round_trips = (np.zeros(len(amounts)) for _ in range(3))
        for step in range(max(round(duration / self._delay), 1)):
            spell = min(max(sending - step * self._delay, 0.0), self._delay)
            share = self._served_per_step / np.maximum(self._held, self._served_per_step)
            served = self._waiting * share[self._link]
            arrivals = np.empty_like(served)
            arrivals[:, 1:] = served[:, :-1]
            arrivals[:, self._first] = self._entering
            waiting = self._waiting - served + arrivals
            held = np.bincount(self._link, waiting[0], self._num_links)
            if (held > self._queue).any():
                waiting = self._drop(waiting, arrivals, held, dropped)
                held = np.minimum(held, self._queue)
            self._waiting, self._held = waiting, held
            amount = rates * spell
            self._entering = np.stack([amount, amount * (self.time + 0.5 * spell)])
            self.time += self._delay
            acked += self._leaving[0]
            round_trips += self._leaving[0] * self.time - self._leaving[1]
            self._leaving = served[:, self._last]
        round_trips += acked * (0.001 * self._delay * (self._lengths + 2))
        return IntervalStatistics(rates * sending, acked, dropped, round_trips)

    def _drop(
        self,
        waiting: Float64[np.ndarray, "2 places"],
        arrivals: Float64[np.ndarray, "2 places"],
        held: Float64[np.ndarray, " links"],
        dropped: Float64[np.ndarray, " paths"],
    ) -> Float64[np.ndarray, "2 places"]:
        """Take what exceeds the queue of a link from what arrived there, in proportion."""
        coming = np.bincount(self._link, arrivals[0], self._num_links)
        excess = np.maximum(held - self._queue, 0.0) / np.maximum(coming, 1e-300)
        lost = arrivals * np.minimum(excess, 1.0)[self._link]
        dropped += np.bincount(self._path, lost[0], len(dropped))
        return waiting - lost

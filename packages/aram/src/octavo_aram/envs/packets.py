"""Event-driven simulation of packets that share the queues of a network."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace

import numpy as np
from jaxtyping import Float64, Int64

from octavo_aram.envs.topology import Routing

__all__ = ["IntervalStatistics", "PacketNetwork", "send_schedule", "whole_packets"]

_DRAWN_AT_A_TIME = 4096


@dataclass(frozen=True)
class IntervalStatistics:
    """What happened to the packets of each path during an interval.

    Args:
        sent: Packets sent, (paths,); whole numbers unless the network is a fluid, as for the other counts.
        acked: Packets whose acknowledgement arrived, (paths,).
        dropped: Packets that met a full queue, (paths,).
        round_trips: Sum of the round trips of the acknowledged packets in seconds, (paths,).
    """

    sent: Float64[np.ndarray, " paths"]
    acked: Float64[np.ndarray, " paths"]
    dropped: Float64[np.ndarray, " paths"]
    round_trips: Float64[np.ndarray, " paths"]


class PacketNetwork:
    """Links with first-in-first-out queues, exponential service times and a limit on what may wait.

    A packet that reaches a link waits for the work before it and then travels for the link's propagation delay; its own
    service adds to the work of those behind it. It is dropped where work and service would exceed the queue. Sender and
    receiver hang on access links, which delay like the others but do not hold packets up (5,000 packets/s), and the
    acknowledgement returns with 0.001 of the delay (its queues serve a thousand times faster: microseconds).

    Args:
        routes: Paths and capacity of the links.
        delay: Propagation delay of a link in seconds.
        queue: Packets that a link may hold.

    Source:
        The packet simulation of the NSFnet tasks.
    """

    def __init__(self, routes: Routing, *, delay: float = 0.05, queue: int = 500) -> None:
        positions = {link: position for position, link in enumerate(routes.links)}
        self._paths = [tuple(positions[link] for link in path) for path in routes.paths]
        self._delay = delay
        self._mean_service = 1.0 / routes.capacity
        self._most_work = queue / routes.capacity
        self.reset(np.random.default_rng(0))

    def reset(self, generator: np.random.Generator) -> None:
        """Empty every queue and set the clock to zero.

        Args:
            generator: Draws the gaps and service times until the next reset.
        """
        self._generator = generator
        self.time = 0.0
        self._events: list[tuple[float, int, int, float]] = []
        self._returning: list[tuple[float, int, float]] = []
        self._busy_until = [0.0] * (1 + max(max(path) for path in self._paths))
        self._services: list[float] = []

    @property
    def in_flight(self) -> int:
        """Packets on their way, their acknowledgements included."""
        return len(self._events) + len(self._returning)

    def run(self, duration: float, budgets: Float64[np.ndarray, " paths"]) -> IntervalStatistics:
        """Send the packets of an interval and advance the clock over it.

        Args:
            duration: Seconds to simulate.
            budgets: Packets that each path may send, non-negative.

        Returns:
            Counts per path.
        """
        start, end = self.time, self.time + duration
        count = len(self._paths)
        acked, dropped, round_trips = [0] * count, [0] * count, [0.0] * count
        paths, busy_until, delay, most_work = self._paths, self._busy_until, self._delay, self._most_work
        # One access link on the way in; one on the way out, and all of them back at 0.001 of the delay.
        last_delays = [delay + 0.001 * delay * (len(path) + 2) for path in paths]
        returning: list[tuple[float, int, float]] = []
        for event in self._returning:
            if event[0] < end:
                acked[event[1]] += 1
                round_trips[event[1]] += event[0] - event[2]
            else:
                returning.append(event)
        events = self._events
        times, order = send_schedule(budgets, duration, self._generator)
        for time, path in zip((start + times).tolist(), order.tolist(), strict=True):
            heappush(events, (time + delay, path, 0, time))
        services = self._services
        while events and events[0][0] < end:
            time, path, hop, sent_at = events[0]
            links = paths[path]
            link = links[hop]
            if not services:
                drawn = self._generator.standard_exponential(_DRAWN_AT_A_TIME)
                services = (self._mean_service * drawn).tolist()
            work = max(busy_until[link] - time, 0.0)
            service = services.pop()
            if work + service > most_work:
                dropped[path] += 1
                heappop(events)
                continue
            busy_until[link] = time + work + service
            arrival = time + work + delay
            hop += 1
            if hop < len(links):
                heapreplace(events, (arrival, path, hop, sent_at))
                continue
            heappop(events)
            arrival += last_delays[path]
            if arrival < end:
                acked[path] += 1
                round_trips[path] += arrival - sent_at
            else:
                returning.append((arrival, path, sent_at))
        self._services, self._returning, self.time = services, returning, end
        return IntervalStatistics(
            np.bincount(order, minlength=count).astype(np.float64),
            np.array(acked, dtype=np.float64),
            np.array(dropped, dtype=np.float64),
            np.array(round_trips),
        )


def whole_packets(budgets: Float64[np.ndarray, " paths"]) -> Int64[np.ndarray, " paths"]:
    """Packets that budgets allow: a path may send as long as some of its budget is left.

    Args:
        budgets: Packets per interval, non-negative.

    Returns:
        Whole numbers, rounded up; less than a millionth of a packet is rounding of the action, not a wish to send.
    """
    return np.ceil(budgets - 1e-6).astype(np.int64).clip(min=0)


def send_schedule(
    budgets: Float64[np.ndarray, " paths"],
    duration: float,
    generator: np.random.Generator,
    *,
    stream_rate: float = 500.0,
) -> tuple[Float64[np.ndarray, " packets"], Int64[np.ndarray, " packets"]]:
    """Times and paths of the packets of one interval.

    One stream of arrivals, with gaps ``1 / (Poisson(stream_rate) + 1)``, feeds all paths: each arrival takes the path
    with the smallest sum of ``1 / budget`` so far among those with budget left. An interval therefore starts with a
    burst.

    Args:
        budgets: Packets per interval of each path, non-negative; a fraction counts as a packet.
        duration: Length of the interval in seconds; arrivals after it are lost.
        generator: Draws the gaps.
        stream_rate: Arrivals per second of the stream.

    Returns:
        Ascending times in seconds, and the path of each packet.

    Source:
        Scheduling of the NSFnet tasks.
    """
    counts = whole_packets(budgets)
    paths = np.repeat(np.arange(len(budgets)), counts)
    nth = np.arange(len(paths)) - np.repeat(np.cumsum(counts) - counts, counts)
    # The k-th packet of a path leaves once its sum, k / budget, is the smallest: a merge of sorted sequences.
    order = np.argsort(nth / budgets[paths], kind="stable")
    times = np.cumsum(1.0 / (generator.poisson(stream_rate, len(paths)) + 1.0))
    used = int(np.searchsorted(times, duration))
    return times[:used], paths[order][:used]

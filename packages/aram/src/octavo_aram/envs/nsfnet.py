"""NSFnet: how fast each sender uses each of its paths over the NSFNET backbone."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Float64
from octavo_core.errors import InvalidStateError, InvalidValueError

from octavo_aram.envs.fluid import FluidNetwork
from octavo_aram.envs.packets import PacketNetwork
from octavo_aram.envs.topology import Routing, routing

__all__ = ["NSFnetEnv", "interval_reward"]

_HISTORY = 10
_LEAST_THROUGHPUT, _LEAST_LATENCY = np.exp(-17.5), np.exp(-5.0)


def interval_reward(
    throughput: Float64[np.ndarray, " flows"],
    latency: Float64[np.ndarray, " flows"],
    drops: Float64[np.ndarray, " flows"],
) -> float:
    """Utility of an interval: log throughput, less log latency and log losses.

    Args:
        throughput: Acknowledged packets per second of each flow.
        latency: Mean round trip of each flow in seconds; 0 where nothing came back.
        drops: Dropped packets of each flow.

    Returns:
        ``sum log(max(thr, e^-17.5)) - 1.5 log(max(lat, e^-5)) - 0.5 log(max(drops, 1))``.

    Source:
        Reward of the NSFnet tasks.
    """
    terms = (
        np.log(np.maximum(throughput, _LEAST_THROUGHPUT))
        - 1.5 * np.log(np.maximum(latency, _LEAST_LATENCY))
        - 0.5 * np.log(np.maximum(drops, 1.0))
    )
    return float(terms.sum())


class NSFnetEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """Sending rates over the paths of a backbone network whose queues persist from interval to interval.

    An action in [-1, 1] per path sends ``rate_scale (a + 1)`` packets during the next second. The observation holds,
    for every flow, the last ten intervals, oldest first, of send rate and receive rate (packets/s), mean round trip
    (s) and share of losses: 40 numbers a flow, zero before the start. (The reference code shows flow 0 only.)

    Args:
        version: ``"V2"``: 3 flows of 3 paths; ``"V3"``: 5 senders of 4 paths. Ignored where ``routes`` is given.
        simulator: ``"packets"``: event-driven, with random gaps and service times; ``"fluid"``: deterministic.
        routes: Another network.
        delay: Propagation delay of a link in seconds.
        queue: Packets that a link may hold.

    Raises:
        InvalidValueError: If the version or the simulator does not exist, or a number is not positive.

    Source:
        The benchmark's NSFnet tasks. The event-driven simulation is written anew: rewards at constant actions agree
        with those of the reference code within a few per cent, but not packet by packet.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        version: str = "V2",
        *,
        simulator: str = "packets",
        routes: Routing | None = None,
        delay: float = 0.05,
        queue: int = 500,
    ) -> None:
        self.routes = routing(version) if routes is None else routes
        if not (delay > 0 and queue > 0):
            raise InvalidValueError(f"delay={delay} and queue={queue} must be positive")
        kinds: dict[str, type[PacketNetwork] | type[FluidNetwork]] = {"packets": PacketNetwork, "fluid": FluidNetwork}
        if simulator not in kinds:
            raise InvalidValueError(f"simulator={simulator!r}; choose 'packets' or 'fluid'")
        self.network = kinds[simulator](self.routes, delay=delay, queue=queue)
        self._owner = np.empty(len(self.routes.paths), dtype=np.int64)
        for flow, paths in enumerate(self.routes.flows):
            self._owner[list(paths)] = flow
        self._history = np.zeros((len(self.routes.flows), _HISTORY, 4))
        self.observation_scale = np.broadcast_to(
            [self.routes.capacity, self.routes.capacity, 1.0, 1.0], self._history.shape
        ).ravel()
        self.observation_space = Box(0.0, np.inf, (self._history.size,), dtype=np.float64)
        self.action_space = Box(-1.0, 1.0, (len(self.routes.paths),), dtype=np.float32)
        self._started = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float64[np.ndarray, " observation"], dict[str, Any]]:
        """Start with an empty network.

        Args:
            seed: Seed of gaps and service times; None continues the generator.
            options: Not used.

        Returns:
            The observation (zeros), and an empty info.
        """
        super().reset(seed=seed)
        self.network.reset(self.np_random)
        self._history = np.zeros_like(self._history)
        self._started = True
        return self._history.ravel().copy(), {}

    def step(self, action: np.ndarray) -> tuple[Float64[np.ndarray, " observation"], float, bool, bool, dict[str, Any]]:
        """Send for one second.

        Args:
            action: One number per path in [-1, 1].

        Returns:
            Observation, reward, terminated and truncated (never), and an info with ``throughput``, ``latency`` and
            ``drops`` per flow, and ``in_flight``.

        Raises:
            InvalidStateError: If the environment was never reset.
            InvalidValueError: If the action has another shape, is not finite or leaves [-1, 1].
        """
        if not self._started:
            raise InvalidStateError("the environment was never reset; call reset() first")
        rates = np.asarray(action, dtype=np.float64)
        if rates.shape != self._owner.shape:
            raise InvalidValueError(
                f"the action has shape {rates.shape}; give one number per path, {self._owner.shape}"
            )
        if not (np.abs(rates) <= 1.0 + 1e-6).all():
            raise InvalidValueError(
                f"the action {rates.tolist()} leaves [-1, 1] or is not finite; clip it, or map it with a constraint"
            )
        budgets = self.routes.rate_scale * (np.clip(rates, -1.0, 1.0) + 1.0)
        seen = self.network.run(1.0, budgets)
        sent, acked, drops, round_trips = (
            np.bincount(self._owner, counts, len(self.routes.flows))
            for counts in (seen.sent, seen.acked, seen.dropped, seen.round_trips)
        )
        latency = round_trips / np.where(acked > 0.0, acked, 1.0)
        loss = drops / np.where(acked + drops > 0.0, acked + drops, 1.0)
        self._history = np.roll(self._history, -1, axis=1)
        self._history[:, -1] = np.stack([sent, acked, latency, loss], axis=1)
        info = {"throughput": acked, "latency": latency, "drops": drops, "in_flight": self.network.in_flight}
        return self._history.ravel().copy(), interval_reward(acked, latency, drops), False, False, info

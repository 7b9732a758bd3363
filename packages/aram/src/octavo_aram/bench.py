"""Benchmarks behind ``octavo bench aram``: seconds of an action, a projection and a training step, against named peers.

All ratios are measured within one process, interleaved, on one thread.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from octavo_core.bench import compare, speed_row
from octavo_core.device import installed_versions, num_threads, resolve_device
from octavo_core.progress import ProgressCallback, no_progress
from octavo_core.report import Report

from octavo_aram.agent import Agent
from octavo_aram.buffers import DualReplayBuffer
from octavo_aram.config import ARAMConfig
from octavo_aram.constraints import Box, L2Ball
from octavo_aram.learner import ARAM
from octavo_aram.methods import make_agent
from octavo_aram.projection_bench import bench_projections

__all__ = ["PointEnv", "run", "set_policy_spread"]

_PEERS = ("cvxpy", "clarabel", "stable-baselines3", "gymnasium", "mujoco")
_RADIUS2 = 0.05


class PointEnv(gymnasium.Env):
    """A point that the action pushes, as cheap as an environment can be: what is timed around it is the learner.

    Args:
        observations: Length of an observation.
        actions: Length of an action.
    """

    def __init__(self, observations: int = 10, actions: int = 2) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (observations,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (actions,), np.float32)
        self._state = np.zeros(observations)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Start an episode.

        Args:
            seed: Seed of the start.
            options: Not used.

        Returns:
            The observation and an empty dictionary.
        """
        super().reset(seed=seed)
        self._state = self.np_random.standard_normal(len(self._state))
        self._steps = 0
        return self._state.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Push the point.

        Args:
            action: The push.

        Returns:
            Observation, reward, and flags; episodes last 50 steps.
        """
        self._state *= 0.95
        self._state[: len(action)] += 0.2 * np.asarray(action)
        self._steps += 1
        return self._state.copy(), -float(self._state @ self._state), False, self._steps >= 50, {}


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Run the benchmarks.

    Args:
        quick: Fewer repetitions.
        seed: Seed of networks, states and actions.
        device: Device of the networks; ``"auto"`` is the CPU, which suits networks of this size.
        progress: Called with what is being measured and the share done.

    Returns:
        The report. Rows that need a peer that is not installed are left out and named in a note.
    """
    target = "cpu" if device == "auto" else str(resolve_device(device))
    report = Report("aram", "bench", seed=seed, title="aram: benchmarks", packages=_PEERS)
    repeats = 7 if quick else 25
    steps: list[tuple[str, Callable[[], None]]] = [
        ("action selection", lambda: _action_latency(report, seed, target, repeats)),
        ("projections", lambda: _projections(report, quick, seed)),
        ("training steps", lambda: _step_cost(report, seed, target, repeats)),
        ("buffers", lambda: _buffers(report)),
    ]
    with warnings.catch_warnings():
        # The toy point's rewards are negative; that the penalty is too small for it is no news here.
        warnings.simplefilter("ignore")
        for done, (name, step) in enumerate(steps):
            progress(name, done / len(steps))
            step()
            progress(name, 1.0)
    return report.finish()


def _projections(report: Report, quick: bool, seed: int) -> None:
    for row in bench_projections(quick, seed):
        report.append(row)


def set_policy_spread(agent: Agent, deviation: float) -> None:
    """Make a policy propose tanh of a centred Gaussian of a given deviation at every state.

    Args:
        agent: An agent with a Gaussian policy.
        deviation: Deviation before tanh.
    """
    network = agent.core.policy.network
    with torch.no_grad():
        network.flat.zero_()
        # The second half of the last bias are the log-deviations.
        network.parts[-1][..., agent.envs.action_dim :] = math.log(deviation)


def _action_latency(report: Report, seed: int, device: str, repeats: int) -> None:
    """From a state to a feasible action: ours at a valid rate of 0.9, against SAC that projects by a solver."""
    config = ARAMConfig(seed=seed, device=device)
    ball = L2Ball(_RADIUS2, action_dim=2)
    ours = make_agent("aram", PointEnv(), ball, config)
    # Of a centred Gaussian in the plane 1 - exp(-r^2 / (2 deviation^2)) lies within the radius r.
    set_policy_spread(ours, math.sqrt(_RADIUS2 / (-2 * math.log(0.1))))
    plain = make_agent("spre", PointEnv(), ball, config)
    set_policy_spread(plain, 1.0)
    obs = np.random.default_rng(seed).standard_normal((1, 10))
    tries = np.array([int(ours.choose(obs, deterministic=False).tries[0]) for _ in range(1000)])
    report.add(
        "one_round_share",
        "actions found in the first batched round, valid rate 0.9",
        float((tries <= config.block).mean()),
        target="value >= 0.95",
        note=f"first try feasible in {np.mean(tries == 1):.3f} of 1,000 calls; a round is {config.block} candidates",
    )
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: ours.choose(obs, deterministic=False),
        "closed": lambda: plain.choose(obs, deterministic=False),
    }
    solve = _cvxpy_ball()
    if solve is not None:
        calls["solver"] = lambda: solve(plain.proposals(obs, None, 1)[0, 0])
    timings = compare(calls, repeats=repeats)
    label = "one state to a feasible action"
    if solve is None:
        report.add("action_latency_vs_qp", label, None, note="not measured: pip install 'octavo-aram[solvers]'")
    else:
        versions = installed_versions(["cvxpy", "clarabel"])
        peer = "SAC + " + ", ".join(f"{name} {version}" for name, version in versions.items())
        note = "ours: ARM at a valid rate of 0.9; peer: one draw, then the compiled program"
        report.append(
            speed_row(
                "action_latency_vs_qp", label, timings["ours"], timings["solver"], peer, target="ratio >= 2", note=note
            )
        )
    report.append(
        speed_row(
            "action_latency_vs_closed_form",
            label,
            timings["ours"],
            timings["closed"],
            "SAC + closed-form projection of this package",
            note="no target: with a closed form, projecting costs about as much as testing",
        )
    )


def _cvxpy_ball() -> Callable[[np.ndarray], np.ndarray] | None:
    """Projection onto the ball and the box by CVXPY and Clarabel, compiled once; None without them."""
    if importlib.util.find_spec("cvxpy") is None or importlib.util.find_spec("clarabel") is None:
        return None
    import cvxpy

    action, wanted = cvxpy.Variable(2), cvxpy.Parameter(2)
    limits = [cvxpy.sum_squares(action) <= _RADIUS2, cvxpy.abs(action) <= 1]
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(action - wanted)), limits)

    def solve(proposal: np.ndarray) -> np.ndarray:
        wanted.value = proposal
        problem.solve(solver=cvxpy.CLARABEL)
        return np.asarray(action.value)

    return solve


def _step_cost(report: Report, seed: int, device: str, repeats: int) -> None:
    """Whole training steps (proposal, environment, storage, update) at the same sizes; the environment costs little."""
    config = ARAMConfig(seed=seed, device=device, start_steps=300)
    kinds = {
        "ours": ("aram", L2Ball(_RADIUS2, action_dim=2), config),
        "sac": ("spre", Box([-1.0, -1.0], [1.0, 1.0]), config),
        "morl": (
            "aram",
            L2Ball(_RADIUS2, action_dim=2),
            config.replace(
                preference="dirichlet", num_preferences=4, num_snapshots=4, snapshot_start=0, snapshot_every=50
            ),
        ),
    }
    agents = {name: make_agent(method, PointEnv(), feasible, c) for name, (method, feasible, c) in kinds.items()}
    with num_threads(1):
        for agent in agents.values():
            agent.learn(600)
            # What is compared is the cost at a policy that has learnt, as in most of a run.
            if isinstance(agent, ARAM):
                set_policy_spread(agent, math.sqrt(_RADIUS2 / (-2 * math.log(0.1))))
                agent.core.log_temperature.data.fill_(-4.0)
        calls: dict[str, Callable[[], object]] = {name: agent.step for name, agent in agents.items()}
        peer = _sb3_sac(seed, config)
        if peer is not None:
            calls["sb3"] = peer
        timings = compare(calls, repeats=repeats, min_seconds=0.05)
    ours, plain = timings["ours"].median, timings["sac"].median
    report.add(
        "step_cost_vs_sac",
        "ARAM's training step over a plain SAC step of the same sizes and the same code",
        ours / plain,
        "x",
        target="value <= 1.5",
        note=f"{ours * 1e3:.3g} ms against {plain * 1e3:.3g} ms; MLP 64-64, batch 128, one thread, valid rate near 0.9",
    )
    report.add(
        "step_cost_morl_vs_sac",
        "the same with 4 preferences and 4 snapshots in the policy loss",
        timings["morl"].median / plain,
        "x",
        note="no target: 20 critic evaluations a state instead of 1",
    )
    if peer is None:
        note = "not measured: pip install 'octavo-aram[sb3]'"
        report.add("step_cost_vs_sb3", "ARAM's training step against Stable-Baselines3's SAC", None, note=note)
        return
    version = installed_versions(["stable-baselines3"])["stable-baselines3"]
    report.append(
        speed_row(
            "step_cost_vs_sb3",
            "ARAM's training step against a SAC step of Stable-Baselines3",
            timings["ours"],
            timings["sb3"],
            f"stable-baselines3 {version}",
            note="same sizes, one update a step, unconstrained",
        )
    )


def _sb3_sac(seed: int, config: ARAMConfig) -> Callable[[], object] | None:
    """One training step of Stable-Baselines3's SAC; None without it."""
    if importlib.util.find_spec("stable_baselines3") is None:
        return None
    from stable_baselines3 import SAC

    model: Any = SAC(
        "MlpPolicy",
        PointEnv(),
        learning_rate=float(config.learning_rate),
        batch_size=config.batch_size,
        learning_starts=100,
        policy_kwargs={"net_arch": list(config.hidden)},
        seed=seed,
        device="cpu",
    )
    model.learn(200)
    _, callback = model._setup_learn(10**9, None, False, "run", False)
    # The optimiser's schedule asks how far the run is.
    model._current_progress_remaining = 1.0

    def step() -> None:
        model.collect_rollouts(
            model.env,
            callback=callback,
            train_freq=model.train_freq,
            replay_buffer=model.replay_buffer,
            action_noise=None,
            learning_starts=0,
            log_interval=None,
        )
        model.train(gradient_steps=1, batch_size=config.batch_size)

    return step


def _buffers(report: Report) -> None:
    buffer = DualReplayBuffer(1_000_000, 1_000_000, observations=17, actions=6)
    report.add(
        "buffer_memory",
        "both buffers for 1,000,000 entries each, HalfCheetah's sizes",
        buffer.nbytes / 2**20,
        "MiB",
        note="allocated at once; the system commits pages as they fill",
    )

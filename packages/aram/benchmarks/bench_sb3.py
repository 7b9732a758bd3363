"""Agents of Stable-Baselines3 on the augmented MDP: how many of their own actions are feasible after 6,000 steps.

Run as a script for the table; ``--quick`` trains one agent for 1,000 steps. Needs the extras sb3 and mujoco.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
from octavo_aram.registry import make_constraint
from octavo_aram.sb3 import wrap_predict
from octavo_aram.wrappers import AutoMDPWrapper, ExecutedActionAudit
from octavo_core.device import num_threads, resolve_device
from octavo_core.progress import ProgressCallback, console_progress, no_progress
from octavo_core.report import Report

__all__ = ["run", "train_and_test"]

# Small networks and a faster rate than the library's 3e-4, with which 6,000 steps are too few.
RECIPE: dict[str, Any] = {
    "policy_kwargs": {"net_arch": [64, 64]},
    "batch_size": 128,
    "learning_rate": 1e-3,
    "learning_starts": 500,
}
ALGORITHMS = {"sac": "SAC", "tqc": "TQC"}
_EPISODES = 10


def train_and_test(algorithm: str, *, steps: int, seed: int, device: str = "cpu") -> tuple[float, float, int]:
    """Train on the scalar augmented Reacher and test on the plain one.

    Args:
        algorithm: ``"SAC"`` or ``"TQC"``.
        steps: Steps of the wrapper, self-loops included.
        seed: Seed of the agent and its environment.
        device: Device.

    Returns:
        Share of the agent's own stochastic actions that are feasible, mean return of ten episodes whose actions are
        drawn by acceptance-rejection, and violations executed.
    """
    import sb3_contrib
    import stable_baselines3

    env = gymnasium.make("Reacher-v5")
    constraint = make_constraint("Re+L2", env)
    augmented = AutoMDPWrapper(env, constraint, kappa=1.0, preference=[0.5, 0.5], reward_offset=1.0)
    kind = getattr(stable_baselines3, algorithm, None) or getattr(sb3_contrib, algorithm)
    model = kind("MlpPolicy", augmented, seed=seed, device=device, **RECIPE)
    model.learn(steps)
    test = ExecutedActionAudit(gymnasium.make("Reacher-v5"), constraint, raise_on_violation=False)
    policy = wrap_predict(model, constraint, action_space=test.action_space)
    returns = []
    for episode in range(_EPISODES):
        observation, _ = test.reset(seed=10_000 + episode)
        total, ended = 0.0, False
        while not ended:
            action, _ = policy.predict(observation)
            observation, reward, terminated, truncated, _ = test.step(action)
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return policy.counts.valid_rate, float(np.mean(returns)), test.violations


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Train and test two algorithms over three seeds.

    Args:
        quick: SAC only, one seed, 1,000 steps.
        seed: First seed.
        device: Device.
        progress: Called with the agent and the share done.

    Returns:
        The report.
    """
    target = resolve_device(device)
    report = Report(
        "aram",
        "bench",
        seed=seed,
        title="aram: Stable-Baselines3 agents on the augmented MDP",
        packages=("stable-baselines3", "sb3-contrib", "gymnasium", "mujoco"),
    )
    steps, seeds = (1_000, range(seed, seed + 1)) if quick else (6_000, range(seed, seed + 3))
    names = ["sac"] if quick else list(ALGORITHMS)
    # Networks this small are fastest on one thread.
    with num_threads(1):
        for position, name in enumerate(names):
            results = []
            for index, run_seed in enumerate(seeds):
                progress(f"{ALGORITHMS[name]} seed {run_seed}", (position + index / len(seeds)) / len(names))
                results.append(train_and_test(ALGORITHMS[name], steps=steps, seed=run_seed, device=str(target)))
            rates, returns, violations = zip(*results, strict=True)
            suffix = "" if name == "sac" else f"_{name}"
            report.add(
                f"sb3_valid_rate{suffix}",
                f"feasible share of {ALGORITHMS[name]}'s own actions on Re+L2, worst seed",
                min(rates),
                target=None if quick else "value >= 0.8",
                spread=(min(rates), max(rates)),
                note=f"{len(seeds)} seeds, {steps:,} wrapper steps, kappa 1, preference (0.5, 0.5); uniform actions: "
                f"0.039; mean test return {np.mean(returns):.1f}, {sum(violations)} violations executed",
            )
    progress("Stable-Baselines3", 1.0)
    return report.finish()


if __name__ == "__main__":
    from rich.console import Console

    with console_progress() as callback:
        Console().print(run(quick="--quick" in sys.argv, progress=callback).table())

"""Constrain a Stable-Baselines3 agent by a YAML file: train on the augmented MDP, deploy without violations.

Another environment needs another id here and another file; any Gymnasium environment with a bounded vector of actions
will do.

    python sb3_yaml.py [steps]
"""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
from octavo_aram import load_constraint, valid_rate_callback, wrap_predict
from octavo_aram.wrappers import AutoMDPWrapper
from stable_baselines3 import SAC

env = gymnasium.make("Hopper-v5")
constraint = load_constraint(Path(__file__).with_name("hopper_power.yaml"), env)
augmented = AutoMDPWrapper(env, constraint, kappa=5.0, preference=[0.5, 0.5])
agent = SAC("MlpPolicy", augmented, learning_rate=1e-3, batch_size=128, policy_kwargs={"net_arch": [64, 64]}, seed=0)
callback = valid_rate_callback(window=1000)
agent.learn(int(sys.argv[1]) if len(sys.argv) > 1 else 6_000, callback=callback)
policy = wrap_predict(agent, constraint, action_space=env.action_space)

observation, _ = env.reset(seed=1)
for _ in range(100):
    action, _ = policy.predict(observation)
    observation, _, terminated, truncated, _ = env.step(action)
    if terminated or truncated:
        observation, _ = env.reset()
print(f"feasible share of the agent's own actions: {callback.valid_rate:.0%} at the end of training")
print(f"deployed: {policy.counts.states} actions, all feasible, {policy.counts.projections} of them projected")

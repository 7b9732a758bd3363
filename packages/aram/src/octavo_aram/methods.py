"""All methods by name, in one interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_core.errors import InvalidStateError, InvalidValueError

from octavo_aram.agent import Agent
from octavo_aram.baselines import BASELINES, BaselineAgent
from octavo_aram.config import ARAMConfig, config_from_json
from octavo_aram.learner import ARAM

__all__ = ["METHODS", "agent_from_state", "make_agent", "method_label"]

METHODS: Mapping[str, str] = {
    "aram": "acceptance-rejection and augmented MDP",
    **{name: baseline.about for name, baseline in BASELINES.items()},
}
"""One line about each method, by name."""


def make_agent(method: str, env: Any, constraint: Any, config: ARAMConfig | None = None) -> Agent:
    """Make an agent.

    Args:
        method: A name of ``METHODS``.
        env: A Gymnasium environment with a finite Box of actions, or several of one kind.
        constraint: The feasible set in normalised actions, or the name of a known one.
        config: Settings; the defaults if None.

    Returns:
        The agent.

    Raises:
        InvalidValueError: If there is no such method.
    """
    if method not in METHODS:
        raise InvalidValueError(f"unknown method {method!r}; give one of {', '.join(METHODS)}")
    if method == "aram":
        return ARAM(env, constraint, config)
    return BaselineAgent(env, constraint, config, method=method)


def method_label(method: str) -> str:
    """Name of a method for tables.

    Args:
        method: A name of ``METHODS``.

    Returns:
        For example ``"SPre+"``.
    """
    return "ARAM" if method == "aram" else BASELINES[method].label if method in BASELINES else method


def agent_from_state(
    state: Mapping[str, Any], env: Any, constraint: Any, *, device: str | None = None, predict_only: bool = False
) -> Agent:
    """Make the agent of a saved state.

    Args:
        state: What :meth:`octavo_aram.agent.Agent.state_dict` returned, read from a checkpoint.
        env: The environment of the run.
        constraint: The constraint of the run.
        device: Device to continue on; that of the run if None.
        predict_only: Load the policy alone; see :meth:`octavo_aram.agent.Agent.load`.

    Returns:
        The agent, as it was when it was saved.

    Raises:
        InvalidStateError: If the state is no agent's.
    """
    if not {"method", "config", "core"} <= set(state):
        raise InvalidStateError("the checkpoint holds no agent; give one that an octavo_aram agent saved")
    config = config_from_json(state["config"])
    if device is not None:
        config = config.replace(device=device)
    agent = make_agent(state["method"], env, constraint, config)
    agent.load_state_dict(state, predict_only=predict_only)
    return agent

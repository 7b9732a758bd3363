"""The whole state of a run, so that a resumed one equals the uninterrupted one to the last bit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from octavo_core.checkpoint import random_state, restore_random_state
from octavo_core.errors import InvalidStateError

from octavo_aram.config import config_from_json, config_to_json
from octavo_aram.entropy import EntropyTarget
from octavo_aram.environment import env_id

if TYPE_CHECKING:
    from octavo_aram.agent import Agent

__all__ = ["agent_state", "restore_agent"]


def agent_state(agent: Agent | Any, *, buffers: bool) -> dict[str, Any]:
    """Collect what decides the rest of a run.

    Args:
        agent: The agent.
        buffers: Include the replay buffer.

    Returns:
        A state that :func:`octavo_core.checkpoint.save_checkpoint` takes.
    """
    return {
        "method": agent.method,
        "config": config_to_json(agent.config),
        "device": str(agent.device),
        "env": env_id(agent.envs.envs[0]),
        "constraint": repr(agent.constraint),
        "constraint_fingerprint": agent.constraint_fingerprint,
        "steps": agent.num_steps,
        "updates": agent.num_updates,
        "lowest_reward": agent.lowest_reward,
        "core": agent.core.state_dict(),
        "buffer": agent.buffer.state_dict() if buffers else None,
        "envs": agent.envs.state_dict(),
        "preferences": agent.preferences.state_dict(),
        "counters": agent.counters.state_dict(),
        "random": random_state(agent.generator, agent.walk, agent.rng),
        "prepared": agent._prepared,
        "shift": agent._shift,
        "scale": agent._scale,
        "action_shift": agent._action_shift,
        "action_scale": agent._action_scale,
        "entropy_target": None if agent.entropy_target is None else vars(agent.entropy_target),
    }


def restore_agent(
    agent: Agent | Any, state: Mapping[str, Any], *, predict_only: bool = False, global_random: bool = False
) -> None:
    """Put back what :func:`agent_state` collected; running episodes are replayed.

    Args:
        agent: An agent of the same method, environment, constraint and settings.
        state: The saved state.
        predict_only: Leave out buffers and running episodes.
        global_random: Also put back the states of the process's global generators.

    Raises:
        InvalidStateError: If it belongs to another method, environment, constraint or other settings, or lacks
            entries; the agent is then as it was.
    """
    own = {
        "method": agent.method,
        "env": env_id(agent.envs.envs[0]),
    }
    for name, value in own.items():
        if name in state and state[name] != value:
            raise InvalidStateError(f"the saved run has {name} {state[name]!r}, this one {value!r}")
    # The same method's state has the same entries; the target entropy's are there once learning has begun.
    complete = agent.state_dict(buffers=state.get("buffer") is not None)
    _refuse_missing(state, complete | {"entropy_target": EntropyTarget.__dataclass_fields__})
    if state.get("constraint_fingerprint") != agent.constraint_fingerprint:
        shown = state.get("constraint")
        same = " (printed alike, but with other numbers or functions)" if shown == repr(agent.constraint) else ""
        raise InvalidStateError(
            f"the saved run has the constraint {shown}, this one {agent.constraint!r}{same}; give the constraint of "
            "that run, or begin a new one"
        )
    saved, mine = config_to_json(config_from_json(state["config"])), config_to_json(agent.config)
    differing = [name for name in mine if mine[name] != saved[name] and name != "device"]
    if differing:
        shown = ", ".join(f"{name}={saved[name]!r}" for name in differing)
        raise InvalidStateError(f"the saved run had {shown}; give the same settings to continue it")
    agent.core.load_state_dict(state["core"])
    agent.predict_only, agent.envs.training = predict_only, not predict_only
    if not predict_only:
        if state["buffer"] is not None:
            agent.buffer.load_state_dict(state["buffer"])
        agent.envs.load_state_dict(state["envs"])
        agent.preferences.load_state_dict(state["preferences"])
    agent.counters.load_state_dict(state["counters"])
    agent.num_steps, agent.num_updates = int(state["steps"]), int(state["updates"])
    agent.lowest_reward = float(state["lowest_reward"])
    agent._prepared = bool(state["prepared"])
    agent._shift, agent._scale = state["shift"].copy(), state["scale"].copy()
    agent._action_shift, agent._action_scale = state["action_shift"].copy(), state["action_scale"].copy()
    agent._set_rescaling()
    target = state["entropy_target"]
    agent.entropy_target = None if target is None else EntropyTarget(**target)
    if state["buffer"] is None and agent.num_steps and not predict_only:
        warnings.warn("this state has no replay buffer: it predicts, but learning starts afresh", stacklevel=2)
    random = state["random"]
    if torch.device(state["device"]).type != agent.device.type:
        # A generator's state belongs to its kind of device: the run goes on with other draws.
        _, *rest = random["generators"]
        random = random | {"generators": [agent.generator.get_state(), *rest]}
    if not global_random:
        # A script that loads a policy keeps its own random numbers.
        random = random_state() | {"generators": random["generators"]}
    # Last, because building and replaying may draw.
    restore_random_state(random, agent.generator, agent.walk, agent.rng)


def _refuse_missing(state: Mapping[str, Any], own: Mapping[str, Any], above: str = "") -> None:
    """Refuse a state that lacks entries which the agent's own has, at any depth."""
    for name, value in own.items():
        if name not in state:
            raise InvalidStateError(
                f"the saved run lacks {above + name!r}, as one does that another version of octavo-aram saved, and "
                "cannot be loaded; train anew"
            )
        if isinstance(value, Mapping) and isinstance(state[name], Mapping):
            _refuse_missing(state[name], value, f"{above}{name}.")

"""Peers that correct every infeasible action: by projection in front of the environment, by a layer, by Frank-Wolfe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_aram.abilities import can_project, has_interior
from octavo_aram.agent import Agent
from octavo_aram.choice import Choice
from octavo_aram.config import ARAMConfig
from octavo_aram.soft import SoftActorCritic
from octavo_aram.td3 import TwinDelayed

__all__ = ["BASELINES", "Baseline", "BaselineAgent"]


@dataclass(frozen=True)
class Baseline:
    """What sets a peer apart.

    Args:
        label: Name for tables.
        about: One line.
        deterministic: TD3 instead of soft actor-critic.
        stores_executed: The buffer and the critic hold the corrected action instead of the proposal.
        penalised: The actor's loss has ``violation_weight`` times the mean violation of its output.
        layer: Differentiable correction behind the policy, by its name in :mod:`octavo_aram.corrections`; projection in
            front of the environment if None.
        frank_wolfe: The actor is regressed to Frank-Wolfe steps.
        multiplier: The weight of the violation is a multiplier that grows while violations last.
    """

    label: str
    about: str
    deterministic: bool = False
    stores_executed: bool = False
    penalised: bool = False
    layer: str | None = None
    frank_wolfe: bool = False
    multiplier: bool = False


BASELINES: Mapping[str, Baseline] = {
    "spre": Baseline("SPre", "SAC; projection is part of the environment"),
    "spre+": Baseline("SPre+", "SPre with a violation penalty in the actor's loss", penalised=True),
    "spro": Baseline("SPro", "SAC; the critic learns projected actions", stores_executed=True),
    "spro+": Baseline("SPro+", "SPro with a violation penalty", stores_executed=True, penalised=True),
    "dpre": Baseline("DPre", "TD3; projection is part of the environment", deterministic=True),
    "dpre+": Baseline("DPre+", "DPre with a violation penalty", deterministic=True, penalised=True),
    "dpro": Baseline("DPro", "TD3; the critic learns projected actions", deterministic=True, stores_executed=True),
    "dpro+": Baseline(
        "DPro+", "DPro with a violation penalty", deterministic=True, stores_executed=True, penalised=True
    ),
    "alpha": Baseline("Alpha", "SAC behind the alpha-projection toward an interior point", layer="alpha"),
    "radial": Baseline("Radial", "SAC behind a smooth radial squash into the set", layer="radial"),
    "optlayer": Baseline("OptLayer", "TD3 behind a differentiable projection", deterministic=True, layer="optlayer"),
    "nfwpo": Baseline(
        "NFWPO", "actor regressed to Frank-Wolfe steps", deterministic=True, stores_executed=True, frank_wolfe=True
    ),
    "lagrangian": Baseline(
        "Lagrangian", "SPre whose violation weight is a multiplier", penalised=True, multiplier=True
    ),
}
"""Peers by the name that the command line takes.

Source: sections 2 and 5 of the paper; SPre, SPro, DPre, DPro and OptLayer as in the benchmark of action-constrained
reinforcement learning (arXiv 2304.08743).
"""

# Layers without a quadratic program.
_RAY_LAYERS = {"alpha", "radial"}


class BaselineAgent(Agent):
    """A peer method, for the same loop, buffers, networks and evaluation as ARAM.

    Args:
        env: A Gymnasium environment with a finite Box of actions, several of one kind, or a ``SyncVectorEnv``.
        constraint: The feasible set in normalised actions, or the name of a known one.
        config: Settings; the defaults if None.
        method: A name of ``BASELINES``.

    Raises:
        InvalidValueError: If there is no such method, or the constraint does not fit the environment.
        InvalidTypeError: If the method projects and the constraint cannot, or needs a convex set and it is none.
    """

    def __init__(self, env: Any, constraint: Any, config: ARAMConfig | None = None, *, method: str) -> None:
        if method not in BASELINES:
            raise InvalidValueError(f"unknown method {method!r}; give aram or one of {', '.join(BASELINES)}")
        self.method, self.spec = method, BASELINES[method]
        self.multiplier = 0.0
        super().__init__(env, constraint, config)

    @property
    def _reads_raw(self) -> bool:
        spec = self.spec
        return spec.penalised or spec.layer is not None or spec.frank_wolfe

    def _repair(self, obs: np.ndarray | None) -> str:
        spec, constraint = self.spec, self.constraint
        if (spec.layer is not None or spec.frank_wolfe) and not constraint.convex:
            raise InvalidTypeError(
                f"{spec.label} is defined for convex sets, and {constraint!r} is not known to be one; take aram, or a "
                "method that only projects, such as spre+"
            )
        if spec.layer in _RAY_LAYERS:
            # Also raises where the set is empty at the start.
            if not has_interior(constraint, obs):
                raise InvalidTypeError(
                    f"{spec.label} starts from an interior point, which {constraint!r} does not know"
                )
            return "project" if can_project(constraint, obs) else "interior"
        if not can_project(constraint, obs):
            raise InvalidTypeError(
                f"{spec.label} projects infeasible actions, and {constraint!r} has no projection; give one with "
                "Oracle(fn, project=...), or train aram with ARAMConfig(fallback='interior') and Oracle(fn, "
                "interior=...)"
            )
        has_interior(constraint, obs)
        return "project"

    def _make_core(self) -> SoftActorCritic | TwinDelayed:
        spec = self.spec
        hooks: dict[str, Any] = {
            "actor_map": None if spec.layer is None else self._correct,
            "penalty": self._penalty if spec.penalised else None,
        }
        sizes = (self.envs.observation_dim, self.envs.action_dim)
        common: dict[str, Any] = {"device": self.device, "generator": self.generator}
        if spec.deterministic:
            target = self._frank_wolfe if spec.frank_wolfe else None
            return TwinDelayed(*sizes, self.config, **common, **hooks, actor_target=target)
        return SoftActorCritic(*sizes, 1, self.config, **common, **hooks)

    def _states(self, obs: Tensor) -> Tensor | None:
        return obs if self.constraint.needs_obs else None

    def _penalty(self, obs: Tensor, proposals: Tensor) -> Tensor:
        violation = self.constraint.violation(self._states(obs), proposals).mean()
        if not self.spec.multiplier:
            return violation * self.config.violation_weight
        self.multiplier = max(0.0, self.multiplier + self.config.multiplier_rate * float(violation.detach()))
        return violation * self.multiplier

    def _correct(self, obs: Tensor, proposals: Tensor) -> Tensor:
        from octavo_aram.corrections import CORRECTIONS

        if self.spec.layer not in _RAY_LAYERS:
            self._count_update_projections(obs, proposals)
        return CORRECTIONS[self.spec.layer or ""](self.constraint, self._states(obs), proposals)

    def _frank_wolfe(self, obs: Tensor, proposals: Tensor, gradient: Callable[[Tensor], Tensor]) -> Tensor:
        from octavo_aram.corrections import nfwpo_target

        self._count_update_projections(obs, proposals)
        states = self._states(obs)
        with torch.no_grad():
            reference = self.constraint.project(states, proposals)
        slope = gradient(reference)
        with torch.no_grad():
            return nfwpo_target(self.constraint, states, reference, slope, beta=self.config.frank_wolfe_rate)

    def _count_update_projections(self, obs: Tensor, proposals: Tensor) -> None:
        inside = self.constraint.contains(self._states(obs), proposals.detach())
        self.counters.training.update_projections += int(len(proposals) - inside.sum())

    def _choose(self, obs: np.ndarray, preference: np.ndarray | None, *, uniform: bool) -> Choice:
        return self._corrected(obs, self.proposals(obs, preference, 1, uniform=uniform)[:, 0])

    def _corrected(self, obs: np.ndarray, proposals: np.ndarray, preference: np.ndarray | None = None) -> Choice:
        if self.spec.layer is None:
            choice = super()._corrected(obs, proposals, preference)
            choice.stored = choice.executed if self.spec.stores_executed else proposals
            return choice
        from octavo_aram.corrections import CORRECTIONS

        where = self._constraint_obs(obs)
        inside = np.asarray(self.constraint.contains(where, proposals), bool)
        with self.counters.timed("project"), torch.no_grad():
            states = None if where is None else torch.from_numpy(where)
            layer = CORRECTIONS[self.spec.layer]
            executed = layer(self.constraint, states, torch.from_numpy(proposals)).numpy(force=True)
        # A layer's output can miss the set by rounding; the executed action must not.
        inside_after = np.asarray(self.constraint.contains(where, executed), bool)
        executed = self._project(obs, executed, inside_after)
        outside = np.flatnonzero(~inside)
        projections = int((~inside_after).sum()) if self.spec.layer in _RAY_LAYERS else len(outside)
        return Choice(
            executed,
            executed,
            inside,
            np.ones(len(obs), int),
            inside,
            projections,
            proposals[outside],
            outside,
        )

    def state_dict(self, *, buffers: bool = True) -> dict[str, Any]:
        """Return all that a resumed run needs.

        Args:
            buffers: Include the replay buffer.

        Returns:
            The state, with the multiplier.
        """
        return super().state_dict(buffers=buffers) | {"multiplier": self.multiplier}

    def load_state_dict(
        self, state: Mapping[str, Any], *, predict_only: bool = False, global_random: bool = False
    ) -> None:
        """Put back what :meth:`state_dict` returned.

        Args:
            state: The saved state.
            predict_only: See :meth:`octavo_aram.agent.Agent.load_state_dict`.
            global_random: As there.
        """
        super().load_state_dict(state, predict_only=predict_only, global_random=global_random)
        self.multiplier = float(state["multiplier"])

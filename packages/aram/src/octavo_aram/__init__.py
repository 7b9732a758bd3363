"""Action-constrained reinforcement learning without violations: acceptance-rejection and augmented MDPs.

Wei Hung, Shao-Hua Sun, Ping-Chun Hsieh, "Efficient Action-Constrained Reinforcement Learning via Acceptance-Rejection
Method and Augmented MDPs", ICLR 2025, arXiv 2503.12932.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from octavo_aram.envs.registration import register_envs

if TYPE_CHECKING:
    from octavo_aram.action_range import ActionRange, refuse_normalized_observations
    from octavo_aram.agent import Agent
    from octavo_aram.arm import ArmInfo, LowAcceptanceWarning, arm_sample, hit_and_run
    from octavo_aram.audit import ExecutedActionAudit, ExecutedViolationError
    from octavo_aram.config import ARAMConfig
    from octavo_aram.constraints import (
        Box,
        Constraint,
        Ellipsoid,
        IntegerAllocation,
        Intersection,
        L2Ball,
        LinearInequality,
        Oracle,
        Orthoplex,
        PositivePower,
        SumEquality,
        Union,
        VolumeEstimate,
        count_qp,
    )
    from octavo_aram.corrections import (
        alpha_projection,
        linear_maximiser,
        nfwpo_target,
        opt_layer,
        radial_squash,
        violation_penalty,
    )
    from octavo_aram.entropy import EntropyTarget, feasible_entropy
    from octavo_aram.envs import BikeSharingEnv, NSFnetEnv, RewardMap, Routing, env_defaults, nsfnet_constraint_matrix
    from octavo_aram.equivalence import EquivalenceWarning, equivalence_holds, required_kappa
    from octavo_aram.evaluation import Evaluation, evaluate
    from octavo_aram.learner import ARAM
    from octavo_aram.loading import constraint_from_mapping, load_constraint
    from octavo_aram.methods import METHODS, make_agent
    from octavo_aram.registry import CONSTRAINTS, constraint_ids, make_constraint
    from octavo_aram.sb3 import FeasiblePredictor, valid_rate_callback, wrap_predict
    from octavo_aram.tabular import TabularMDP, solve_augmented, solve_constrained
    from octavo_aram.training import RunSettings, TrainingResult, load_run, train
    from octavo_aram.wrappers import ActionConstraintWrapper, AutoMDPWrapper

__version__ = "0.1.0"

__all__ = [
    "ARAM",
    "CONSTRAINTS",
    "METHODS",
    "ARAMConfig",
    "ActionConstraintWrapper",
    "ActionRange",
    "Agent",
    "ArmInfo",
    "AutoMDPWrapper",
    "BikeSharingEnv",
    "Box",
    "Constraint",
    "Ellipsoid",
    "EntropyTarget",
    "EquivalenceWarning",
    "Evaluation",
    "ExecutedActionAudit",
    "ExecutedViolationError",
    "FeasiblePredictor",
    "IntegerAllocation",
    "Intersection",
    "L2Ball",
    "LinearInequality",
    "LowAcceptanceWarning",
    "NSFnetEnv",
    "Oracle",
    "Orthoplex",
    "PositivePower",
    "RewardMap",
    "Routing",
    "RunSettings",
    "SumEquality",
    "TabularMDP",
    "TrainingResult",
    "Union",
    "VolumeEstimate",
    "alpha_projection",
    "arm_sample",
    "constraint_from_mapping",
    "constraint_ids",
    "count_qp",
    "env_defaults",
    "equivalence_holds",
    "evaluate",
    "feasible_entropy",
    "hit_and_run",
    "linear_maximiser",
    "load_constraint",
    "load_run",
    "make_agent",
    "make_constraint",
    "nfwpo_target",
    "nsfnet_constraint_matrix",
    "opt_layer",
    "radial_squash",
    "refuse_normalized_observations",
    "required_kappa",
    "solve_augmented",
    "solve_constrained",
    "train",
    "valid_rate_callback",
    "violation_penalty",
    "wrap_predict",
]

# Names are loaded when they are first used: the command line must answer without loading torch.
_HOMES = {
    "action_range": (
        "ActionRange",
        "refuse_normalized_observations",
    ),
    "arm": (
        "ArmInfo",
        "LowAcceptanceWarning",
        "arm_sample",
        "hit_and_run",
    ),
    "audit": (
        "ExecutedActionAudit",
        "ExecutedViolationError",
    ),
    "constraints": (
        "Box",
        "Constraint",
        "Ellipsoid",
        "IntegerAllocation",
        "Intersection",
        "L2Ball",
        "LinearInequality",
        "Oracle",
        "Orthoplex",
        "PositivePower",
        "SumEquality",
        "Union",
        "VolumeEstimate",
        "count_qp",
    ),
    "equivalence": (
        "EquivalenceWarning",
        "equivalence_holds",
        "required_kappa",
    ),
    "loading": (
        "constraint_from_mapping",
        "load_constraint",
    ),
    "registry": (
        "CONSTRAINTS",
        "constraint_ids",
        "make_constraint",
    ),
    "tabular": (
        "TabularMDP",
        "solve_augmented",
        "solve_constrained",
    ),
    "wrappers": (
        "ActionConstraintWrapper",
        "AutoMDPWrapper",
    ),
    "agent": ("Agent",),
    "config": ("ARAMConfig",),
    "entropy": ("EntropyTarget", "feasible_entropy"),
    "evaluation": ("Evaluation", "evaluate"),
    "learner": ("ARAM",),
    "methods": ("METHODS", "make_agent"),
    "corrections": (
        "alpha_projection",
        "linear_maximiser",
        "nfwpo_target",
        "opt_layer",
        "radial_squash",
        "violation_penalty",
    ),
    "envs": ("BikeSharingEnv", "NSFnetEnv", "RewardMap", "Routing", "env_defaults", "nsfnet_constraint_matrix"),
    "sb3": ("FeasiblePredictor", "valid_rate_callback", "wrap_predict"),
    "training": ("RunSettings", "TrainingResult", "load_run", "train"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


register_envs()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

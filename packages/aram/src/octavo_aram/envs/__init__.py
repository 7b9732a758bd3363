"""Environments of the benchmark that Gymnasium does not have, registered when the package is imported."""

from __future__ import annotations

from octavo_aram.envs.allocation import nearest_integer_allocation
from octavo_aram.envs.bike_sharing import BikeSharingEnv
from octavo_aram.envs.defaults import RewardMap, env_defaults
from octavo_aram.envs.nsfnet import NSFnetEnv
from octavo_aram.envs.registration import register_envs
from octavo_aram.envs.topology import Routing, link_constraints, nsfnet_constraint_matrix

__all__ = [
    "BikeSharingEnv",
    "NSFnetEnv",
    "RewardMap",
    "Routing",
    "env_defaults",
    "link_constraints",
    "nearest_integer_allocation",
    "nsfnet_constraint_matrix",
    "register_envs",
]

"""Gymnasium ids of the environments, without importing what only some of them need."""

from __future__ import annotations

from typing import Any

import gymnasium

__all__ = ["register_envs"]

_NAMESPACE = "octavo_aram"
_BIKES, _NETWORK = "octavo_aram.envs.bike_sharing:BikeSharingEnv", "octavo_aram.envs.nsfnet:NSFnetEnv"
_ENVIRONMENTS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "BSS3z-v0": (_BIKES, 100, {"zones": 3}),
    "BSS5z-v0": (_BIKES, 100, {"zones": 5}),
    "NSFnetV2-v0": (_NETWORK, 1000, {"version": "V2"}),
    "NSFnetV3-v0": (_NETWORK, 1000, {"version": "V3"}),
    "NSFnetV2Fluid-v0": (_NETWORK, 1000, {"version": "V2", "simulator": "fluid"}),
    "NSFnetV3Fluid-v0": (_NETWORK, 1000, {"version": "V3", "simulator": "fluid"}),
    "HopperVel-v0": ("octavo_aram.envs.hopper_vel:HopperVelEnv", 1000, {}),
}


def register_envs() -> None:
    """Register the environments with Gymnasium; those that are registered already stay as they are.

    Ids: ``octavo_aram/BSS3z-v0``, ``octavo_aram/BSS5z-v0``, ``octavo_aram/NSFnetV2-v0``, ``octavo_aram/NSFnetV3-v0``,
    ``octavo_aram/NSFnetV2Fluid-v0``, ``octavo_aram/NSFnetV3Fluid-v0`` and ``octavo_aram/HopperVel-v0``.
    """
    for name, (entry_point, steps, kwargs) in _ENVIRONMENTS.items():
        if f"{_NAMESPACE}/{name}" not in gymnasium.registry:
            gymnasium.register(
                f"{_NAMESPACE}/{name}", entry_point=entry_point, max_episode_steps=steps, kwargs=dict(kwargs)
            )

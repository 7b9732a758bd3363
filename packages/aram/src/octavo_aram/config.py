"""Settings of the learners: one frozen dataclass, with the paper's values as a preset."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_core.errors import InvalidTypeError, InvalidValueError

from octavo_aram.setting_checks import check_settings, plain_value

__all__ = ["PAPER_STEPS", "ARAMConfig", "config_from_json", "config_to_json"]

PAPER_STEPS = 1_500_000
"""Environment steps of a published run, which :meth:`ARAMConfig.paper` is for."""


@dataclass(frozen=True)
class ARAMConfig:
    """Settings of ARAM and of every method it is compared with.

    The defaults learn a task with a handful of actions in some thousand steps on one CPU core; :meth:`paper` gives the
    published values, for millions of steps. Scalars, arrays and tensors of NumPy and torch are kept as Python numbers
    and tuples.

    Args:
        discount: Discount factor gamma in [0, 1).
        polyak: Share tau in (0, 1] of the critic that the target critic takes over after every update.
        learning_rate: Step size of Adam for critics, policy and temperature.
        batch_size: Transitions of an update, B.
        hidden: Widths of the hidden layers of policy and critics.
        start_steps: Environment steps at the start whose proposals are uniform in the box, without updates.
        updates_per_step: Updates after each environment step.
        buffer_capacity: Real transitions kept.
        augmented_capacity: Rejected proposals kept; None for as many as real transitions.
        max_tries: Draws T of the acceptance-rejection method before it falls back to a projection.
        block: Candidates of its first block; later blocks double.
        fallback: What follows T failures: ``"project"``, ``"interior"``, ``"hit_and_run"``, or ``"raise"``, for sets
            that know nothing but membership.
        penalty: Penalty kappa >= 0 of an infeasible proposal.
        preference: Weights (reward, penalty) on the simplex, or ``"dirichlet"`` to draw them for every episode and
            every update (the multi-objective mode of the paper).
        preference_schedule: Pairs (step, weights) between which the weights run linearly; empty for none. Not beside
            ``preference="dirichlet"``.
        augmented_share: Share eta of a batch that comes from the rejected proposals.
        augmented_decay: Factor of eta after every ``augmented_decay_every`` steps.
        augmented_decay_every: See ``augmented_decay``.
        temperature: Entropy weight alpha: ``"auto"``, or a fixed value.
        initial_temperature: Where ``"auto"`` starts.
        target_entropy: What ``"auto"`` steers to: ``"volume"`` (see :func:`octavo_aram.entropy.feasible_entropy`),
            ``"dimension"`` for the usual minus the number of actions, or a number in nats.
        actions_per_state: Draws n_a of the policy loss at each state.
        num_preferences: Size n_W of the set of weights in the policy loss; 1 is the current weights alone.
        num_snapshots: Former critics n_Q kept for the policy loss; 0 for none.
        snapshot_every: Updates f between two snapshots.
        snapshot_start: Updates before the first snapshot.
        reward_scale: The learner sees reward / scale + offset; None for what suits the environment.
        reward_offset: See ``reward_scale``.
        observation_scaling: What the networks see: ``"warmup"`` shifts and scales by mean and deviation of the warm-up,
            at most 20-fold, which stay as they are from then on; ``"auto"`` divides by the environment's
            ``observation_scale`` where it has one and does as ``"warmup"`` elsewhere; ``"none"``. Constraints always
            read what the environment says.
        action_scaling: What the critics see of actions: ``"warmup"`` shifts and scales by mean and deviation of the
            actions that the warm-up stored (not of rejected ones), at most 20-fold, so that a small set fills their
            input as far as that allows; ``"none"``.
        store_proposal: After T failures store the infeasible proposal, with the penalty, beside the outcome of the
            executed action, as the reference code does; otherwise the executed action itself is stored.
        use_arm: Ablation: False draws once instead of up to T times.
        use_automdp: Ablation: False forgets rejected proposals.
        dual_buffer: Ablation: False keeps real and rejected entries in one buffer, sampled uniformly.
        violation_weight: Weight of the violation in the actor loss of the methods whose name ends in ``+``.
        frank_wolfe_rate: Rate beta of NFWPO.
        multiplier_rate: Step size of the multiplier of the Lagrangian method.
        exploration_noise: Deviation of the Gaussian noise that deterministic policies explore with.
        target_noise: Deviation of the noise on the target action of TD3.
        target_noise_clip: Largest absolute value of that noise.
        policy_delay: Critic updates for each actor update of TD3.
        seed: Seed of networks, draws, batches and episodes.
        device: Device of the networks, see :func:`octavo_core.device.resolve_device`.
        dtype: ``"float32"`` or ``"float64"``.

    Raises:
        InvalidValueError: If a value is out of range.
        InvalidTypeError: If a value has the wrong type.

    Source: sections 4 and 5 of the paper; the defaults of the temperature's target and of the scaling are beyond the
    paper.
    """

    discount: float | int = 0.99
    polyak: float | int = 0.005
    learning_rate: float | int = 9e-4
    batch_size: int = 128
    hidden: Sequence[int] = (64, 64)
    start_steps: int = 500
    updates_per_step: int = 1
    buffer_capacity: int = 1_000_000
    augmented_capacity: int | None = None
    max_tries: int = 100
    block: int = 16
    fallback: str = "project"
    penalty: float | int = 1.0
    preference: Sequence[float | int] | str = (0.5, 0.5)
    preference_schedule: Sequence[Any] = ()
    augmented_share: float | int = 0.2
    augmented_decay: float | int = 0.99
    augmented_decay_every: int = 10_000
    temperature: float | int | str = "auto"
    initial_temperature: float | int = 0.2
    target_entropy: float | int | str = "volume"
    actions_per_state: int = 1
    num_preferences: int = 1
    num_snapshots: int = 0
    snapshot_every: int = 1000
    snapshot_start: int = 20_000
    reward_scale: float | int | None = None
    reward_offset: float | int | None = None
    observation_scaling: str = "auto"
    action_scaling: str = "warmup"
    store_proposal: bool = False
    use_arm: bool = True
    use_automdp: bool = True
    dual_buffer: bool = True
    violation_weight: float | int = 10.0
    frank_wolfe_rate: float | int = 0.01
    multiplier_rate: float | int = 0.01
    exploration_noise: float | int = 0.1
    target_noise: float | int = 0.2
    target_noise_clip: float | int = 0.5
    policy_delay: int = 2
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float32"

    def __new__(cls, *args: Any, **changes: Any) -> ARAMConfig:
        """Refuse unknown settings before the generated constructor does so without naming the known ones."""
        _refuse_unknown(changes)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            object.__setattr__(self, entry.name, plain_value(getattr(self, entry.name)))
        check_settings({entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)})
        if self.batch_size > self.buffer_capacity:
            raise InvalidValueError(
                f"batch_size={self.batch_size} exceeds buffer_capacity={self.buffer_capacity}: no update would ever "
                "take place; give a larger buffer or smaller batches"
            )
        if isinstance(self.preference, str) and self.preference_schedule:
            raise InvalidValueError(
                f"preference={self.preference!r} draws the weights, so that preference_schedule would have no effect; "
                "give one of the two"
            )

    @classmethod
    def paper(cls, **changes: Any) -> ARAMConfig:
        """Return the published settings: multi-objective, with snapshots, for runs of :data:`PAPER_STEPS` steps.

        Args:
            **changes: Values that differ.

        Returns:
            The settings.

        Source: defaults of the authors' code. Its 100 actions per state are left out: they are a remnant that costs a
        hundredfold and changes the variance of the policy loss alone.
        """
        values: dict[str, Any] = {
            "learning_rate": 3e-4,
            "batch_size": 1024,
            "hidden": (256, 256),
            "start_steps": 10_000,
            "penalty": 0.2,
            "preference": "dirichlet",
            "temperature": 0.2,
            "num_preferences": 4,
            "num_snapshots": 4,
            "observation_scaling": "none",
            "action_scaling": "none",
            "store_proposal": True,
        }
        return cls(**(values | changes))

    def replace(self, **changes: Any) -> ARAMConfig:
        """Return a copy with other values.

        Args:
            **changes: Fields and their new values.

        Returns:
            The copy.

        Raises:
            InvalidValueError: If there is no such field, or a value is out of range.
        """
        _refuse_unknown(changes)
        plain = {name: plain_value(value) for name, value in changes.items()}
        check_settings(plain)
        return dataclasses.replace(self, **plain)


def _refuse_unknown(changes: Mapping[str, Any]) -> None:
    known = {entry.name for entry in dataclasses.fields(ARAMConfig)}
    if unknown := sorted(set(changes) - known):
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InvalidValueError(f"no setting {', '.join(unknown)}; {hint}known are {', '.join(sorted(known))}")


def config_to_json(config: ARAMConfig) -> dict[str, Any]:
    """Return the settings as JSON-ready fields.

    Args:
        config: The settings.

    Returns:
        Values by field name, with lists for sequences.
    """

    def listed(value: Any) -> Any:
        return [listed(item) for item in value] if isinstance(value, tuple) else value

    return {entry.name: listed(getattr(config, entry.name)) for entry in dataclasses.fields(config)}


def config_from_json(values: Any) -> ARAMConfig:
    """Read settings that :func:`config_to_json` wrote, or that a user did.

    Args:
        values: Values by field name; fields that are missing keep their defaults.

    Returns:
        The settings.

    Raises:
        InvalidValueError: If there is no such field, or a value is out of range.
        InvalidTypeError: If a value has the wrong type.
    """
    if not isinstance(values, Mapping):
        raise InvalidTypeError(f"settings are given by name, not as {type(values).__name__}; write {{name: value}}")
    return ARAMConfig().replace(**values)

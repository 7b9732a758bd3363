from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from octavo_aram.action_range import ActionRange, refuse_normalized_observations
from octavo_aram.audit import ExecutedActionAudit, ExecutedViolationError
from octavo_aram.constraints import L2Ball, LinearInequality, Oracle, Orthoplex, PositivePower, SumEquality
from octavo_aram.equivalence import EquivalenceWarning
from octavo_aram.wrappers import ActionConstraintWrapper, AutoMDPWrapper


class Cart(gym.Env):
    """A point pushed along two axes, with a lopsided action range and random starts."""

    def __init__(self, low: Any = (-1.0, -1.0), high: Any = (1.0, 1.0), dtype: Any = np.float32) -> None:
        self.action_space = gym.spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)
        self.observation_space = gym.spaces.Box(-100.0, 100.0, (4,), np.float64)
        self.state = np.zeros(4)
        self.received: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-1, 1, 4)
        return self.state.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.received.append(action)
        self.state = np.clip(
            self.state + 0.1 * np.concatenate([action, action]) + 0.01 * self.np_random.normal(size=4), -9, 9
        )
        return self.state.copy(), float(-np.abs(self.state).sum()), bool(np.abs(self.state).max() > 5), False, {}


DISC = L2Ball(0.05, action_dim=2)
INSIDE, OUTSIDE = np.array([0.1, 0.1], np.float32), np.array([0.9, 0.9], np.float32)


def quiet_check(env: gym.Env) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Gymnasium's advice about unbounded observations, wrapped environments and the range of actions.
        warnings.filterwarnings("ignore", category=UserWarning, module="gymnasium")
        warnings.filterwarnings("ignore", category=EquivalenceWarning)
        check_env(env, skip_render_check=True)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: ActionConstraintWrapper(env, DISC, "project"),
        lambda env: ActionConstraintWrapper(env, DISC, "reject"),
        lambda env: AutoMDPWrapper(env, DISC, 1.0, (0.5, 0.5)),
        lambda env: AutoMDPWrapper(env, DISC, 1.0, "dirichlet", append_preference=True),
        lambda env: AutoMDPWrapper(ExecutedActionAudit(env, DISC), DISC, 1.0, (0.5, 0.5)),
        lambda env: ExecutedActionAudit(ActionConstraintWrapper(env, DISC, "project"), DISC, raise_on_violation=False),
    ],
)
def test_gymnasium_accepts_every_wrapper(wrap: Any) -> None:
    quiet_check(wrap(Cart()))


@pytest.mark.parametrize("name", ["Reacher-v5", "Hopper-v5", "Humanoid-v5"])
def test_gymnasium_accepts_wrapped_mujoco_environments(name: str) -> None:
    pytest.importorskip("mujoco")
    from octavo_aram.registry import make_constraint

    env = gym.make(name)
    constraint = make_constraint({"Reacher-v5": "Re+L2", "Hopper-v5": "H+M10", "Humanoid-v5": "Hum+O30"}[name], env)
    quiet_check(AutoMDPWrapper(ExecutedActionAudit(env, constraint), constraint, 1.0, (0.5, 0.5)))


def test_an_infeasible_action_leaves_the_simulator_bit_identical() -> None:
    pytest.importorskip("mujoco")
    env = gym.make("Reacher-v5")
    wrapped = AutoMDPWrapper(env, DISC, 0.2)
    obs, _ = wrapped.reset(seed=3)
    for _ in range(3):
        obs, *_ = wrapped.step(INSIDE)
    base: Any = env.unwrapped
    before = (base.data.qpos.tobytes(), base.data.qvel.tobytes(), base.data.time, base.np_random.bit_generator.state)
    elapsed = env._elapsed_steps  # ty: ignore[unresolved-attribute]
    for count in (1, 2, 3):
        looped, reward, terminated, truncated, info = wrapped.step(OUTSIDE)
        assert looped.tobytes() == obs.tobytes()
        assert (reward.tolist(), terminated, truncated) == ([0.0, -0.2], False, False)
        assert (info["feasible"], info["self_loop"], info["fallback"]) == (False, count, False)
        assert info["violation"] == pytest.approx(2 * 0.81 - 0.05, abs=1e-6)
    assert env._elapsed_steps == elapsed == 3  # ty: ignore[unresolved-attribute]
    after = (base.data.qpos.tobytes(), base.data.qvel.tobytes(), base.data.time, base.np_random.bit_generator.state)
    assert after == before
    twin = gym.make("Reacher-v5")
    twin.reset(seed=3)
    for _ in range(3):
        twin.step(INSIDE)
    expected = twin.step(INSIDE)
    obs, reward, *_ = wrapped.step(INSIDE)
    assert obs.tobytes() == expected[0].tobytes()
    assert reward.tolist() == [expected[1], 0.0]


def test_after_the_cap_the_projection_is_executed() -> None:
    base = Cart()
    wrapped = AutoMDPWrapper(base, DISC, 0.5, (0.75, 0.25), reward_scale=2.0, reward_offset=30.0, max_self_loops=3)
    wrapped.reset(seed=0)
    for _ in range(3):
        looped, reward, *_ = wrapped.step(OUTSIDE)
        assert reward == -0.125
        looped[:] = 7  # the caller may overwrite what it was given
    assert base.received == []
    _, reward, _, _, info = wrapped.step(OUTSIDE)
    assert (info["fallback"], info["n_qp"], info["feasible"], info["self_loop"]) == (True, 1, False, 0)
    np.testing.assert_allclose(base.received[0], np.full(2, np.sqrt(0.025)), atol=1e-6)
    learned = -np.abs(base.state).sum() / 2 + 30
    assert reward == pytest.approx(0.75 * learned + 0.25 * -0.5)
    assert info["reward_vector"].tolist() == pytest.approx([learned, -0.5])
    _, _, _, _, info = wrapped.step(OUTSIDE)
    assert info["self_loop"] == 1, "the count starts again"
    _, reward, _, _, info = wrapped.step(INSIDE)
    assert (info["self_loop"], info["feasible"]) == (0, True)
    assert info["executed_action"].tolist() == INSIDE.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lopsided_ranges_are_mapped_and_the_audit_agrees(dtype: Any) -> None:
    base = Cart((-0.4, 2.0), (0.1, 10.0), dtype)
    constraint = Orthoplex([0, 1], 0.02)
    audit = ExecutedActionAudit(base, constraint, tol=1e-6)
    wrapped = AutoMDPWrapper(audit, constraint, 1.0, (0.5, 0.5), max_self_loops=1, reward_offset=100)
    rng = np.random.default_rng(0)
    wrapped.reset(seed=1)
    for _ in range(300):
        _, _, terminated, _, info = wrapped.step(rng.uniform(-1, 1, 2).astype(np.float32))
        if info["executed_action"] is not None:
            native = base.received[-1]
            assert native.dtype == dtype
            assert base.action_space.contains(native)
            np.testing.assert_allclose((native - [-0.15, 6.0]) / [0.25, 4.0], info["executed_action"], atol=1e-6)
        if terminated:
            wrapped.reset()
    assert audit.executed > 100
    assert (audit.violations, audit.worst) == (0, 0.0)


def test_the_audit_counts_and_refuses() -> None:
    audit = ExecutedActionAudit(Cart(), DISC)
    audit.reset(seed=0)
    audit.step(INSIDE)
    with pytest.raises(ExecutedViolationError, match="not executed"):
        audit.step(OUTSIDE)
    assert (audit.executed, audit.violations) == (1, 1)
    lenient = ExecutedActionAudit(Cart(), DISC, raise_on_violation=False)
    lenient.reset(seed=0)
    lenient.step(OUTSIDE)
    assert (lenient.executed, lenient.violations) == (1, 1)
    assert lenient.worst == pytest.approx(1.57, abs=1e-6)


def test_modes_of_the_constraint_wrapper() -> None:
    for mode in ("error", "project", "reject"):
        base = Cart()
        wrapped = ActionConstraintWrapper(base, DISC, mode, max_self_loops=2)
        wrapped.reset(seed=0)
        _, _, _, _, info = wrapped.step(INSIDE)
        assert (info["feasible"], info["n_qp"], info["violation"]) == (True, 0, 0.0)
        assert len(base.received) == 1
        if mode == "error":
            with pytest.raises(ExecutedViolationError, match="mode='project'"):
                wrapped.step(OUTSIDE)
            assert len(base.received) == 1
        elif mode == "project":
            *_, info = wrapped.step(OUTSIDE)
            assert (info["feasible"], info["n_qp"], info["fallback"]) == (False, 1, False)
            assert DISC.contains(None, base.received[-1])
        else:
            for _ in range(2):
                _, reward, terminated, truncated, info = wrapped.step(OUTSIDE)
                assert (reward, terminated, truncated, info["n_qp"]) == (0.0, False, False, 0)
            *_, info = wrapped.step(OUTSIDE)
            assert info["fallback"]
            assert len(base.received) == 2
    with pytest.raises(ValueError, match="accepted: error, project, reject"):
        ActionConstraintWrapper(Cart(), DISC, "clip")


class VectorReward(gym.Wrapper):
    """Two rewards."""

    reward_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, np.array([reward, 1.0]), *rest


class LinearReward(gym.Wrapper):
    """Their sum, by the name of MO-Gymnasium's wrapper."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, reward.sum(), *rest


@pytest.mark.parametrize("below", [
    lambda: VectorReward(Cart()),
    lambda: gym.wrappers.TimeLimit(VectorReward(Cart()), 9),
    lambda: LinearReward(VectorReward(Cart())),
    Cart,
])  # fmt: skip
def test_a_rejected_action_has_a_reward_of_the_environments_shape(below: Any) -> None:
    env = ActionConstraintWrapper(below(), DISC, "reject")
    env.reset(seed=0)
    taken, rejected = env.step(INSIDE)[1], env.step(OUTSIDE)[1]
    assert np.asarray(rejected).dtype == np.asarray(taken).dtype
    assert np.array_equal(rejected, 0.0 * np.asarray(taken))


def test_preferences_are_fixed_drawn_or_set() -> None:
    wrapped = AutoMDPWrapper(Cart(), DISC, 1.0, "dirichlet", append_preference=True, reward_offset=100)
    obs, info = wrapped.reset(seed=5)
    assert obs.shape == (6,)
    assert obs in wrapped.observation_space
    np.testing.assert_allclose(obs[4:], info["preference"])
    again, _ = wrapped.reset()
    assert not np.allclose(again[4:], obs[4:])
    same, _ = wrapped.reset(seed=5)
    np.testing.assert_array_equal(same, obs)
    set_obs, _ = wrapped.reset(options={"preference": (0.2, 0.8)})
    assert set_obs[4:].tolist() == [0.2, 0.8]
    looped, reward, *_ = wrapped.step(OUTSIDE)
    assert looped.tolist() == set_obs.tolist()
    assert reward == pytest.approx(-0.8)
    wrapped.set_preference([1, 0])
    assert wrapped.step(OUTSIDE)[1] == pytest.approx(-0.8), "the running episode keeps its preference"
    assert wrapped.reset()[0][4:].tolist() == [1.0, 0.0]


def test_multi_objective_wrappers_accept_the_vector_form() -> None:
    mo = pytest.importorskip("mo_gymnasium")
    wrapped = AutoMDPWrapper(gym.wrappers.TimeLimit(Cart(), 20), DISC, 0.3)
    assert wrapped.reward_space.shape == (2,)
    wrapped.reset(seed=0)
    for action in (INSIDE, OUTSIDE):
        _, reward, *_ = wrapped.step(action)
        assert isinstance(reward, np.ndarray)
        assert reward in wrapped.reward_space
    linear = mo.wrappers.LinearReward(wrapped, weight=np.array([0.5, 0.5]))
    linear.reset(seed=0)
    assert linear.step(OUTSIDE)[1] == pytest.approx(-0.15)
    recorded = mo.wrappers.MORecordEpisodeStatistics(AutoMDPWrapper(gym.wrappers.TimeLimit(Cart(), 5), DISC, 0.3))
    recorded.reset(seed=0)
    recorded.step(OUTSIDE)
    done = False
    while not done:
        _, _, _, done, info = recorded.step(INSIDE)
    assert info["episode"]["r"].shape == (2,)
    assert info["episode"]["r"][1] == pytest.approx(-0.3)
    vector = mo.wrappers.vector.MOSyncVectorEnv([lambda: AutoMDPWrapper(Cart(), DISC, 0.3)] * 3)
    vector.reset(seed=0)
    rewards = vector.step(np.stack([INSIDE, OUTSIDE, OUTSIDE]))[1]
    assert rewards.shape == (3, 2)
    assert rewards[:, 1].tolist() == pytest.approx([0.0, -0.3, -0.3])


def test_vector_environments_of_wrapped_ones() -> None:
    vector = gym.vector.SyncVectorEnv([lambda: AutoMDPWrapper(Cart(), DISC, 1.0, (0.5, 0.5), reward_offset=50)] * 3)
    vector.reset(seed=0)
    _, rewards, _, _, info = vector.step(np.stack([INSIDE, OUTSIDE, INSIDE]))
    assert info["feasible"].tolist() == [True, False, True]
    assert rewards[1] == -0.5


def test_rewards_below_the_bound_are_told_once() -> None:
    with pytest.warns(EquivalenceWarning, match="kappa > 90"):
        AutoMDPWrapper(Cart(), DISC, 1.0, (0.9, 0.1), reward_min=-10.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        safe = AutoMDPWrapper(Cart(), DISC, 0.2, (0.9, 0.1), reward_min=-40.0, reward_scale=40, reward_offset=1.0)
        safe.reset(seed=0)
        safe.step(INSIDE)
    wrapped = AutoMDPWrapper(Cart(), DISC, 0.2, (0.9, 0.1))
    wrapped.reset(seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            wrapped.step(INSIDE)
    assert [warning.category for warning in caught] == [EquivalenceWarning]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kappa": -1.0}, "kappa"),
        ({"kappa": float("nan")}, "kappa"),
        ({"preference": (0.5, 0.6)}, "simplex"),
        ({"preference": "random"}, "dirichlet"),
        ({"reward_scale": 0.0}, "scale"),
        ({"max_self_loops": 0}, "max_self_loops"),
        ({"append_preference": True}, "need a preference"),
        ({"vector": False}, "need a preference"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AutoMDPWrapper(Cart(), DISC, **options)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gym.spaces.Discrete(4), "discrete"),
        (gym.spaces.MultiDiscrete([2, 2]), "discrete"),
        (gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (2,))}), "composite"),
        (gym.spaces.Box(-np.inf, np.inf, (2,)), r"finite bounds .*env\.action_space"),
        (gym.spaces.Box(-1, np.inf, (2,)), "finite bounds"),
        (gym.spaces.Box(0, 255, (2,), np.uint8), "vector of real"),
        (gym.spaces.Box(-1, 1, (2, 2)), "vector"),
        (gym.spaces.Box(-1, 1, (3,)), "2 action components"),
    ],
)
@pytest.mark.parametrize("kind", [AutoMDPWrapper, ActionConstraintWrapper, ExecutedActionAudit])
def test_action_spaces_that_cannot_be_constrained_are_refused(kind: Any, space: gym.Space, message: str) -> None:
    env = Cart()
    env.action_space = space
    with pytest.raises((ValueError, TypeError), match=message):
        kind(env, DISC)


def test_constraints_that_do_not_fit_the_observation_are_refused() -> None:
    with pytest.raises(ValueError, match="entry 4"):
        AutoMDPWrapper(Cart(), Orthoplex([3, 4], 1.0))
    env = Cart()
    env.observation_space = gym.spaces.Dict({"state": env.observation_space})
    with pytest.raises(TypeError, match="constraint_obs"):
        AutoMDPWrapper(env, Orthoplex([2, 3], 1.0))


def test_dictionary_observations_with_an_extractor() -> None:
    class Nested(gym.ObservationWrapper):
        def __init__(self, env: gym.Env) -> None:
            super().__init__(env)
            self.observation_space = gym.spaces.Dict({"state": env.observation_space})

        def observation(self, observation: Any) -> Any:
            return {"state": observation}

    constraint = PositivePower([0, 1], 0.0)
    read = {"constraint_obs": lambda obs: obs["state"]}
    audit = ExecutedActionAudit(Nested(Cart()), constraint, **read)
    wrapped = ActionConstraintWrapper(audit, constraint, "project", **read)
    obs, _ = wrapped.reset(seed=0)
    for _ in range(10):
        *_, info = wrapped.step(np.array([0.5, -0.5]))
        assert (info["executed_action"] * np.sign(obs["state"][:2]) <= 1e-7).all()
        obs = copy.deepcopy(wrapped._obs)
    assert audit.violations == 0


def test_rescaled_observations_are_refused_where_the_constraint_reads_them() -> None:
    weighted = Orthoplex([0, 1], 1.0)
    normalized = gym.wrappers.NormalizeObservation(Cart())
    with pytest.raises(ValueError, match="NormalizeObservation changes the observations"):
        AutoMDPWrapper(gym.wrappers.TimeLimit(normalized, 10), weighted)
    AutoMDPWrapper(normalized, DISC)
    outside = gym.wrappers.NormalizeObservation(AutoMDPWrapper(Cart(), weighted, 1.0, (0.5, 0.5)))
    outside.reset(seed=0)


def test_sb3_normalisation_is_refused() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    weighted = Orthoplex([0, 1], 1.0)
    vector = sb3.common.vec_env.DummyVecEnv([Cart])
    normalized = sb3.common.vec_env.VecNormalize(vector)
    with pytest.raises(ValueError, match="VecNormalize"):
        refuse_normalized_observations(normalized, weighted)
    refuse_normalized_observations(sb3.common.vec_env.VecNormalize(vector, norm_obs=False), weighted)
    refuse_normalized_observations(normalized, DISC)


@pytest.mark.parametrize(
    ("action", "message"), [(np.array([np.nan, 0.0]), "NaN"), (np.zeros(3), "shape"), (np.zeros((1, 2)), "shape")]
)
def test_bad_actions_are_refused_and_nothing_is_executed(action: np.ndarray, message: str) -> None:
    base = Cart()
    wrapped = AutoMDPWrapper(base, DISC, 1.0, (0.5, 0.5))
    with pytest.raises(RuntimeError, match="reset"):
        wrapped.step(INSIDE)
    wrapped.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        wrapped.step(action)
    assert base.received == []


def test_actions_outside_the_box_are_infeasible() -> None:
    wide = LinearInequality([[1.0, 1.0]], [10.0])
    wrapped = AutoMDPWrapper(Cart((-2.0, -2.0), (2.0, 2.0)), wide, 1.0, (0.5, 0.5), reward_offset=50)
    wrapped.reset(seed=0)
    assert not wrapped.step(np.array([1.5, 0.0]))[4]["feasible"]
    assert wrapped.step(np.array([1.0, -1.0]))[4]["feasible"]


def test_an_oracle_without_projection_fails_clearly_at_the_cap() -> None:
    oracle = Oracle(lambda obs, act: (np.abs(act) < 0.2).all(1), action_dim=2)
    wrapped = AutoMDPWrapper(Cart(), oracle, 1.0, (0.5, 0.5), max_self_loops=1)
    wrapped.reset(seed=0)
    wrapped.step(OUTSIDE)
    with pytest.raises(TypeError, match="no projection"):
        wrapped.step(OUTSIDE)


def test_range_maps_both_ways() -> None:
    env = Cart((-0.4, 2.0), (0.1, 10.0))
    mapped = ActionRange.of(env)
    rng = np.random.default_rng(0)
    act = rng.uniform(-1, 1, (100, 2))
    np.testing.assert_allclose(mapped.from_env(mapped.to_env(act)), act, atol=1e-6)
    assert mapped.to_env(np.array([5.0, -5.0])).tolist() == [np.float32(0.1), 2.0]
    huge = ActionRange.of(Cart((-1.7e308, -1e308), (1.7e308, 1.7e308), np.float64))
    np.testing.assert_allclose(huge.from_env(huge.to_env(act)), act, atol=1e-12)
    plane = SumEquality(0.3, action_dim=2)
    _, seen = mapped.settle(plane, None, plane.project(None, act[0]), 1e-6)
    assert plane.contains(None, seen)


READS = Orthoplex([2, 3], 1.0)


class Mirrored(gym.Wrapper):
    """Entries of the observation in reverse order."""

    def reset(self, **options: Any) -> Any:
        obs, info = self.env.reset(**options)
        return obs[::-1].copy(), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        return obs[::-1].copy(), *rest


@pytest.mark.parametrize("wrap", [AutoMDPWrapper, ActionConstraintWrapper, ExecutedActionAudit])
def test_layers_that_change_observations_are_refused_or_told(wrap: Any) -> None:
    from gymnasium.wrappers import DelayObservation, FlattenObservation, FrameStackObservation, TransformObservation

    for stacked in (FlattenObservation(FrameStackObservation(Cart(), 2)), DelayObservation(Cart(), 1)):
        with pytest.raises(ValueError, match="earlier one"):
            wrap(stacked, READS)
        wrap(stacked, DISC)
    with pytest.warns(UserWarning, match="Mirrored may change"):
        wrap(Mirrored(Cart()), READS)
    doubled = TransformObservation(Cart(), lambda obs: 2 * obs, None)
    with pytest.warns(UserWarning, match="TransformObservation may change"):
        wrap(doubled, READS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrap(doubled, READS, constraint_obs=lambda obs: obs / 2)
        wrap(FlattenObservation(FrameStackObservation(Cart(), 2)), READS, constraint_obs=lambda obs: obs[-4:])
        wrap(FlattenObservation(Cart()), READS)
        wrap(LinearReward(Cart()), READS)
        wrap(gym.wrappers.TimeLimit(Cart(), 9), READS)
        wrap(Mirrored(Cart()), READS, constraint_obs=lambda obs: obs[::-1])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"kappa": "1"}, "kappa"),
        ({"kappa": None}, "kappa"),
        ({"kappa": -1}, "kappa"),
        ({"reward_scale": "a"}, "reward_scale"),
        ({"reward_scale": 0}, "reward_scale"),
        ({"max_self_loops": np.nan}, "max_self_loops"),
        ({"max_self_loops": "3"}, "max_self_loops"),
        ({"max_self_loops": 2.5}, "max_self_loops"),
        ({"reward_min": np.nan}, "reward_min"),
        ({"tol": np.nan}, "tol"),
        ({"tol": np.inf}, "tol"),
        ({"tol": -1e-6}, "tol"),
        ({"constraint": None}, "no constraint"),
    ],
)
def test_arguments_of_another_kind_are_refused(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        AutoMDPWrapper(Cart(), **{"constraint": DISC, "preference": (0.5, 0.5)} | arguments)


def test_constraints_by_name_and_actions_of_any_kind() -> None:
    import torch

    wrapped = AutoMDPWrapper(Cart(), "Re+L2", 1.0, (0.5, 0.5), reward_offset=100)
    wrapped.reset(seed=0)
    assert wrapped.constraint.action_dim == 2
    for action in ([0.1, 0.1], torch.tensor([0.1, 0.1], requires_grad=True)):
        assert wrapped.step(action)[4]["feasible"]
    for action in ([0.1, [0.1, 0.2]], np.array([0.1 + 1j, 0.0]), "up"):
        with pytest.raises(ValueError, match="action"):
            wrapped.step(action)


@pytest.mark.parametrize("wrap", [AutoMDPWrapper, ActionConstraintWrapper, ExecutedActionAudit])
def test_wrappers_are_pickled(wrap: Any) -> None:
    wrapped = wrap(Cart(), Orthoplex([0, 1], 1.0))
    wrapped.reset(seed=0)
    copied = pickle.loads(pickle.dumps(wrapped))  # noqa: S301
    action = np.zeros(2, np.float32)
    np.testing.assert_array_equal(copied.step(action)[0], wrapped.step(action)[0])


@pytest.mark.parametrize("wrap", [AutoMDPWrapper, ActionConstraintWrapper, ExecutedActionAudit])
def test_layers_that_change_actions_are_refused_or_told(wrap: Any) -> None:
    from gymnasium.wrappers import RepeatAction, RescaleAction, StickyAction, TransformAction

    for repeating in (StickyAction(Cart(), 0.5), RepeatAction(Cart(), 3)):
        with pytest.raises(ValueError, match="repeats an action"):
            wrap(gym.wrappers.TimeLimit(repeating, 10), READS)
        wrap(repeating, DISC)

    class Tripled(gym.Wrapper):
        def action(self, action: Any) -> Any:
            return 3 * action

        def step(self, action: Any) -> Any:
            return self.env.step(self.action(action))

    for changing in (TransformAction(Cart(), lambda act: 3 * act, Cart().action_space), Tripled(Cart())):
        with pytest.warns(UserWarning, match="may change actions") as told:
            wrap(changing, DISC)
        assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrap(RescaleAction(Cart(), np.float32(-3), np.float32(5)), DISC)
    with pytest.warns(UserWarning, match="may change actions") as told:
        wrap(ExecutedActionAudit(changing, DISC), DISC)
    assert len(told) == 1


class Interrupted(Cart):
    """Moves, and is then interrupted, once."""

    once = True

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        if self.once:
            self.once = False
            raise KeyboardInterrupt
        return result


@pytest.mark.parametrize("wrap", [AutoMDPWrapper, ActionConstraintWrapper, ExecutedActionAudit])
def test_nothing_is_judged_on_the_observation_before_an_interrupted_step(wrap: Any) -> None:
    wrapped = wrap(Interrupted(), READS)
    wrapped.reset(seed=0)
    with pytest.raises(KeyboardInterrupt):
        wrapped.step(np.zeros(2, np.float32))
    with pytest.raises(RuntimeError, match=r"call reset\(\)"):
        wrapped.step(np.zeros(2, np.float32))
    wrapped.reset()
    wrapped.step(np.zeros(2, np.float32))


@pytest.mark.parametrize(
    ("reward", "match"), [(np.nan, "not finite"), (np.inf, "not finite"), (None, "reward None"), ("1", "reward '1'")]
)
@pytest.mark.parametrize("wrap", [AutoMDPWrapper, ActionConstraintWrapper])
def test_rewards_that_are_no_finite_numbers_are_refused(wrap: Any, reward: Any, match: str) -> None:
    class Broken(Cart):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, reward, *rest

    wrapped = wrap(Broken(), DISC)
    wrapped.reset(seed=0)
    with pytest.raises((ValueError, TypeError), match=match):
        wrapped.step(INSIDE)


def test_vector_rewards_are_passed_on_or_refused() -> None:
    class Two(Cart):
        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            return obs, np.array([reward, 1.0]), *rest

    plain = ActionConstraintWrapper(Two(), DISC)
    plain.reset(seed=0)
    assert plain.step(INSIDE)[1].shape == (2,)
    wrapped = AutoMDPWrapper(Two(), DISC)
    wrapped.reset(seed=0)
    with pytest.raises(TypeError, match="LinearReward"):
        wrapped.step(INSIDE)


@pytest.mark.parametrize("wrap", [AutoMDPWrapper, ActionConstraintWrapper, ExecutedActionAudit])
def test_observations_of_another_length_and_failing_extractors_are_told(wrap: Any) -> None:
    class Longer(Cart):
        def reset(self, **options: Any) -> Any:
            obs, info = super().reset(**options)
            return np.append(obs, 0.0), info

    with pytest.raises(ValueError, match=r"shape \(5,\)"):
        wrap(Longer(), DISC).reset(seed=0)
    with pytest.raises(TypeError, match="constraint_obs=3"):
        wrap(Cart(), READS, constraint_obs=3)

    def failing(obs: Any) -> Any:
        return obs["state"]

    wrapped = wrap(Cart(), READS, constraint_obs=failing)

    def begin() -> None:
        wrapped.reset(seed=0)
        wrapped.step(INSIDE)

    with pytest.raises(RuntimeError, match=r"constraint_obs failed in .*test_wrappers\.py"):
        begin()


@pytest.mark.parametrize("wrap", [AutoMDPWrapper, ActionConstraintWrapper, ExecutedActionAudit])
def test_vector_environments_are_sent_to_the_way_of_wrapping_them(wrap: Any) -> None:
    with pytest.raises(TypeError, match=r"wrappers=\["):
        wrap(gym.vector.SyncVectorEnv([Cart, Cart]), DISC)


def test_switches_are_truth_values() -> None:
    for name in ("vector", "append_preference"):
        with pytest.raises(TypeError, match=name):
            AutoMDPWrapper(Cart(), DISC, 1.0, (0.5, 0.5), **{name: "no"})


def test_a_projecting_wrapper_needs_a_projection() -> None:
    oracle = Oracle(lambda obs, act: (np.abs(act) < 0.2).all(1), action_dim=2)
    with pytest.raises(TypeError, match="no projection"):
        ActionConstraintWrapper(Cart(), oracle, "project")
    ActionConstraintWrapper(Cart(), oracle, "error")


def test_vector_rewards_below_zero_are_told_once() -> None:
    with pytest.warns(EquivalenceWarning, match="reward 0 or more"):
        AutoMDPWrapper(Cart(), DISC, 0.0, reward_min=-100)
    wrapped = AutoMDPWrapper(Cart(), DISC, 1.0, "dirichlet", reward_offset=1.0)
    wrapped.reset(seed=0)
    quiet = AutoMDPWrapper(Cart(), DISC, 1.0, reward_offset=100.0)
    quiet.reset(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet.step(INSIDE)


def test_an_empty_set_is_told_with_its_state() -> None:
    closing = LinearInequality(
        lambda obs: np.broadcast_to([[1.0, 0.0], [-1.0, 0.0]], (len(obs), 2, 2)),
        lambda obs: np.broadcast_to([-0.5, -0.5], (len(obs), 2)),
        action_dim=2,
    )
    wrapped = ActionConstraintWrapper(Cart(), closing, "project")
    obs, _ = wrapped.reset(seed=0)
    with pytest.raises(ValueError, match=rf"empty.*at the observation .*{obs[0]:.4f}.*widen"):
        wrapped.step(INSIDE)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.uint8, np.float32),
        (np.int32, np.float64),
        (np.float16, np.float16),
        (np.float32, np.float32),
        (np.float64, np.float64),
    ],
)
def test_an_appended_preference_is_seen_whatever_the_observations_hold(given: Any, expected: Any) -> None:
    class Counts(Cart):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gym.spaces.Box(0, 200, (4,), given)

        def reset(self, **options: Any) -> Any:
            return np.array([1, 2, 3, 200], given), super().reset(**options)[1]

    env = AutoMDPWrapper(Counts(), DISC, preference=(0.25, 0.75), append_preference=True)
    obs, _ = env.reset(seed=0)
    assert obs.dtype == env.observation_space.dtype == expected
    assert obs.tolist() == [1, 2, 3, 200, 0.25, 0.75]
    assert env.observation_space.contains(obs)


def test_an_audit_around_the_constraint_is_sent_to_its_place() -> None:
    for wrapped in (AutoMDPWrapper(Cart(), DISC, preference=(0.5, 0.5)), ActionConstraintWrapper(Cart(), DISC)):
        audit = ExecutedActionAudit(gym.wrappers.TimeLimit(wrapped, 5), DISC)
        audit.reset(seed=0)
        with pytest.raises(ExecutedViolationError, match="put the audit inside, next to the environment"):
            audit.step(OUTSIDE)


def test_modes_and_options_of_another_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="mode="):
        ActionConstraintWrapper(Cart(), DISC, mode=["project"])
    with pytest.raises(TypeError, match="options=3 is no mapping"):
        AutoMDPWrapper(Cart(), DISC).reset(options=3)


@pytest.mark.parametrize("wrap", [AutoMDPWrapper, ActionConstraintWrapper, ExecutedActionAudit])
def test_a_failing_extractor_is_told_at_the_reset(wrap: Any) -> None:
    wrapped = wrap(Cart(), READS, constraint_obs=lambda obs: obs["state"])
    with pytest.raises(RuntimeError, match="constraint_obs failed"):
        wrapped.reset(seed=0)
    with pytest.raises(RuntimeError, match="reset"):
        wrapped.step(INSIDE)

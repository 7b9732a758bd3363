"""Stable-Baselines3: feasible inference for stochastic and deterministic agents, units, and the training callback."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from octavo_aram.constraints import L2Ball, Oracle, Orthoplex
from octavo_aram.sb3 import valid_rate_callback, wrap_predict
from octavo_aram.wrappers import ActionConstraintWrapper, AutoMDPWrapper, ExecutedActionAudit
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError

sb3 = pytest.importorskip("stable_baselines3")


class Drift(gymnasium.Env):
    """A point that moves by its action; the range of the actions is not symmetric."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = gymnasium.spaces.Box(np.array([0.0, -3.0]), np.array([4.0, 1.0]), dtype=np.float64)
        self.state = np.zeros(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=3)
        return self.state.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.state = self.state + np.append(0.1 * action, 0.1)
        return self.state.copy(), -float(np.abs(self.state).sum()), False, bool(self.state[2] > 3.0), {}


def agent(kind: str, env: Any) -> Any:
    common: dict[str, Any] = {"seed": 0, "device": "cpu", "policy_kwargs": {"net_arch": [8]}}
    if kind == "PPO":
        return sb3.PPO("MlpPolicy", env, n_steps=16, batch_size=16, **common)
    return getattr(sb3, kind)("MlpPolicy", env, learning_starts=8, batch_size=8, buffer_size=200, **common)


def ball() -> L2Ball:
    return L2Ball(0.1, action_dim=2)


@pytest.mark.parametrize("kind", ["SAC", "TD3", "PPO"])
def test_actions_are_feasible_in_the_environment(kind: str) -> None:
    model = agent(kind, AutoMDPWrapper(Drift(), ball(), kappa=50, preference=[0.5, 0.5]))
    model.learn(32)
    env = ExecutedActionAudit(Drift(), ball())
    predictor = wrap_predict(model, ball(), action_space=env.action_space)
    for deterministic in (False, True):
        observation, _ = env.reset(seed=1)
        for _ in range(20):
            action, _ = predictor.predict(observation, deterministic=deterministic)
            assert action.shape == (2,)
            observation, *_ = env.step(action)
    assert env.violations == 0
    assert env.executed == predictor.counts.states == 40
    assert 0.0 <= predictor.counts.valid_rate <= 1.0
    assert predictor.counts.candidates >= 40


def test_batches_are_answered_row_by_row_with_state_dependent_constraints() -> None:
    constraint = Orthoplex([0, 1], 0.5)
    model = agent("SAC", AutoMDPWrapper(Drift(), constraint, kappa=50, preference=[0.5, 0.5]))
    observations = np.random.default_rng(0).normal(size=(300, 3)) * 3
    predictor = wrap_predict(model, constraint)
    for deterministic in (False, True):
        actions, state = predictor.predict(observations, deterministic=deterministic)
        assert state is None
        assert actions.shape == (300, 2)
        assert constraint.contains(observations, actions.astype(np.float64)).all()
    assert predictor.counts.states == 600
    assert predictor.counts.first_feasible < 600


def test_feasible_deterministic_actions_are_those_of_the_agent() -> None:
    model = agent("SAC", AutoMDPWrapper(Drift(), ball(), kappa=50, preference=[0.5, 0.5]))
    observations = np.random.default_rng(0).normal(size=(200, 3))
    own, _ = model.predict(observations, deterministic=True)
    actions, _ = wrap_predict(model, ball()).predict(observations, deterministic=True)
    inside = ball().contains(None, own.astype(np.float64))
    assert inside.any()
    np.testing.assert_array_equal(actions[inside], own[inside])


def test_deterministic_policies_get_noise_on_their_candidates() -> None:
    model = agent("TD3", AutoMDPWrapper(Drift(), ball(), kappa=50, preference=[0.5, 0.5]))
    observation = np.zeros(3)
    predictor = wrap_predict(model, ball())
    assert predictor.noise == pytest.approx(0.1)
    drawn = {tuple(predictor.predict(observation)[0].tolist()) for _ in range(3)}
    assert len(drawn) == 3
    again = wrap_predict(model, ball(), seed=0)
    other = wrap_predict(model, ball(), seed=0)
    np.testing.assert_array_equal(again.predict(observation)[0], other.predict(observation)[0])
    quiet = wrap_predict(model, ball(), noise=0)
    np.testing.assert_array_equal(quiet.predict(observation)[0], quiet.predict(observation)[0])


def test_normalised_observations_reach_the_agent_and_raw_ones_the_constraint() -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    constraint = Orthoplex([0, 1], 0.5)
    env = VecNormalize(DummyVecEnv([lambda: AutoMDPWrapper(Drift(), constraint, kappa=50, preference=[0.5, 0.5])]))
    model = agent("SAC", env)
    model.learn(40)
    observations = 5.0 + np.random.default_rng(0).normal(size=(100, 3))
    actions, _ = wrap_predict(model, constraint).predict(observations, deterministic=True)
    assert constraint.contains(observations, actions.astype(np.float64)).all()
    own, _ = model.predict(env.normalize_obs(observations), deterministic=True)
    expected = constraint.project(observations, own.astype(np.float64))
    np.testing.assert_allclose(actions, expected, atol=1e-6)


def test_a_predictor_stands_in_for_the_model_in_evaluate_policy() -> None:
    from stable_baselines3.common.evaluation import evaluate_policy

    model = agent("SAC", AutoMDPWrapper(Drift(), ball(), kappa=50, preference=[0.5, 0.5]))
    env = ActionConstraintWrapper(Drift(), ball(), mode="error")
    mean, _ = evaluate_policy(wrap_predict(model, ball()), env, n_eval_episodes=2, warn=False)
    assert np.isfinite(mean)


def test_the_callback_records_the_share_of_feasible_actions() -> None:
    callback: Any = valid_rate_callback(window=20)
    seen: list[bool] = []

    class Recorded(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            result = self.env.step(action)
            seen.append(result[4]["feasible"])
            return result

    env = AutoMDPWrapper(Drift(), ball(), kappa=50, preference=[0.5, 0.5], max_self_loops=5)
    model = agent("SAC", Recorded(env))
    model.learn(60, callback=callback)
    assert callback.valid_rate == pytest.approx(np.mean(seen[-20:]))
    assert model.logger.name_to_value["constraint/valid_rate"] == pytest.approx(callback.valid_rate)
    assert callback.projections > 0


def test_bad_input_is_refused() -> None:
    model = agent("SAC", AutoMDPWrapper(Drift(), ball(), kappa=50, preference=[0.5, 0.5]))
    with pytest.raises(InvalidValueError, match="3 action components"):
        wrap_predict(model, L2Ball(0.1, action_dim=3))
    with pytest.raises(InvalidValueError, match="action_space 1"):
        wrap_predict(model, ball(), action_space=gymnasium.spaces.Box(-1, 1, (1,)))
    with pytest.raises(InvalidValueError, match="noise"):
        wrap_predict(model, ball(), noise=-1)
    for name, value in (("max_tries", 0), ("batch", 0), ("fallback", "nope"), ("noise", np.inf)):
        with pytest.raises(InvalidValueError, match=name):
            wrap_predict(model, ball(), **{name: value})
    predictor = wrap_predict(model, ball())
    for observation, match in (
        (np.array([0.0, np.nan, 0.0]), "NaN"),
        (np.zeros(4), "shape"),
        (np.zeros((2, 2)), "shape"),
    ):
        with pytest.raises(InvalidValueError, match=match):
            predictor.predict(observation)
    with pytest.raises(InvalidTypeError, match="hidden state"):
        wrap_predict(model, ball()).predict(np.zeros(3), state=(np.zeros(1),))
    with pytest.raises(InvalidValueError, match="window=0"):
        valid_rate_callback(0)
    for window in ("a", 1.5):
        with pytest.raises(InvalidTypeError, match="window"):
            valid_rate_callback(window)
    with pytest.raises(InvalidValueError, match="seed=-1"):
        wrap_predict(model, ball(), seed=-1)
    with pytest.raises(InvalidTypeError, match="seed='a'"):
        wrap_predict(model, ball(), seed="a")
    with pytest.raises(InvalidTypeError, match="discrete"):
        wrap_predict(sb3.DQN("MlpPolicy", "CartPole-v1", device="cpu", buffer_size=10), ball())


def test_a_set_without_projection_needs_another_fallback() -> None:
    model = agent("SAC", AutoMDPWrapper(Drift(), ball(), kappa=50, preference=[0.5, 0.5]))
    small = Oracle(lambda _, act: np.abs(act).max(1) < 0.01, action_dim=2, interior=lambda _: np.zeros(2))
    with pytest.raises(InvalidTypeError, match="fallback='interior'"):
        wrap_predict(model, small)
    predictor = wrap_predict(model, small, fallback="interior", max_tries=2)
    for deterministic in (True, False):
        actions, _ = predictor.predict(np.random.default_rng(0).normal(size=(20, 3)) * 3, deterministic=deterministic)
        assert small.contains(None, actions.astype(np.float64)).all()
    assert predictor.counts.projections == 0


def test_a_yaml_file_constrains_an_agent(tmp_path: Path) -> None:
    from octavo_aram.loading import load_constraint

    path = tmp_path / "power.yaml"
    path.write_text("type: positive_power\nweights_from_obs: [0, 1]\nlimit: 0.5\n")
    env = Drift()
    constraint = load_constraint(path, env)
    model = agent("SAC", AutoMDPWrapper(env, constraint, kappa=50, preference=[0.5, 0.5]))
    model.learn(30)
    audited = ExecutedActionAudit(Drift(), constraint)
    policy = wrap_predict(model, constraint, action_space=audited.action_space)
    observation, _ = audited.reset(seed=0)
    for _ in range(20):
        observation, *_ = audited.step(policy.predict(observation)[0])
    assert audited.executed == 20
    assert audited.violations == 0


READS = Orthoplex([0, 1], 0.2)


def augmented(**options: Any) -> AutoMDPWrapper:
    return AutoMDPWrapper(Drift(), READS, kappa=50, preference=[0.5, 0.5], **options)


class Doubled(gymnasium.Wrapper):
    """Shows two observations at once, by no wrapper that is known."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (6,), np.float64)

    def reset(self, **options: Any) -> Any:
        obs, info = self.env.reset(**options)
        return np.tile(obs, 2), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        return np.tile(obs, 2), *rest


def vector(*makers: Any) -> Any:
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv(list(makers))


def hidden(maker: Any) -> Any:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return SubprocVecEnv([maker], start_method="fork")


def stacked(env: Any) -> Any:
    from stable_baselines3.common.vec_env import VecFrameStack

    return VecFrameStack(env, 2)


def normalised(env: Any) -> Any:
    from stable_baselines3.common.vec_env import VecNormalize

    return VecNormalize(env)


def flat_frames(env: Any) -> Any:
    return gymnasium.wrappers.FlattenObservation(gymnasium.wrappers.FrameStackObservation(env, 2))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: stacked(vector(augmented)), "VecFrameStack"),
        (lambda: normalised(stacked(vector(augmented))), "VecFrameStack"),
        (lambda: gymnasium.wrappers.NormalizeObservation(augmented()), "NormalizeObservation"),
        (lambda: gymnasium.wrappers.NormalizeObservation(Drift()), "NormalizeObservation"),
        (lambda: flat_frames(augmented()), "FrameStackObservation"),
        (lambda: hidden(lambda: gymnasium.wrappers.NormalizeObservation(augmented())), "NormalizeObservation"),
        (lambda: Doubled(augmented()), r"shape \(6,\)"),
        (lambda: augmented(constraint_obs=lambda obs: obs[1:]), "constraint_obs in AutoMDPWrapper"),
    ],
)
def test_a_constraint_does_not_read_observations_that_were_changed_for_the_agent(make: Any, named: str) -> None:
    env = make()
    model = agent("SAC", env)
    with pytest.raises(InvalidValueError, match=rf"{named}.*give constraint_obs"):
        wrap_predict(model, READS)
    wrap_predict(model, ball())
    wrap_predict(model, READS, constraint_obs=lambda obs: obs[:2])
    model.get_env().close()


def mirrored(env: Any) -> Any:
    from stable_baselines3.common.vec_env import VecEnvWrapper

    class Mirrored(VecEnvWrapper):
        def reset(self) -> Any:
            return self.venv.reset()[:, ::-1]

        def step_wait(self) -> Any:
            obs, *rest = self.venv.step_wait()
            return obs[:, ::-1], *rest

    return Mirrored(env)


def test_other_layers_that_may_change_observations_are_told() -> None:
    with pytest.warns(UserWarning, match="Mirrored, which may change"):
        wrap_predict(agent("SAC", mirrored(vector(augmented))), READS)
    shifted = functools.partial(
        gymnasium.wrappers.TransformObservation, func=lambda obs: obs + 1, observation_space=None
    )
    with pytest.warns(UserWarning, match="TransformObservation, which may change"):
        wrap_predict(agent("SAC", shifted(augmented())), READS)


def test_unchanged_and_extended_observations_are_read_as_they_are() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for env in (augmented(), augmented(append_preference=True), normalised(vector(augmented)), Drift()):
            model = agent("SAC", env)
            observations = np.random.default_rng(0).normal(size=(20, *model.observation_space.shape)) * 3
            policy = wrap_predict(model, READS, action_space=augmented().action_space)
            actions, _ = policy.predict(observations)
            assert READS.contains(observations, actions.astype(np.float64)).all()


@pytest.mark.parametrize("deterministic", [False, True])
def test_an_agent_on_stacked_observations_acts_feasibly_at_the_current_one(*, deterministic: bool) -> None:
    model = agent("SAC", stacked(vector(augmented)))
    audited = ExecutedActionAudit(Drift(), READS)
    policy = wrap_predict(
        model, READS, action_space=audited.action_space, constraint_obs=lambda obs: obs[-3:], fallback="project"
    )
    current, _ = audited.reset(seed=0)
    before = np.zeros(3)
    for _ in range(30):
        action, _ = policy.predict(np.concatenate([before, current]), deterministic=deterministic)
        before = current
        current, _, _, truncated, _ = audited.step(action)
        if truncated:
            current, _ = audited.reset()
    assert (audited.executed, audited.violations) == (30, 0)
    batch = np.random.default_rng(0).normal(size=(40, 6)) * 3
    actions, _ = wrap_predict(model, READS, constraint_obs=lambda obs: obs[-3:]).predict(batch)
    assert READS.contains(batch[:, -3:], actions.astype(np.float64)).all()


@pytest.mark.parametrize(
    ("read", "match"),
    [(3, "constraint_obs=3"), (lambda obs: obs["a"], "constraint_obs failed"), (lambda obs: obs[:, None], "vector")],
)
def test_what_constraint_obs_returns_is_checked(read: Any, match: str) -> None:
    model = agent("SAC", augmented())
    with pytest.raises((InvalidTypeError, InvalidValueError, InvalidStateError), match=match):
        wrap_predict(model, READS, constraint_obs=read).predict(np.zeros(3))


def test_frames_are_stacked_before_they_are_normalised() -> None:
    model = agent("SAC", stacked(normalised(vector(augmented))))
    with pytest.raises(InvalidValueError, match="put VecNormalize outermost"):
        wrap_predict(model, ball())

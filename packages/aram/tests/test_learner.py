"""The learner: what is executed and stored, resuming to the last bit, several environments, and what is refused."""

from __future__ import annotations

import copy
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from learning_helpers import SMALL, Target
from octavo_aram.agent import Agent
from octavo_aram.arm import LowAcceptanceWarning
from octavo_aram.constraints import Box, IntegerAllocation, L2Ball, LinearInequality, Oracle, Orthoplex, Union
from octavo_aram.equivalence import EquivalenceWarning
from octavo_aram.evaluation import evaluate
from octavo_aram.learner import ARAM
from octavo_aram.methods import METHODS, make_agent
from octavo_core.checkpoint import load_checkpoint
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError

BALL = L2Ball(0.2, action_dim=2)


def states_equal(first, second):
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(states_equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(states_equal, first, second))
    if isinstance(first, torch.Tensor | np.ndarray):
        return bool((np.asarray(first) == np.asarray(second)).all())
    return first == second or (first != first and second != second)


def comparable(agent):
    """Everything that decides the rest of a run; global generators and clocks do not."""
    state = agent.state_dict()
    state["random"] = state["random"]["generators"]
    state["counters"] = {name: value for name, value in state["counters"].items() if name != "seconds"}
    return state


def test_every_executed_action_is_feasible_in_the_environments_units():
    env = Target(low=-2.0, high=4.0)
    agent = ARAM(env, BALL, SMALL).learn(120)
    normalised = (np.array(env.actions) - 1.0) / 3.0
    assert BALL.contains(None, normalised, 1e-6).all()
    assert agent.counters.violations == 0
    assert agent.counters.warmup.steps == 40
    assert agent.counters.training.steps == 80


def test_rejected_proposals_become_self_loops():
    agent = ARAM(Target(), BALL, SMALL.replace(penalty=2.5)).learn(40)
    memory = agent.buffer
    assert memory.num_augmented == agent.counters.warmup.tries - agent.counters.warmup.accepted
    loops = memory.split(memory.rows(np.arange(memory.capacity, memory.capacity + memory.num_augmented)))
    assert torch.equal(loops.obs, loops.next_obs)
    assert not BALL.contains(None, loops.action).any()
    assert loops.rewards.unique(dim=0).tolist() == [[0.0, -2.5]]
    assert loops.continues.all()
    real = memory.split(memory.rows(np.arange(40)))
    assert BALL.contains(None, real.action).all()
    assert not real.rewards[:, 1].any()


def never(obs, act):
    return np.abs(act).max(-1) < 1e-9


@pytest.mark.parametrize("proposal", [False, True])
def test_what_is_stored_when_all_tries_fail(proposal):
    constraint = L2Ball(1e-12, action_dim=2)
    agent = ARAM(Target(), constraint, SMALL.replace(max_tries=3, store_proposal=proposal)).learn(10)
    assert agent.counters.warmup.fallbacks == agent.counters.warmup.projections == 10
    assert agent.buffer.num_augmented == 30
    real = agent.buffer.split(agent.buffer.rows(np.arange(10)))
    if proposal:
        assert real.action.abs().amax(1).min() > 1e-3
        assert real.rewards[:, 1].tolist() == [-1.0] * 10
    else:
        assert real.action.abs().max() < 1e-5
        assert not real.rewards[:, 1].any()


def test_ablation_switches():
    without = ARAM(Target(), BALL, SMALL.replace(use_automdp=False)).learn(40)
    assert without.buffer.num_augmented == 0
    assert len(without.buffer) == 40
    single = ARAM(Target(), BALL, SMALL.replace(dual_buffer=False)).learn(40)
    assert single.buffer.augmented_capacity == 0
    assert len(single.buffer) == single.counters.warmup.tries
    once = ARAM(Target(), BALL, SMALL.replace(use_arm=False)).learn(40)
    assert once.counters.warmup.tries == 40
    assert once.counters.warmup.projections == 40 - once.counters.warmup.first_valid > 0


@pytest.mark.parametrize("method", METHODS)
def test_resuming_equals_the_uninterrupted_run_to_the_last_bit(method, tmp_path):
    def make():
        return make_agent(method, [Target(), Target()], BALL, SMALL)

    whole = make()
    whole.learn(56)
    file = whole.save(tmp_path / "half.safetensors")
    whole.learn(30)
    resumed = make()
    resumed.load_state_dict(load_checkpoint(file))
    resumed.learn(30)
    assert whole.num_updates == resumed.num_updates > 0
    assert states_equal(comparable(whole), comparable(resumed))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_resuming_with_random_preferences_and_snapshots(dtype, tmp_path):
    config = SMALL.replace(
        preference="dirichlet", num_preferences=3, num_snapshots=2, snapshot_start=10, snapshot_every=7, dtype=dtype
    )
    whole = ARAM(Target(), BALL, config)
    whole.learn(80)
    file = whole.save(tmp_path / "half.safetensors")
    whole.learn(30)
    resumed = Agent.load(file, Target(), BALL)
    assert len(resumed.core.snapshots) == 2
    resumed.learn(30)
    assert states_equal(comparable(whole), comparable(resumed))
    assert whole.core.policy.network.flat.dtype == getattr(torch, dtype)


def pickled(agent):
    return pickle.loads(pickle.dumps(agent))  # noqa: S301 - just pickled


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
@pytest.mark.parametrize("method", ["aram", "spre+", "dpro", "optlayer"])
def test_a_copy_learns_as_the_original(method, duplicate):
    config = SMALL.replace(num_snapshots=2, snapshot_start=5, snapshot_every=7)
    original = make_agent(method, [Target(), Target()], BALL, config).learn(56)
    twin = duplicate(original)
    before = comparable(duplicate(original))
    original.learn(30)
    assert states_equal(comparable(twin), before)
    twin.learn(30)
    assert states_equal(comparable(original), comparable(twin))
    assert np.array_equal(original.predict(np.ones(3)), twin.predict(np.ones(3)))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_a_copy_saves_and_takes_what_it_predicts_by(duplicate, tmp_path):
    original = ARAM(Target(), BALL, SMALL).learn(50)
    twin = duplicate(original).learn(50)
    loaded = Agent.load(twin.save(tmp_path / "a.safetensors"), Target(), BALL, predict_only=True)
    obs = np.array([0.5, -0.5, 0.5])
    assert np.array_equal(loaded.predict(obs), twin.predict(obs))
    assert not np.array_equal(original.predict(obs), twin.predict(obs))
    twin.load_state_dict(original.state_dict(), predict_only=True)
    assert np.array_equal(original.predict(obs), twin.predict(obs))


def test_a_seed_decides_the_run_and_another_gives_another():
    flat = [ARAM(Target(), BALL, SMALL.replace(seed=s)).learn(60).core.policy.network.flat for s in (1, 1, 2)]
    assert torch.equal(flat[0], flat[1])
    assert not torch.equal(flat[0], flat[2])


def test_several_environments_share_a_run():
    agent = ARAM([Target() for _ in range(3)], BALL, SMALL.replace(start_steps=42)).learn(75)
    assert agent.num_steps == 75
    # One update a transition, from the end of the warm-up on.
    assert agent.num_updates == 36
    assert agent.counters.training.steps == 33
    vector = gymnasium.vector.SyncVectorEnv([Target, Target])
    assert len(ARAM(vector, BALL, SMALL).envs) == 2


def test_prediction():
    agent = ARAM(Target(low=-2.0, high=4.0), BALL, SMALL).learn(60)
    obs = np.random.default_rng(0).standard_normal((5, 3))
    actions = agent.predict(obs)
    assert actions.shape == (5, 2)
    np.testing.assert_allclose(agent.predict(obs[2]), actions[2], atol=1e-5)
    normalised = agent.predict(obs, normalized=True)
    np.testing.assert_allclose(actions, 1 + 3 * normalised)
    drawn = agent.predict(np.repeat(obs[:1], 400, 0), deterministic=False, normalized=True)
    assert BALL.contains(None, drawn).all()
    assert len(np.unique(drawn, axis=0)) == 400


def test_the_deterministic_action_is_projected_not_redrawn():
    agent = ARAM(Target(), BALL, SMALL)
    with torch.no_grad():
        agent.core.policy.network.flat.zero_()
        agent.core.policy.network.parts[-1][..., :2] = 3.0
    mean = np.tanh(np.float32(3.0)).astype(float)
    expected = np.full(2, np.sqrt(0.2 / 2))
    np.testing.assert_allclose(agent.predict(np.zeros(3)), expected, rtol=1e-6)
    assert np.square([mean, mean]).sum() > 0.2


@pytest.mark.parametrize(
    ("obs", "preference", "match"),
    [
        (np.zeros(4), None, "shape"),
        (np.array([0.0, np.nan, 0.0]), None, "finite"),
        (np.zeros(3), (0.5, 0.6), "simplex"),
    ],
)
def test_predictions_that_are_refused(obs, preference, match):
    with pytest.raises(InvalidValueError, match=match):
        ARAM(Target(), BALL, SMALL).predict(obs, preference)


def opposed_sides(obs):
    return np.broadcast_to([[1.0, 1.0], [-1.0, -1.0]], (len(obs), 2, 2))


class Discrete(Target):
    def __init__(self):
        super().__init__()
        self.action_space = gymnasium.spaces.Discrete(3)


class Endless(Target):
    def __init__(self):
        super().__init__()
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))


class Broken(Target):
    def step(self, action):
        obs, reward, over, truncated, info = super().step(action)
        return obs, np.nan if self.clock == 7 else reward, over, truncated, info


@pytest.mark.parametrize(
    ("env", "constraint", "error", "match"),
    [
        (Discrete, BALL, InvalidTypeError, "action space"),
        (Endless, BALL, InvalidValueError, "infinite"),
        (Target, L2Ball(0.2, action_dim=3), InvalidValueError, "3 actions"),
        (Target, Orthoplex([2, 3], 1.0), InvalidValueError, "observation"),
        (Target, LinearInequality(opposed_sides, [-0.5, -0.5], action_dim=2), InvalidValueError, "empty"),
        (Target, 3, InvalidTypeError, "no constraint"),
        (Target, "Re+L3", InvalidValueError, "Re"),
        (lambda: "env", BALL, InvalidTypeError, "Gymnasium"),
    ],
)
def test_what_is_refused_at_the_start(env, constraint, error, match):
    with pytest.raises(error, match=match):
        ARAM(env(), constraint, SMALL)


def test_rewards_that_are_not_finite_are_refused():
    with pytest.raises(InvalidValueError, match="finite"):
        ARAM(Broken(), BALL, SMALL).learn(50)


def test_an_oracle_without_projection_fails_clearly_when_tries_run_out():
    constraint = Oracle(never, action_dim=2)
    with pytest.raises((InvalidTypeError, InvalidStateError, InvalidValueError), match="project|interior"):
        ARAM(Target(), constraint, SMALL.replace(max_tries=2)).learn(5)


def test_too_small_a_penalty_is_told_with_the_needed_one():
    with pytest.warns(EquivalenceWarning, match="kappa exceeds"):
        ARAM(Target(shift=-5.0), BALL, SMALL).learn(60)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EquivalenceWarning)
        ARAM(Target(shift=-5.0), BALL, SMALL.replace(penalty=10.0)).learn(60)
        ARAM(Target(shift=-5.0), BALL, SMALL.replace(reward_offset=6.0)).learn(60)


def test_a_wrong_projection_is_caught_before_it_is_executed():
    class Wrong(L2Ball):
        def project(self, obs, act):
            return np.ones_like(act)

    agent = ARAM(Target(), Wrong(1e-12, action_dim=2), SMALL.replace(max_tries=2))
    with pytest.raises(InvalidStateError, match="infeasible action"):
        agent.learn(5)
    assert agent.counters.violations == 1


def test_a_state_of_another_run_is_refused(tmp_path):
    agent = ARAM(Target(), BALL, SMALL)
    state = agent.state_dict()
    with pytest.raises(InvalidStateError, match="penalty"):
        ARAM(Target(), BALL, SMALL.replace(penalty=3.0)).load_state_dict(state)
    with pytest.raises(InvalidStateError, match="method"):
        make_agent("spre", Target(), BALL, SMALL).load_state_dict(state)
    with pytest.raises(InvalidStateError, match="constraint"):
        ARAM(Target(), Box([-1.0, -1.0], [1.0, 1.0]), SMALL).load_state_dict(state)
    with pytest.raises(InvalidStateError, match="environments"):
        ARAM([Target(), Target()], BALL, SMALL).load_state_dict(state)


def test_an_environment_that_is_not_reproducible_is_told():
    class Noisy(Target):
        def step(self, action):
            result = super().step(action)
            self.place = self.place + 0.01 * np.random.default_rng().standard_normal(2)
            return result

    agent = ARAM(Noisy(), BALL, SMALL)
    agent.learn(10)
    with pytest.warns(UserWarning, match="no function of seed"):
        ARAM(Noisy(), BALL, SMALL).load_state_dict(agent.state_dict())


def test_a_state_without_buffers_predicts(tmp_path):
    agent = ARAM(Target(), BALL, SMALL).learn(60)
    file = agent.save(tmp_path / "policy.safetensors", buffers=False)
    with pytest.warns(UserWarning, match="no replay buffer"):
        loaded = Agent.load(file, Target(), BALL)
    assert np.array_equal(loaded.predict(np.ones(3)), agent.predict(np.ones(3)))


def test_target_entropy_follows_the_setting():
    values = {
        wanted: ARAM(Target(), BALL, SMALL.replace(target_entropy=wanted)).learn(45).core.target_entropy
        for wanted in ("dimension", "volume", -7.5)
    }
    assert values["dimension"] == -2.0
    assert values[-7.5] == -7.5
    assert values["volume"] < -2.0


@pytest.mark.parametrize("method", ["aram", "spro", "dpro"])
def test_critics_see_standardised_actions(method):
    agent = make_agent(method, [Target()], BALL, SMALL).learn(60)
    shift, scale = agent.core.scaling
    warm = torch.from_numpy(agent.buffer.actions()[:40])
    assert torch.allclose((warm * scale + shift).mean(0), torch.zeros(2), atol=1e-2)
    assert torch.allclose((warm * scale + shift).std(0, correction=0), torch.ones(2), atol=1e-2)
    # Stored actions and fresh proposals go through one map.
    rows = agent.buffer.rows(np.arange(5))
    seen = agent.buffer.split(torch.addcmul(agent._row_shift, rows, agent._row_scale))
    raw = agent.buffer.split(rows)
    assert torch.allclose(seen.state_action, agent.core.scaling.join(seen.obs, raw.action))
    assert torch.equal(seen.rewards, raw.rewards)


@pytest.mark.parametrize("constraint", [BALL, Orthoplex([0, 1], 0.1)])
def test_one_buffer_standardises_by_feasible_actions_alone(constraint):
    agent = ARAM(Target(), constraint, SMALL.replace(dual_buffer=False, dtype="float64")).learn(40)
    obs, actions = agent.buffer.observations(), agent.buffer.actions()
    feasible = constraint.contains(obs, actions)
    assert 0 < feasible.sum() < len(actions)
    shift, scale = agent.core.scaling
    seen = torch.from_numpy(actions[feasible]) * scale + shift
    assert torch.allclose(seen.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(seen.std(0, correction=0), torch.ones(2, dtype=torch.float64), atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*has no volume")
def test_one_buffer_without_feasible_actions_is_standardised_by_all():
    # Every proposal is stored as it was drawn, and none lies on the line.
    config = SMALL.replace(dual_buffer=False, store_proposal=True, max_tries=1)
    agent = ARAM(Target(), Box([0.0, -1.0], [0.0, 1.0]), config).learn(45)
    assert np.isfinite(agent.core.scaling.scale.numpy()).all()
    assert agent.num_updates > 0


def test_actions_can_be_left_as_they_are():
    agent = ARAM(Target(), BALL, SMALL.replace(action_scaling="none")).learn(60)
    assert agent.core.scaling.scale.tolist() == [1.0, 1.0]
    assert agent.core.scaling.shift.tolist() == [0.0, 0.0]


def test_preference_schedule():
    config = SMALL.replace(preference_schedule=((0, (0.9, 0.1)), (100, (0.1, 0.9))))
    agent = ARAM(Target(), BALL, config)
    seen = []
    agent.learn(120, lambda a: seen.append(a.preferences.current(a.num_steps)[0, 0]))
    assert seen[49] == pytest.approx(0.5)
    assert seen[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("kind", [bool, np.bool_, torch.tensor])
def test_a_callback_stops_the_run(kind):
    agent = ARAM(Target(), BALL, SMALL).learn(100, lambda a: kind(a.num_steps < 30))
    assert agent.num_steps == 30


def test_learning_needs_no_gradient_mode_of_the_caller():
    plain = ARAM(Target(), BALL, SMALL).learn(50)
    with torch.no_grad():
        agent = ARAM(Target(), BALL, SMALL).learn(50)
        assert not torch.is_grad_enabled()
    assert states_equal(comparable(plain), comparable(agent))


def test_an_interrupt_within_no_grad_leaves_gradients_on(monkeypatch):
    agent = ARAM(Target(), BALL, SMALL).learn(45)

    def interrupted(*_):
        # As an interrupt that falls into torch's entering of no_grad.
        torch.set_grad_enabled(False)
        raise KeyboardInterrupt

    with torch.enable_grad():
        with monkeypatch.context() as patch:
            patch.setattr(agent.core, "update", interrupted)
            with pytest.raises(KeyboardInterrupt):
                agent.step()
        assert torch.is_grad_enabled()
    made = agent.num_updates
    assert agent.learn(5).num_updates > made


def test_a_callback_that_is_no_function_is_refused():
    with pytest.raises(InvalidTypeError, match="callback='x' cannot be called"):
        ARAM(Target(), BALL, SMALL).learn(5, callback="x")


def test_acceptance_too_rare_falls_back_and_does_not_stall():
    agent = ARAM(Target(), L2Ball(1e-10, action_dim=2), SMALL.replace(max_tries=20, batch_size=500))
    with pytest.warns(LowAcceptanceWarning, match="hit_and_run"):
        agent.learn(260)
    assert agent.counters.training.fallbacks > 0
    assert agent.counters.violations == 0


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"preference": (1.0, 0.0)}, "weight 0"),
        ({"preference": "dirichlet"}, r"reward weighs 0\.2\d\d or more\); shift"),
        ({"preference_schedule": ((0, (0.0, 1.0)), (1000, (1.0, 0.0)))}, "weight 0"),
    ],
)
def test_every_way_of_weighing_is_checked_for_equivalence(changes, match):
    with pytest.warns(EquivalenceWarning, match=match) as told:
        ARAM(Target(shift=-5.0), BALL, SMALL.replace(**changes, reward_scale=1.0, reward_offset=1.0)).learn(60)
    assert len([entry for entry in told if entry.category is EquivalenceWarning]) == 1


def test_an_environment_that_is_wrapped_already_is_refused():
    from octavo_aram.wrappers import AutoMDPWrapper

    with pytest.raises(InvalidTypeError, match="AutoMDPWrapper"):
        ARAM(AutoMDPWrapper(Target(), BALL), BALL, SMALL)


TWO_DISCS = Union([L2Ball(1e-4, [-0.5, 0.0]), L2Ball(1e-4, [0.5, 0.0])])


def test_small_unions_get_a_target_entropy():
    agent = ARAM(Target(), TWO_DISCS, SMALL.replace(max_tries=5)).learn(45)
    single = ARAM(Target(), TWO_DISCS.parts[0], SMALL.replace(max_tries=5)).learn(45)
    assert agent.core.target_entropy == pytest.approx(single.core.target_entropy, abs=0.3)


def tiny(obs, act):
    return np.abs(act).max(-1) < 1e-4


def to_tiny(obs, act):
    return np.clip(act, -5e-5, 5e-5)


def test_sets_whose_volume_is_not_seen_are_told_before_learning():
    with pytest.warns(UserWarning, match=r"target_entropy='volume' becomes 'dimension'") as told:
        agent = ARAM(Target(), Oracle(tiny, action_dim=2), SMALL.replace(fallback="raise"))
    assert agent.core.target_entropy == -2.0
    with pytest.warns(UserWarning, match="target_entropy"):
        agent = ARAM(Target(), IntegerAllocation(3, 0, 4, action_dim=2), SMALL.replace(max_tries=3))
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.learn(60)
    assert agent.num_updates > 0
    assert agent.counters.violations == 0
    # A walk within the set sees what uniform draws do not.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = ARAM(Target(), Oracle(tiny, to_tiny, action_dim=2), SMALL.replace(max_tries=3)).learn(45)
    assert -25 < small.core.target_entropy < -10


def test_sets_without_volume_are_told_before_learning():
    with pytest.warns(LowAcceptanceWarning, match="no volume.*'project' decides every action"):
        ARAM(Target(), IntegerAllocation(3, 0, 4, action_dim=2), SMALL.replace(temperature=0.2))


def half(obs, act):
    return act[:, 0] < 0.5


def origin(obs):
    return np.zeros(2)


def test_what_a_fallback_needs_is_known_before_learning():
    bare, inner = Oracle(half, action_dim=2), Oracle(half, action_dim=2, interior=origin)
    for constraint, fallback, match in (
        (bare, "project", "fallback='raise'"),
        (bare, "interior", "no interior point"),
        (bare, "hit_and_run", "interior"),
        (inner, "project", "fallback='interior'"),
        (Union([inner, bare]), "project", "no projection"),
    ):
        with pytest.raises(InvalidTypeError, match=match):
            ARAM(Target(), constraint, SMALL.replace(fallback=fallback))


@pytest.mark.parametrize("fallback", ["raise", "interior"])
def test_sets_known_by_membership_are_learnt_on(fallback):
    oracle = Oracle(half, action_dim=2, interior=origin if fallback == "interior" else None)
    env = Target()
    agent = ARAM(env, oracle, SMALL.replace(fallback=fallback)).learn(60)
    with torch.no_grad():
        agent.core.policy.network.parts[-1][..., 0] = 0.8
    obs = np.random.default_rng(0).standard_normal((20, 3))
    assert half(obs, agent.predict(obs)).all()
    found = evaluate(agent, Target(), episodes=1)
    assert (found.violations, found.projections) == (0, 0)
    assert half(None, np.array(env.actions)).all()


def shut(obs):
    return np.where(obs[:, 2:] > 0.4, -0.5, 0.5) * np.ones(2)


def test_a_state_without_feasible_action_is_named():
    sides = LinearInequality(lambda obs: np.tile([[1.0, 0.0], [-1.0, 0.0]], (len(obs), 1, 1)), shut, action_dim=2)
    with pytest.raises(InvalidValueError, match=r"empty.*after 9 training steps, at the observation \[.*0\.45.*widen"):
        ARAM(Target(), sides, SMALL).learn(30)
    agent = ARAM(Target(), sides, SMALL)
    with pytest.raises(InvalidValueError, match="in predict"):
        agent.predict(np.array([0.0, 0.0, 0.9]))


def test_layers_that_change_actions_are_refused_or_told():
    moving = Orthoplex([0, 1], 0.3)
    with pytest.raises(InvalidValueError, match="StickyAction repeats"):
        ARAM(gymnasium.wrappers.StickyAction(Target(), 0.5), moving, SMALL)
    tripled = gymnasium.wrappers.TransformAction(Target(), lambda act: 3 * act, Target().action_space)
    with pytest.warns(UserWarning, match="TransformAction may change actions"):
        ARAM(tripled, BALL, SMALL)

"""What an agent's environments are for: one agent, undisturbed; and what happens after an exception within a step."""

from __future__ import annotations

import random
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from learning_helpers import SMALL, Target
from octavo_aram.agent import Agent
from octavo_aram.audit import ExecutedActionAudit
from octavo_aram.constraints import L2Ball, Orthoplex
from octavo_aram.evaluation import evaluate
from octavo_aram.learner import ARAM
from octavo_aram.methods import make_agent
from octavo_aram.training import RunSettings, load_run, train
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError

BALL = L2Ball(0.2, action_dim=2)
# Where it allows little, it depends much on the place.
MOVING = Orthoplex([0, 1], 0.15)
BROKEN_OFF = "new episodes begin"


class Failing(Target):
    """Raises within a step, after it has moved, whenever it is told to."""

    error: type[BaseException] | None = None

    def step(self, action):
        result = super().step(action)
        error, self.error = self.error, None
        if error is not None:
            raise error("told to")
        return result


def audited(env):
    return ExecutedActionAudit(env, MOVING, raise_on_violation=False)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_no_action_is_judged_on_an_observation_before_an_exception(count, error):
    bases = [Failing() for _ in range(count)]
    audits = [audited(base) for base in bases]
    agent = ARAM(audits, MOVING, SMALL)
    agent.learn(12)
    for turn in range(8):
        bases[turn % count].error = error
        with pytest.raises((KeyboardInterrupt, InvalidStateError)):
            agent.learn(4 * count)
        with pytest.warns(UserWarning, match=BROKEN_OFF) as told:
            agent.learn(2 * count)
        assert len([entry for entry in told if BROKEN_OFF in str(entry.message)]) == 1
    assert sum(audit.executed for audit in audits) > 20 * count
    assert [audit.violations for audit in audits] == [0] * count


def test_the_environments_of_a_vector_recover_too():
    bases = [Failing(), Failing()]
    vector = gymnasium.vector.SyncVectorEnv([lambda base=base: audited(base) for base in bases])
    agent = ARAM(vector, MOVING, SMALL)
    bases[1].error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        agent.learn(10)
    with pytest.warns(UserWarning, match=BROKEN_OFF):
        agent.learn(20)
    assert [env.violations for env in vector.envs] == [0, 0]


def test_a_run_saved_after_an_exception_resumes_to_the_last_bit(tmp_path):
    config = SMALL.replace(preference="dirichlet", start_steps=10, batch_size=10)
    env = Failing()
    whole = ARAM(env, MOVING, config).learn(25)
    env.error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        whole.learn(10)
    broken = whole.save(tmp_path / "broken.safetensors")
    with pytest.warns(UserWarning, match=BROKEN_OFF):
        whole.learn(7)
    later = whole.save(tmp_path / "later.safetensors")
    whole.learn(20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = [Agent.load(file, Failing(), MOVING) for file in (broken, later)]
        resumed[1].learn(20)
    with pytest.warns(UserWarning, match=BROKEN_OFF):
        resumed[0].learn(27)
    for agent in resumed:
        assert torch.equal(agent.core.policy.network.flat, whole.core.policy.network.flat)
        assert np.array_equal(agent.envs.obs, whole.envs.obs)


def test_a_group_that_was_interrupted_refuses_to_step():
    env = Failing()
    agent = ARAM(env, BALL, SMALL)
    env.error = RuntimeError
    with pytest.raises(InvalidStateError, match="told to"):
        agent.learn(1)
    with pytest.raises(InvalidStateError, match=r"recover\(\)"):
        agent.envs.step(np.zeros((1, 2)))


def test_the_environment_of_training_is_not_evaluated_in():
    base = Target()
    wrapped = gymnasium.wrappers.TimeLimit(base, 15)
    agent = ARAM(wrapped, BALL, SMALL).learn(10)
    steps = len(base.actions)
    vector = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.wrappers.TimeLimit(base, 5)])
    for env in (wrapped, base, gymnasium.wrappers.TimeLimit(base, 5), [base], vector):
        with pytest.raises(InvalidValueError, match=r"evaluate\(agent, make_env\(\)\)"):
            evaluate(agent, env, episodes=1)
    assert len(base.actions) == steps
    evaluate(agent, Target(), episodes=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.learn(5)


@pytest.mark.parametrize("method", ["aram", "spre+"])
def test_an_environment_is_free_again_without_its_agent(method):
    env = Target()
    agent = make_agent(method, env, BALL, SMALL)
    agent.learn(2)
    del agent
    evaluate(ARAM(Target(), BALL, SMALL), env, episodes=1)


def test_two_agents_do_not_share_an_environment():
    env = Target()
    first = ARAM(env, BALL, SMALL)
    second = ARAM(gymnasium.wrappers.TimeLimit(env, 10), BALL, SMALL).learn(3)
    with pytest.raises(InvalidStateError, match="an environment for each agent"):
        first.learn(1)
    second.learn(3)
    with pytest.raises(InvalidValueError, match="given twice"):
        ARAM([gymnasium.wrappers.TimeLimit(env, 10), env], BALL, SMALL)
    with pytest.raises(InvalidValueError, match="3 actions"):
        ARAM(env, L2Ball(0.2, action_dim=3), SMALL)
    with pytest.warns(UserWarning, match=BROKEN_OFF):
        second.learn(3)


def test_loading_leaves_the_global_generators_alone(tmp_path):
    agent = ARAM(Target(), BALL, SMALL).learn(50)
    file = agent.save(tmp_path / "a.safetensors")

    def draws():
        return random.random(), np.random.rand(), float(torch.rand(()))

    found = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        loaded = Agent.load(file, Target(), BALL)
        found.append(draws())
    assert all(first != second for first, second in zip(*found, strict=True))
    assert torch.equal(loaded.generator.get_state(), agent.generator.get_state())


class Global(Target):
    """Draws from NumPy's global generator."""

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, reward + np.random.rand(), *rest


def test_resuming_a_run_restores_the_global_generators(tmp_path):
    settings = RunSettings("Global", "ball", "aram", 40, SMALL, evaluate_every=20, episodes=1)
    train(settings, env=Global, constraint=BALL, folder=tmp_path)
    expected = np.random.rand()
    np.random.seed(0)
    train(settings, env=Global, constraint=BALL, folder=tmp_path, resume=True)
    assert np.random.rand() == expected


def test_a_policy_is_loaded_to_predict_with_any_number_of_environments(tmp_path):
    settings = RunSettings("Target", "ball", "aram", 60, SMALL, 3, 60, 1)
    agent = train(settings, env=Target, constraint=BALL, folder=tmp_path).agent
    file = agent.save(tmp_path / "a.safetensors")
    obs = np.ones(3)
    with pytest.raises(InvalidStateError, match=r"3 environments.*predict_only=True"):
        Agent.load(file, Target(), BALL)
    env = Target()
    for loaded in (
        Agent.load(file, env, BALL, predict_only=True),
        load_run(tmp_path, env=Target, constraint=BALL, predict_only=True)[1],
    ):
        assert np.array_equal(loaded.predict(obs), agent.predict(obs))
        assert not env.actions
        with pytest.raises(InvalidStateError, match="predict_only"):
            loaded.learn(1)
    assert evaluate(Agent.load(file, env, BALL, predict_only=True), env, episodes=1).violations == 0


def test_a_factory_makes_environments_anew(tmp_path):
    env = Target()
    settings = RunSettings("Target", "ball", "aram", 30, SMALL, evaluate_every=30, episodes=1)
    with pytest.raises(InvalidValueError, match="an agent trains in this environment"):
        train(settings, env=lambda: env, constraint=BALL)
    assert not env.actions


class Paying(Target):
    """Pays what it is told to."""

    pay = 0.0

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, self.pay, *rest


@pytest.mark.parametrize("pay", [np.array([-1.0]), [-1.0], torch.tensor(-1.0), np.float32(-1.0), -1])
def test_a_reward_of_one_entry_is_a_number(pay):
    env = Paying()
    env.pay = pay
    agent = ARAM(env, BALL, SMALL).learn(3)
    agent.envs.step(np.zeros((1, 2)))
    assert agent.envs._returns[0] < 0
    other = Paying()
    other.pay = pay
    assert evaluate(agent, gymnasium.wrappers.TimeLimit(other, 3), episodes=1).returns == (-3.0,)


@pytest.mark.parametrize("pay", ["1", None, [1.0, 2.0], [[1.0], [1.0, 2.0]]])
def test_other_rewards_are_refused_by_name(pay):
    env = Paying()
    env.pay = pay
    with pytest.raises(InvalidTypeError, match="returned the reward"):
        ARAM(env, BALL, SMALL).learn(3)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"seed": "a"}, "seed='a'"),
        ({"episodes": "3"}, "episodes='3'"),
        ({"episodes": 2.5}, "episodes=2.5"),
        ({"episodes": 0}, "episodes=0"),
        ({"draws_per_state": 1.5}, "draws_per_state=1.5"),
    ],
)
def test_counts_and_seeds_of_an_evaluation_are_whole(arguments, match):
    agent = ARAM(Target(), BALL, SMALL)
    with pytest.raises((InvalidTypeError, InvalidValueError), match=match):
        evaluate(agent, Target(), **arguments)
    evaluate(agent, Target(), episodes=np.int64(1), seed=np.int64(1))


@pytest.mark.parametrize("obs", ["abc", {"a": 1}, [[1.0, 2.0, 3.0], [1.0]], [np.nan, 0.0]])
def test_observations_that_are_no_numbers_are_refused(obs):
    with pytest.raises(InvalidValueError, match="the observation"):
        ARAM(Target(), BALL, SMALL).predict(obs)


def test_an_observation_may_be_a_tensor_with_gradient():
    agent = ARAM(Target(), BALL, SMALL)
    dim = agent.envs.observation_dim
    np.testing.assert_array_equal(agent.predict(torch.zeros(dim, requires_grad=True)), agent.predict(np.zeros(dim)))

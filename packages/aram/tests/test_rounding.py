"""What reaches an environment is feasible after rounding to its dtype, for every kind of set, or is refused."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from learning_helpers import SMALL, Target
from octavo_aram.action_range import ActionRange, ExecutedViolationError
from octavo_aram.constraints import Box, Intersection, L2Ball, LinearInequality, Oracle, Orthoplex, SumEquality, Union
from octavo_aram.learner import ARAM
from octavo_aram.methods import make_agent
from octavo_aram.wrappers import ActionConstraintWrapper, AutoMDPWrapper, ExecutedActionAudit


class Point(gymnasium.Env):
    """Three actions in float32; every received action must belong to the space."""

    def __init__(self, low=-1.0, high=1.0, dtype=np.float32):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = gymnasium.spaces.Box(np.full(3, low, dtype), np.full(3, high, dtype), dtype=dtype)
        self.received = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.standard_normal(3), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.received.append(action.copy())
        return self.np_random.standard_normal(3), 1.0, False, len(self.received) % 20 == 0, {}


def on_the_ball(obs, act):
    return act * np.minimum(1.0, 0.3 / np.maximum(np.linalg.norm(act, axis=-1, keepdims=True), 1e-12))


def within_the_ball(obs, act):
    return np.square(act).sum(-1) <= 0.3**2 * (1 + 1e-12)


ORACLE = Oracle(within_the_ball, project=on_the_ball, action_dim=3)
STEEP = Union([Orthoplex(None, 10, weights=[500, 300, 200]), L2Ball(0.01, [0.9, 0.9, 0.0])])
SETS = {
    "oracle": ORACLE,
    "union": STEEP,
    "intersection": Intersection([STEEP, Box([-0.9] * 3, [0.95] * 3)]),
    "polytope": LinearInequality([[1e3, 2e3, 3e3]], [100.0]),
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-0.4, 7.0)])
@pytest.mark.parametrize("wrap", ["project", "automdp"])
def test_projections_onto_the_border_survive_rounding(name, low, high, wrap):
    base, constraint = Point(low, high), SETS[name]
    audit = ExecutedActionAudit(base, constraint)
    env = (
        ActionConstraintWrapper(audit, constraint, "project")
        if wrap == "project"
        else AutoMDPWrapper(audit, constraint, 1.0, (0.5, 0.5), max_self_loops=1)
    )
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    # An interior-point method for each action of the intersection.
    steps = 16 if name == "intersection" else 120
    for _ in range(steps):
        *_, ended, _ = env.step(rng.uniform(-1, 1, 3))
        if ended:
            env.reset()
    assert audit.executed >= steps // 4
    assert audit.violations == env.violations == 0
    seen = env.range.from_env(np.array(base.received))
    assert constraint.contains(None, seen, 1e-6).all()


def test_what_no_float32_action_can_meet_is_refused_and_counted():
    # The sum must be 0.1 within 1e-12, far less than the spacing of float32.
    thin, base = SumEquality(0.1, 0.0, action_dim=3), Point()
    env = ActionConstraintWrapper(base, thin, "project", tol=1e-12)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    messages = []
    for _ in range(12):
        try:
            *_, info = env.step(rng.uniform(-1, 1, 3))
        except ExecutedViolationError as error:
            messages.append(str(error))
        else:
            assert thin.contains(None, info["executed_action"], 1e-12)
    assert len(messages) == env.violations > 0
    assert all("float32" in message for message in messages)
    assert len(base.received) == 12 - len(messages)


def test_settling_prefers_the_nearest_and_takes_batches():
    space = ActionRange.of(Point())
    rng = np.random.default_rng(1)
    points = ORACLE.project(None, rng.uniform(-1, 1, (200, 3)))
    moved = space.settled(ORACLE, None, points)
    native, seen = space.executed(moved)
    assert native.dtype == np.float32
    assert ORACLE.contains(None, seen).all()
    assert not ORACLE.contains(None, space.executed(points)[1]).all()
    assert np.abs(moved - points).max() < 1e-5
    inside = 0.5 * points
    assert space.settled(ORACLE, None, inside) is inside


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("method", ["aram", "spre", "dpro"])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-0.4, 7.0)])
def test_learners_send_the_spaces_dtype_and_only_feasible_actions(name, method, low, high):
    base, constraint = Point(low, high), SETS[name]
    env = ExecutedActionAudit(base, constraint)
    agent = make_agent(method, env, constraint, SMALL.replace(max_tries=4, target_entropy="dimension")).learn(60)
    assert env.executed == 60
    assert env.violations == agent.counters.violations == 0
    assert base.received[0].dtype == np.float32
    predicted = agent.predict(np.zeros((10, 3)), deterministic=False)
    assert predicted.dtype == np.float32
    assert all(base.action_space.contains(action) for action in predicted)
    assert constraint.contains(None, agent.envs.range.from_env(predicted)).all()


def test_every_executed_action_of_the_learner_is_audited():
    class Unsteady(L2Ball):
        """Calls everything feasible at the first look."""

        looks = 0

        def contains(self, obs, act, tol=1e-6):
            Unsteady.looks += 1
            honest = super().contains(obs, act, tol)
            return np.ones_like(honest) if np.ndim(act) == 3 else honest

    agent = ARAM(Target(), Unsteady(1e-4, action_dim=2), SMALL)
    with pytest.raises(ExecutedViolationError, match="not executed"):
        agent.learn(20)
    assert agent.counters.violations == 1
    assert agent.envs.envs[0].actions == []


class Whole(Target):
    def __init__(self):
        super().__init__()
        self.action_space = gymnasium.spaces.Box(-3, 3, (2,), np.int64)


def test_learners_refuse_what_the_wrappers_refuse():
    ball = L2Ball(0.2, action_dim=2)
    for wrap in (ActionConstraintWrapper, ARAM):
        with pytest.raises(TypeError, match="action space"):
            wrap(Whole(), ball)
    env = Target()
    with pytest.raises(ValueError, match="given twice"):
        ARAM([env, env], ball, SMALL)

"""Peers: what they store and execute, and that penalty, layer, multiplier and Frank-Wolfe step do their work."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
import torch
from learning_helpers import SMALL, Target
from octavo_aram.baselines import BASELINES
from octavo_aram.constraints import L2Ball, Oracle, Orthoplex, Union
from octavo_aram.evaluation import evaluate
from octavo_aram.methods import METHODS, agent_from_state, make_agent, method_label
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError

BALL = L2Ball(0.2, action_dim=2)


def stored_actions(agent, count):
    return agent.buffer.split(agent.buffer.rows(np.arange(count))).action


@pytest.mark.parametrize("method", BASELINES)
def test_every_method_executes_feasible_actions_alone(method):
    env = Target()
    agent = make_agent(method, env, BALL, SMALL)
    agent.learn(70)
    assert BALL.contains(None, np.array(env.actions), 1e-6).all()
    assert agent.counters.violations == 0
    assert agent.num_updates == 31
    assert np.isfinite(agent.core.critic.flat.detach().numpy()).all()


@pytest.mark.parametrize("method", ["spre+", "alpha", "radial", "optlayer", "nfwpo", "lagrangian"])
def test_sets_that_depend_on_the_state(method):
    agent = make_agent(method, Target(), Orthoplex([0, 1], 0.1), SMALL)
    agent.learn(60)
    assert agent.counters.violations == 0


@pytest.mark.parametrize(("method", "feasible"), [("spre", False), ("dpre", False), ("spro", True), ("dpro", True)])
def test_pre_methods_store_proposals_and_pro_methods_projections(method, feasible):
    agent = make_agent(method, Target(), BALL, SMALL)
    agent.learn(40)
    assert bool(BALL.contains(None, stored_actions(agent, 40)).all()) is feasible
    assert agent.counters.warmup.projections == 40 - agent.counters.warmup.first_valid > 0


def test_the_penalty_makes_proposals_feasible():
    rates = {}
    for method, weight in (("spre", 0.0), ("spre+", 10.0)):
        agent = make_agent(method, Target(), BALL, SMALL.replace(violation_weight=weight))
        agent.learn(240)
        draws = agent.proposals(np.random.default_rng(0).uniform(-1, 1, (200, 3)), None, 5).reshape(-1, 2)
        rates[method] = BALL.contains(None, draws).mean()
    assert rates["spre+"] > rates["spre"] + 0.2


def test_the_multiplier_grows_while_violations_last():
    agent = make_agent("lagrangian", Target(), BALL, SMALL.replace(multiplier_rate=0.1))
    agent.learn(100)
    assert agent.multiplier > 0.1
    copy = agent_from_state(agent.state_dict(), Target(), BALL)
    assert copy.multiplier == agent.multiplier


@pytest.mark.parametrize("method", ["alpha", "radial"])
def test_ray_layers_need_no_projection(method):
    agent = make_agent(method, Target(), BALL, SMALL)
    agent.learn(60)
    assert agent.counters.projections == 0
    assert BALL.contains(None, stored_actions(agent, 60)).all()


def test_projections_within_updates_are_counted():
    agent = make_agent("optlayer", Target(), BALL, SMALL)
    agent.learn(100)
    assert agent.counters.training.update_projections > 0
    assert agent.counters.projections > agent.counters.training.projections + agent.counters.warmup.projections - 1


def test_frank_wolfe_moves_the_actor_within_the_set():
    agent = make_agent("nfwpo", Target(), BALL, SMALL.replace(frank_wolfe_rate=0.05, exploration_noise=0.0))
    agent.learn(240)
    states = 2 * torch.rand(200, 3, generator=torch.Generator().manual_seed(0)) - 1
    raw = agent.core.mean_action(states, None).numpy()
    assert BALL.contains(None, raw, 0.1).mean() > 0.9


def test_unknown_methods_are_refused():
    with pytest.raises(InvalidValueError, match="unknown method"):
        make_agent("dqn", Target(), BALL, SMALL)
    with pytest.raises(InvalidStateError, match="no agent"):
        agent_from_state({"step": 1}, Target(), BALL)


def test_labels():
    assert method_label("aram") == "ARAM"
    assert method_label("spre+") == "SPre+"
    assert set(METHODS) == {"aram", *BASELINES}


def half(obs, act):
    return act[:, 0] < 0.5


@pytest.mark.parametrize("method", BASELINES)
def test_what_a_method_needs_of_the_set_is_known_before_learning(method):
    spec = BASELINES[method]
    oracle = Oracle(half, action_dim=2, interior=lambda obs: np.zeros(2))
    convex_only = spec.layer is not None or spec.frank_wolfe
    with pytest.raises(InvalidTypeError, match="convex" if convex_only else r"fallback='interior'"):
        make_agent(method, Target(), oracle, SMALL)
    union = Union([L2Ball(0.1, [-0.5, 0.0]), L2Ball(0.1, [0.5, 0.0])])
    if convex_only:
        with pytest.raises(InvalidTypeError, match="convex"):
            make_agent(method, Target(), union, SMALL)
    else:
        make_agent(method, Target(), union, SMALL).learn(5)


def test_a_preference_for_one_objective_is_told():
    agent = make_agent("spre", Target(), BALL, SMALL)
    with pytest.warns(UserWarning, match="does not read preference"):
        evaluate(agent, Target(), episodes=1, preference=(0.1, 0.9))
    with pytest.warns(UserWarning, match="does not read preference"):
        agent.predict(np.zeros(3), (0.1, 0.9))


def paths(state, above=""):
    for name, value in state.items():
        yield above + name
        if isinstance(value, dict):
            yield from paths(value, f"{above}{name}.")


@pytest.mark.parametrize("method", ["aram", "lagrangian", "dpre"])
def test_a_state_that_lacks_a_key_changes_nothing(method):
    saved = make_agent(method, Target(), BALL, SMALL).learn(41).state_dict()
    agent = make_agent(method, Target(), BALL, SMALL)
    before = agent.core.critic.flat.detach().clone()
    for path in paths(saved):
        if path in {"method", "constraint"}:
            continue
        state = copy.deepcopy(saved)
        *above, name = path.split(".")
        parent = state
        for key in above:
            parent = parent[key]
        del parent[name]
        with pytest.raises(InvalidStateError, match=rf"lacks '{re.escape(path)}'.*another version.*train anew"):
            agent.load_state_dict(state)
    assert torch.equal(agent.core.critic.flat, before)
    assert agent.num_steps == 0
    agent.load_state_dict(saved)
    assert agent.num_steps == 41

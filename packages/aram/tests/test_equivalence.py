from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_aram.equivalence import EquivalenceWarning, equivalence_holds, required_kappa, warn_unless_equivalent
from octavo_aram.tabular import TabularMDP, random_mdp, solve_augmented, solve_constrained


@pytest.mark.claim
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("reward_range", "kappa", "weight", "equal"),
    [
        ((0.0, 1.0), 0.2, 0.9, True),
        ((0.0, 1.0), 1.0, 0.5, True),
        ((0.0, 1.0), 0.0, 0.5, True),
        ((-1.0, 0.0), 0.2, 0.9, False),
        ((-1.0, 0.0), 10.0, 0.9, True),
    ],
)
def test_augmented_and_constrained_mdp(
    seed: int, reward_range: tuple[float, float], kappa: float, weight: float, equal: bool
) -> None:
    mdp = random_mdp(6, 5, reward_range=reward_range, gamma=0.9, seed=seed)
    constrained, augmented = solve_constrained(mdp), solve_augmented(mdp, kappa, (weight, 1 - weight))
    same = np.allclose(augmented.value, weight * constrained.value, atol=1e-9)
    feasible = mdp.feasible[np.arange(6), augmented.action].all()
    assert (same, feasible) == (equal, equal)
    # The condition is sufficient; here it is also what happens.
    assert equivalence_holds(kappa, reward_range[0], (weight, 1 - weight)) == equal


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    lowest=st.floats(-2, 1),
    weight=st.floats(0.05, 0.95),
    excess=st.floats(1e-3, 2),
    gamma=st.floats(0.1, 0.95),
)
def test_a_penalty_above_the_bound_is_enough(
    seed: int, lowest: float, weight: float, excess: float, gamma: float
) -> None:
    mdp = random_mdp(4, 4, reward_range=(lowest, lowest + 1), gamma=gamma, seed=seed)
    preference = (weight, 1 - weight)
    kappa = required_kappa(float(mdp.reward.min()), preference) + excess
    augmented = solve_augmented(mdp, kappa, preference)
    np.testing.assert_allclose(augmented.value, weight * solve_constrained(mdp).value, atol=1e-8)
    assert mdp.feasible[np.arange(4), augmented.action].all()


def test_an_infeasible_action_is_optimal_exactly_where_no_feasible_value_beats_looping() -> None:
    mdp = random_mdp(6, 5, reward_range=(-1.0, 0.0), seed=3)
    kappa, preference = 1.5, (0.7, 0.3)
    augmented = solve_augmented(mdp, kappa, preference)
    loop = -0.3 * kappa / (1 - mdp.gamma)
    best = np.where(mdp.feasible, augmented.action_value, -np.inf).max(1)
    infeasible = ~mdp.feasible[np.arange(6), augmented.action]
    some = ~mdp.feasible.all(1)
    assert (infeasible == ((best < loop) & some)).all()


def test_bounds() -> None:
    assert required_kappa(-1.0, (0.9, 0.1)) == pytest.approx(9.0)
    assert required_kappa(0, (0.9, 0.1)) == 0.0
    assert required_kappa(-1.0, (1.0, 0.0)) == float("inf")
    assert required_kappa(-1.0, (0.0, 1.0)) == 0.0
    assert equivalence_holds(9.001, -1.0, (0.9, 0.1))
    assert not equivalence_holds(9.0, -1.0, (0.9, 0.1))
    assert not equivalence_holds(1e9, -1.0, (1, 0))
    with pytest.warns(EquivalenceWarning, match="kappa > 9"):
        assert not warn_unless_equivalent(0.2, -1.0, (0.9, 0.1))
    with pytest.warns(EquivalenceWarning, match="weight above 0"):
        warn_unless_equivalent(0.2, -1.0, (1.0, 0.0))
    assert warn_unless_equivalent(0.2, 0.0, (0.9, 0.1))


@pytest.mark.parametrize("preference", [(0.5, 0.6), (-0.5, 1.5), (1.0,), (float("nan"), 1.0), "both", (0.2, 0.3, 0.5)])
def test_preferences_off_the_simplex_are_refused(preference: Any) -> None:
    with pytest.raises(ValueError, match="preference"):
        equivalence_holds(1.0, 0.0, preference)


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="kappa"):
        equivalence_holds(-0.1, 0.0, (0.5, 0.5))
    with pytest.raises(ValueError, match="kappa"):
        equivalence_holds(float("nan"), 0.0, (0.5, 0.5))
    with pytest.raises(ValueError, match="NaN"):
        required_kappa(float("nan"), (0.5, 0.5))
    with pytest.raises(TypeError, match="reward_min='a'"):
        required_kappa("a", (0.5, 0.5))
    with pytest.raises(TypeError, match="kappa='a'"):
        equivalence_holds("a", -1.0, (0.5, 0.5))
    assert required_kappa(-np.inf, (0.5, 0.5)) == np.inf
    mdp = random_mdp()
    with pytest.raises(ValueError, match="kappa"):
        solve_augmented(mdp, -1.0, (0.5, 0.5))
    with pytest.raises(ValueError, match="empty feasible set"):
        TabularMDP(mdp.transition, mdp.reward, np.zeros_like(mdp.feasible), 0.9)
    with pytest.raises(ValueError, match="gamma"):
        TabularMDP(mdp.transition, mdp.reward, mdp.feasible, 1.0)
    with pytest.raises(ValueError, match="probabilities"):
        TabularMDP(mdp.transition * 2, mdp.reward, mdp.feasible, 0.9)

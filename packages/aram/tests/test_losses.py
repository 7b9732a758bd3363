"""Golden values of the reference losses, and what the choice of the critic's vector means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from octavo_aram.losses import critic_loss, policy_loss, td_target

DATA = np.load(Path(__file__).parent / "data" / "mosac_losses.npz")


def tensor(name):
    return torch.from_numpy(np.array(DATA[name]))


def test_golden_target():
    target = td_target(
        tensor("rewards"),
        1 - tensor("dones"),
        tensor("next_q"),
        tensor("next_entropy"),
        tensor("pref"),
        discount=float(DATA["gamma"]),
        temperature=float(DATA["alpha"]),
    )
    torch.testing.assert_close(target, tensor("target_q"), rtol=1e-9, atol=0)


def test_golden_critic_losses():
    target = td_target(
        tensor("rewards"),
        1 - tensor("dones"),
        tensor("cl_next_q"),
        tensor("cl_next_entropy"),
        tensor("pref"),
        discount=float(DATA["gamma"]),
        temperature=tensor("alpha"),
    )
    losses = critic_loss(tensor("cl_cur_q"), target, tensor("pref"))
    torch.testing.assert_close(losses, torch.stack([tensor("q1_loss"), tensor("q2_loss")]), rtol=1e-9, atol=0)


def test_golden_policy_loss():
    loss = policy_loss(tensor("pl_q"), tensor("pl_entropy"), tensor("pref"), temperature=float(DATA["alpha"]))
    torch.testing.assert_close(loss, tensor("policy_loss"), rtol=1e-9, atol=0)


def test_the_whole_vector_of_the_smaller_critic_is_taken():
    # Scalarised with (.5, .5): critic 0 is smaller at the first state, critic 1 at the second.
    values = torch.tensor([[[0.0, 4.0], [9.0, 1.0]], [[10.0, 2.0], [1.0, 3.0]]], dtype=torch.float64)
    zero = torch.zeros(2, 1, dtype=torch.float64)
    target = td_target(
        torch.zeros(2, 2, dtype=torch.float64),
        torch.ones(2, 1, dtype=torch.float64),
        values,
        zero,
        torch.tensor([0.5, 0.5], dtype=torch.float64),
        discount=1.0,
        temperature=0.0,
    )
    assert target.tolist() == [[0.0, 4.0], [1.0, 3.0]]


@pytest.mark.parametrize("weight", [0.1, 0.5, 0.9])
def test_entropy_counts_once_after_scalarising(weight):
    preference = torch.tensor([weight, 1 - weight], dtype=torch.float64)
    values, entropy = torch.randn(2, 5, 2, dtype=torch.float64), torch.randn(5, 1, dtype=torch.float64)
    zeros, ones = torch.zeros(5, 2, dtype=torch.float64), torch.ones(5, 1, dtype=torch.float64)
    kind = {"discount": 0.9, "preference": preference}
    with_it = td_target(zeros, ones, values, entropy, temperature=0.3, **kind)
    without = td_target(zeros, ones, values, entropy, temperature=0.0, **kind)
    torch.testing.assert_close((with_it - without) @ preference, 0.9 * 0.3 * entropy[:, 0])

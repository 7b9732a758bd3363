"""Replay memory: rings, shares of a batch, and the checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from octavo_aram.buffers import DualReplayBuffer, memory_text
from octavo_core.errors import InvalidStateError, InvalidValueError


def buffer(capacity=8, augmented=6):
    return DualReplayBuffer(capacity, augmented, observations=2, actions=1, dtype=torch.float64)


def fill(memory, count, start=0):
    values = np.arange(start, start + count, dtype=float)
    obs = np.stack([values, -values], 1)
    memory.add(obs, values[:, None], np.stack([values, 0 * values], 1), obs + 0.5, values % 2 == 0)


@given(st.lists(st.integers(1, 20), max_size=6), st.integers(1, 9))
def test_a_ring_holds_the_last_entries(counts, capacity):
    memory = buffer(capacity)
    written = 0
    for count in counts:
        fill(memory, count, written)
        written += count
    held = sorted(memory.observations()[:, 0].tolist())
    assert held == [float(v) for v in range(max(0, written - capacity), written)]


def test_columns_come_back_as_they_went_in():
    memory = buffer()
    fill(memory, 3)
    memory.add_rejected(np.array([[7.0, 8.0]]), np.array([[9.0]]), np.array([0.0, -2.0]))
    real = memory.split(memory.rows(np.array([1])))
    assert real.obs.tolist() == [[1.0, -1.0]]
    assert real.action.tolist() == [[1.0]]
    assert real.state_action.tolist() == [[1.0, -1.0, 1.0]]
    assert real.next_obs.tolist() == [[1.5, -0.5]]
    assert real.rewards.tolist() == [[1.0, 0.0]]
    assert real.continues.tolist() == [[1.0]]
    assert memory.split(memory.rows(np.array([2]))).continues.tolist() == [[0.0]]
    loop = memory.split(memory.rows(np.array([memory.capacity])))
    assert torch.equal(loop.obs, loop.next_obs)
    assert loop.rewards.tolist() == [[0.0, -2.0]]
    assert loop.continues.tolist() == [[1.0]]


@pytest.mark.parametrize(("held", "share", "expected"), [(0, 0.2, 0), (1, 0.25, 2), (50, 0.25, 2), (50, 0.2, 1)])
def test_share_of_rejected_entries(held, share, expected):
    memory = buffer(augmented=100)
    fill(memory, 5)
    memory.add_rejected(np.zeros((held, 2)), np.zeros((held, 1)), np.array([0.0, -1.0]))
    indices = memory.indices(8, share, np.random.default_rng(0))
    # floor(share * batch), and no more than are held.
    assert (indices >= memory.capacity).sum() == min(expected, held)
    assert indices[indices < memory.capacity].max() < 5
    assert len(indices) == 8


def test_state_round_trip():
    memory, other = buffer(), buffer()
    fill(memory, 11)
    memory.add_rejected(np.ones((9, 2)), np.ones((9, 1)), np.array([0.0, -1.0]))
    other.load_state_dict(memory.state_dict())
    assert torch.equal(other._table, memory._table)
    fill(memory, 2, 50)
    fill(other, 2, 50)
    assert torch.equal(other._table, memory._table)


def test_a_state_of_another_shape_is_refused():
    memory = buffer()
    fill(memory, 3)
    with pytest.raises(InvalidStateError, match="saved buffers"):
        DualReplayBuffer(8, 6, observations=3, actions=1).load_state_dict(memory.state_dict())


def test_memory_is_reported():
    memory = DualReplayBuffer(1_000_000, 1_000_000, observations=17, actions=6)
    assert memory.nbytes == 2_000_000 * (2 * 17 + 6 + 2 + 1) * 4
    assert memory_text(memory.nbytes) == "328 MiB"
    assert memory_text(12) == "12 B"
    assert memory_text(5 * 2**30) == "5 GiB"


def test_capacity_must_be_positive():
    with pytest.raises(InvalidValueError, match="capacities"):
        buffer(capacity=0)

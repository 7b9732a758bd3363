from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_prompt_turing import max_length
from octavo_prompt_turing.attention import deficit_choice, naive_choice, normalise_direction, pair_norms
from octavo_prompt_turing.blocks import ScoreShape
from octavo_prompt_turing.positional import positional_features


def directions(cells: torch.Tensor, position: int) -> torch.Tensor:
    """Unit vectors of cells as the model makes them: from means over a prefix."""
    count = torch.tensor(float(position), dtype=torch.float64)
    return normalise_direction(torch.stack([cells.double() / count, (1 / count).expand(cells.shape)], dim=-1))


def test_every_cell_within_the_guarantee_has_its_own_float() -> None:
    limit = max_length("deficit64")
    assert limit is not None
    cells = torch.arange(-limit, limit + 1)
    cosines = directions(cells, 3 * limit)[:, 0]
    assert bool((cosines.diff() > 0).all())


@pytest.mark.parametrize("position", [1, 7, 1_000, 99_991, 131_071])
def test_one_cell_has_one_direction_at_every_position(position: int) -> None:
    cells = torch.arange(-min(position, 5_000), min(position, 5_000) + 1)
    assert torch.equal(directions(cells, position), directions(cells, 131_072))


def test_zero_stays_zero_and_infinity_is_a_direction() -> None:
    pairs = torch.tensor([[0.0, 0.0], [3.0, 0.0], [-2.0, 0.0]], dtype=torch.float64)
    assert normalise_direction(pairs).tolist() == [[0, 0], [1, 0], [-1, 0]]


def test_positional_features_keep_their_digits() -> None:
    mpmath = pytest.importorskip("mpmath")
    positions = [1, 2, 50, 10_000, 131_072]
    found = positional_features(torch.tensor(positions))
    with mpmath.workprec(300):
        for i, row in zip(map(mpmath.mpf, positions), found.tolist(), strict=True):
            pe1 = 1 - (i * (i + 1) + 1) / mpmath.sqrt((i * i + 1) * ((i + 1) ** 2 + 1))
            wanted = [1 / i, pe1, i / mpmath.sqrt(i * i + 1), 1 / mpmath.sqrt(i * i + 1)]
            assert all(abs(ours / exact - 1) < 1e-15 for ours, exact in zip(row, wanted, strict=True))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(6, 131_000))
def test_the_latest_write_to_the_cell_is_found_wherever_it_is(seed: int, offset: int) -> None:
    """A tape look-up among 40 keys at the end of a long sequence, against integers."""
    generator = np.random.default_rng(seed)
    count = 40
    cells = torch.tensor(generator.integers(-3, 4, count) + generator.integers(-offset, offset))
    written = torch.tensor(generator.integers(0, 2, count))
    positions = torch.arange(offset + 1, offset + count + 1)
    wanted = [k for k in range(count) if written[k] and cells[k] == cells[-1]]
    if not wanted:
        return
    shape = ScoreShape(1, 1, 1)
    features = positional_features(positions)
    unit = directions(cells, offset + count)
    query = torch.stack([torch.tensor(1.0).double(), features[-1, 1], *unit[-1]])[None, None, None]
    key = torch.stack([written.double(), -features[:, 0], unit[:, 0], unit[:, 1]])[None, None]
    chosen = deficit_choice(
        query, pair_norms(query, shape), key, pair_norms(key.mT, shape).mT, None, shape
    )[0, 0, 0]  # fmt: skip
    assert chosen.nonzero().flatten().tolist() == [wanted[-1]]


def test_the_naive_choice_merges_neighbours_far_out() -> None:
    positions = torch.arange(1_000, 1_040)
    features = positional_features(positions)
    ones = torch.ones(40, dtype=torch.float64)
    query = torch.stack([ones[0], features[-1, 1]])[None, None, None]
    key = torch.stack([ones, -features[:, 0]])[None, None]
    assert int(naive_choice(query, key, None, 4e-15).sum()) > 1
    shape = ScoreShape(1, 1, 0)
    norms = torch.zeros(1, 1, 1, 0, dtype=torch.float64)
    exact = deficit_choice(query, norms, key, torch.zeros(1, 1, 0, 40, dtype=torch.float64), None, shape)
    assert exact[0, 0, 0].nonzero().flatten().tolist() == [39]


def test_scores_are_clipped_at_two() -> None:
    shape = ScoreShape(1, 0, 0)
    query = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    key = torch.tensor([1.0, 2.0, 3.0]).double()[None, None, None]
    norms = torch.zeros(1, 1, 1, 0, dtype=torch.float64)
    chosen = deficit_choice(query, norms, key, torch.zeros(1, 1, 0, 3, dtype=torch.float64), None, shape)
    assert chosen.flatten().tolist() == [False, True, True]
    assert naive_choice(query, key, None, 1e-9).flatten().tolist() == [False, True, True]

"""Which losses M-ConFIG refreshes."""

from __future__ import annotations

import numpy as np
import pytest
from octavo_config_grad.selection import LossSelector
from octavo_core.errors import InvalidTypeError, InvalidValueError


def take(selector, count):
    chosen = []
    for _ in range(count):
        chosen.append(selector.peek())
        selector.advance()
    return chosen


def test_round_robin_goes_on_where_it_ended():
    assert take(LossSelector(5, updates_per_step=2), 4) == [[0, 1], [2, 3], [4, 0], [1, 2]]


def test_selection_stays_until_advanced():
    selector = LossSelector(4, select="random", updates_per_step=2)
    first = selector.peek()
    assert selector.peek() == first
    selector.advance()
    selector.advance()  # nothing is pending
    assert take(selector, 3) == take_after(first)


def take_after(first):
    selector = LossSelector(4, select="random", updates_per_step=2)
    chosen = take(selector, 4)
    assert chosen[0] == first
    return chosen[1:]


def test_random_draws_distinct_losses_reproducibly_and_evenly():
    chosen = take(LossSelector(5, select="random", updates_per_step=3, seed=1), 1000)
    assert all(len(set(indices)) == 3 for indices in chosen)
    assert chosen[:50] == take(LossSelector(5, select="random", updates_per_step=3, seed=1), 50)
    assert chosen[:50] != take(LossSelector(5, select="random", updates_per_step=3, seed=2), 50)
    counts = np.bincount(np.concatenate(chosen))
    assert counts.min() > 520  # 600 expected; 5 standard deviations are 77


def test_function_selects_any_number():
    selector = LossSelector(3, select=lambda count, num_losses: np.arange(count % num_losses + 1))
    assert take(selector, 4) == [[0], [0, 1], [0, 1, 2], [0]]


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ([0, 0], InvalidValueError, "select returned: index 0 is repeated"),
        ([3], InvalidValueError, "select returned: index 3 is out of range; give 0 to 2"),
        (["0"], InvalidTypeError, "select returned: '0' is a str"),
        (0, InvalidTypeError, "select returned 0, a int; it must return the indices"),
    ],
)
def test_bad_answers_of_a_function_are_named(returned, error, message):
    with pytest.raises(error, match=message):
        LossSelector(3, select=lambda count, num_losses: returned).peek()

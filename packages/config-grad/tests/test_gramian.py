from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_config_grad.gramian import accumulation, gramian, scaled_gramian, weighted_sum
from octavo_config_grad.update import config_update
from octavo_core.errors import InvalidTypeError, InvalidValueError

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def random_matrix(num_losses, num_parameters, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_losses, num_parameters, generator=generator, dtype=torch.float64).to(dtype)


def as_lists(matrix, shapes):
    sizes = [int(np.prod(shape)) for shape in shapes]
    return [[part.reshape(shape) for part, shape in zip(row.split(sizes), shapes, strict=True)] for row in matrix]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk_elements", [None, 1, 7, 100])
def test_gramian_is_the_float64_product_in_every_form_and_chunking(dtype, chunk_elements):
    matrix = random_matrix(3, 60, dtype=dtype)
    expected = matrix.double() @ matrix.double().T
    for gradients in (matrix, list(matrix), as_lists(matrix, [(4, 5), (), (0,), (39,)])):
        product = gramian(gradients, chunk_elements=chunk_elements)
        assert product.dtype == torch.float64
        torch.testing.assert_close(product, expected, rtol=1e-13, atol=1e-12)


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    num_losses=st.integers(1, 5),
    chunk_elements=st.integers(1, 200),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_grouping_of_parameters_does_not_change_the_gramian(sizes, num_losses, chunk_elements, seed):
    matrix = random_matrix(num_losses, sum(sizes), seed)
    rows = as_lists(matrix, [(size,) for size in sizes])
    product = gramian(rows, chunk_elements=chunk_elements)
    torch.testing.assert_close(product, matrix @ matrix.T, rtol=1e-12, atol=1e-11)


def test_dtypes_may_differ_between_parameters_of_a_loss():
    first, second = random_matrix(3, 8, dtype=torch.bfloat16), random_matrix(3, 5, seed=1, dtype=torch.float32)
    rows = [[first[loss], second[loss]] for loss in range(3)]
    exact = torch.cat([first.double(), second.double()], dim=1)
    torch.testing.assert_close(gramian(rows), exact @ exact.T, rtol=1e-13, atol=1e-13)
    alpha = torch.tensor([1.5, -0.25, 3.0], dtype=torch.float64)
    update = weighted_sum(rows, alpha)
    assert [part.dtype for part in update] == [torch.bfloat16, torch.float32]
    torch.testing.assert_close(update[0], (alpha @ first.double()).bfloat16())
    torch.testing.assert_close(update[1], (alpha @ second.double()).float(), rtol=1e-6, atol=1e-6)


def test_memory_layout_of_a_gradient_does_not_matter():
    weight = random_matrix(2, 48).reshape(2, 2, 3, 2, 4)
    rows = [[weight[0]], [weight[1].to(memory_format=torch.channels_last)]]
    flat = weight.reshape(2, -1)
    torch.testing.assert_close(gramian(rows), flat @ flat.T)
    torch.testing.assert_close(gramian(flat.T.contiguous().T), flat @ flat.T)
    alpha = torch.tensor([1.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(weighted_sum(rows, alpha)[0], weight[0] + 2.0 * weight[1])


def test_nearly_opposite_float32_gradients_keep_their_angle():
    # In a float32 Gramian 1 + cos = 5e-9 would be pure rounding error.
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(100_000, generator=generator)
    other = -base + 1e-4 * torch.randn(100_000, generator=generator)
    exact = np.stack([base.numpy(), other.numpy()]).astype(np.longdouble)
    product = gramian(torch.stack([base, other])).numpy()
    reference = exact @ exact.T

    def one_plus_cosine(entries):
        return 1.0 + entries[0, 1] / np.sqrt(entries[0, 0] * entries[1, 1])

    assert float(one_plus_cosine(product)) == pytest.approx(float(one_plus_cosine(reference)), rel=1e-6)


def test_float32_norms_from_1e_30_to_1e30_survive():
    rows = torch.tensor([[3e-30, 4e-30], [3e30, -4e30]])
    product = gramian(rows)
    expected = torch.tensor([[25e-60, -7.0], [-7.0, 25e60]], dtype=torch.float64)
    torch.testing.assert_close(product, expected, rtol=1e-6, atol=0.0)


def test_scaled_gramian_keeps_extreme_float64_norms_and_leaves_others_alone():
    ordinary = random_matrix(3, 10)
    product, unit = scaled_gramian(ordinary)
    assert unit == 1.0
    torch.testing.assert_close(product, gramian(ordinary), rtol=0.0, atol=0.0)
    for factor in (1e-200, 1e200):
        product, unit = scaled_gramian(ordinary * factor)
        torch.testing.assert_close(product.diagonal().sqrt() * unit, ordinary.norm(dim=1) * factor)
    with_zero = torch.cat([ordinary, torch.zeros(1, 10)])
    assert scaled_gramian(with_zero)[1] == 1.0
    spread = ordinary[:2] * torch.tensor([[1e-140], [1e140]], dtype=torch.float64)
    product, unit = scaled_gramian(spread * 1e-20)
    torch.testing.assert_close(product.diagonal().sqrt() * unit, spread.norm(dim=1) * 1e-20, rtol=1e-6, atol=0.0)
    product, unit = scaled_gramian(ordinary[:2] * torch.tensor([[1e-300], [1e300]], dtype=torch.float64))
    assert torch.isfinite(product).all()
    assert float(product[1, 1].sqrt()) * unit == pytest.approx(float(ordinary[1].norm()) * 1e300)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_gradient_that_is_not_finite_shows_on_the_diagonal_alone(bad):
    matrix = random_matrix(3, 20, dtype=torch.float32)
    matrix[1, 4] = bad
    diagonal = gramian(matrix).diagonal()
    assert torch.isfinite(diagonal).tolist() == [True, False, True]
    assert torch.isfinite(scaled_gramian(matrix.double())[0].diagonal()).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", DTYPES)
def test_weighted_sum_in_every_form(dtype):
    matrix = random_matrix(4, 33, dtype=dtype)
    alpha = torch.tensor([0.3, -1.7, 0.0, 2.2], dtype=torch.float64)
    expected = (alpha @ matrix.double()).to(dtype)
    tolerance = {torch.float64: 1e-14, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    vector = weighted_sum(matrix, alpha)
    torch.testing.assert_close(vector, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(weighted_sum(list(matrix), alpha), expected, rtol=tolerance, atol=tolerance)
    parts = weighted_sum(as_lists(matrix, [(3, 4), (), (20,)]), alpha)
    assert [tuple(part.shape) for part in parts] == [(3, 4), (), (20,)]
    torch.testing.assert_close(
        torch.cat([part.reshape(-1) for part in parts]), expected, rtol=tolerance, atol=tolerance
    )


def test_half_precision_accumulates_in_float32():
    # Summed in bfloat16, 256 + 1 + ... + 1 would stay at 256.
    matrix = torch.cat([torch.full((1, 3), 256.0), torch.ones(64, 3)]).bfloat16()
    alpha = torch.ones(65, dtype=torch.float64)
    for update in (weighted_sum(matrix, alpha), weighted_sum([[row] for row in matrix], alpha)[0]):
        assert update.tolist() == [320.0] * 3


def test_coefficients_beyond_float32_are_applied():
    matrix = torch.tensor([[1e-30, 2e-30], [1e30, -1e30]])
    alpha = torch.tensor([1e60, 1e-60], dtype=torch.float64)
    expected = torch.tensor([1e30, 2e30])
    torch.testing.assert_close(weighted_sum(matrix, alpha), expected)
    torch.testing.assert_close(weighted_sum([[row] for row in matrix], alpha)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_float64_accumulation_survives_cancellation_across_chunks(dtype):
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(150_000, generator=generator).to(dtype)
    difference = (1e-2 * torch.randn(150_000, generator=generator)).to(dtype)
    matrix = torch.stack([base, difference - base])
    alpha = torch.tensor([1.0, 1.0 + 1e-9], dtype=torch.float64)
    expected = (alpha @ matrix.double()).to(dtype)
    assert torch.equal(weighted_sum(matrix, alpha, accumulate=torch.float64), expected)
    rows = [[row.reshape(100, 1500)] for row in matrix]
    assert torch.equal(weighted_sum(rows, alpha, accumulate=torch.float64)[0].reshape(-1), expected)


def test_accumulation_follows_the_cancellation():
    base = torch.tensor([1.0, 2.0], dtype=torch.float64)
    alpha = torch.ones(2, dtype=torch.float64)
    assert accumulation(gramian(torch.stack([base, -base * 0.5])), alpha)[0] is None
    assert accumulation(gramian(torch.stack([base, -base * 0.999])), alpha)[0] == torch.float64


def test_a_loss_with_coefficient_zero_is_not_read():
    matrix = torch.tensor([[1.0, 2.0], [torch.nan, torch.inf]])
    for alpha, expected in ((torch.tensor([2.0, 0.0]), [2.0, 4.0]), (torch.zeros(2), [0.0, 0.0])):
        assert weighted_sum(matrix, alpha).tolist() == expected
        assert weighted_sum([[row] for row in matrix], alpha)[0].tolist() == expected


def test_inputs_are_left_alone_and_results_are_new():
    matrix = random_matrix(2, 5).requires_grad_()
    alpha = torch.tensor([1.0, 0.0], dtype=torch.float64)
    before = matrix.detach().clone()
    for update in (weighted_sum(matrix, alpha), weighted_sum([[row] for row in matrix], alpha)[0]):
        assert not update.requires_grad
        update.zero_()
    torch.testing.assert_close(matrix.detach(), before, rtol=0.0, atol=0.0)
    assert not gramian(matrix).requires_grad


def test_autocast_does_not_round_the_result():
    matrix = random_matrix(3, 50, dtype=torch.float32)
    alpha = torch.tensor([0.1, 0.7, -1.3], dtype=torch.float64)
    expected_sum, expected_product = weighted_sum(matrix, alpha), gramian(matrix)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(weighted_sum(matrix, alpha), expected_sum, rtol=0.0, atol=0.0)
        torch.testing.assert_close(gramian(matrix), expected_product, rtol=0.0, atol=0.0)


VALID = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("gradients", "error", "message"),
    [
        ([], InvalidValueError, "at least one loss"),
        (torch.empty(0, 3), InvalidValueError, "at least one loss"),
        ([[], []], InvalidValueError, "one tensor per parameter"),
        (torch.ones(3), InvalidValueError, "matrix"),
        (torch.ones(2, 3, 4), InvalidValueError, "matrix"),
        (VALID.long(), InvalidTypeError, "int64"),
        (VALID.to(torch.complex64), InvalidTypeError, "complex64"),
        ([[VALID[0]], [VALID[0].to(torch.complex64)]], InvalidTypeError, "loss 1 for parameter 0"),
        ([[VALID[0]], [VALID[0, :2]]], InvalidValueError, "loss 1 for parameter 0"),
        ([VALID[0], VALID[0, :2]], InvalidValueError, "loss 1"),
        ([[VALID[0], VALID[0]], [VALID[0], VALID]], InvalidValueError, "loss 1 for parameter 1"),
        ([[VALID[0]], [VALID[0], VALID[0]]], InvalidValueError, "loss 1 has 2 tensors"),
        ([[VALID[0]], [VALID[0].double()]], InvalidValueError, "float64"),
        ([[VALID[0]], [None]], InvalidTypeError, "loss 1 for parameter 0 is NoneType"),
        ([[None], [VALID[0]]], InvalidTypeError, "loss 0 for parameter 0 is NoneType"),
        ([[VALID], [VALID.to_sparse()]], InvalidTypeError, "sparse"),
    ],
)
def test_bad_gradients_are_refused_by_name(gradients, error, message):
    with pytest.raises(error, match=message):
        gramian(gradients)
    with pytest.raises(error, match=message):
        weighted_sum(gradients, torch.ones(2))


def test_bad_options_are_refused():
    with pytest.raises(InvalidValueError, match="chunk_elements=0"):
        gramian(VALID, chunk_elements=0)
    with pytest.raises(InvalidValueError, match="2 losses"):
        weighted_sum(VALID, torch.ones(3))


MEMORY_SCRIPT = """
import resource, torch
from octavo_config_grad.gramian import gramian
from octavo_config_grad.update import config_update
torch.set_num_threads(1)
num_parameters = 20_000_000
generator = torch.Generator().manual_seed(0)
matrix = torch.randn(3, num_parameters, generator=generator)
matrix -= 1.3 * matrix.mean(dim=0)
config_update(matrix[:, :1000])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
update = config_update(matrix)
extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
cosines = torch.cosine_similarity(matrix.double(), update.double(), dim=1)
norms = matrix.double().norm(dim=1)
pairs = gramian(matrix) / torch.outer(norms, norms)
expected = torch.linalg.inv(pairs).sum() ** -0.5
assert pairs[0, 1] < -0.1, pairs
assert torch.allclose(cosines, expected.expand(3), rtol=1e-5), (cosines, expected)
print(extra - update.nbytes / 2**20)
"""


@pytest.mark.slow
@pytest.mark.claim
def test_twenty_million_parameters_are_right_within_64_mib_of_extra_memory():
    result = subprocess.run([sys.executable, "-c", MEMORY_SCRIPT], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) <= 64.0


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        (None, "gradients is a NoneType: give a matrix"),
        ((row for row in torch.eye(2)), "gradients is a generator: give a matrix"),
        ("ab", "gradients is a str: give a matrix"),
        ({0: torch.ones(2)}, "gradients is a dict: give a matrix"),
        ([[torch.ones(2)], iter([torch.ones(2)])], "the gradient of loss 1 is a list_iterator: give a list"),
    ],
)
def test_what_is_no_gradient_is_named(gradients, message):
    with pytest.raises(InvalidTypeError, match=message):
        config_update(gradients)

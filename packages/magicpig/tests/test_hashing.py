from __future__ import annotations

import pytest
import torch
from magicpig_helpers import available_kernels
from octavo_core.errors import InvalidValueError
from octavo_magicpig import draw_planes, simhash_codes
from octavo_magicpig.kernels import resolve


def test_bits_are_signs_with_the_lowest_first() -> None:
    planes = torch.eye(4)
    codes = simhash_codes(torch.tensor([[1.0, -1.0, 1.0, 1.0], [-1.0, 1.0, 0.0, -2.0]]), planes, 2, 2)
    assert codes.tolist() == [[0b01, 0b11], [0b10, 0b00]]


@pytest.mark.parametrize("dim", [8, 64, 80, 128, 129])
@pytest.mark.parametrize("bits", [1, 7, 10, 16])
def test_kernels_hash_alike_whatever_comes_together(dim: int, bits: int) -> None:
    planes = draw_planes(dim, bits, 30, seed=3)
    rows = torch.randn(101, dim, generator=torch.Generator().manual_seed(1)).bfloat16()
    mean = rows.float().mean(0)
    expected = simhash_codes(rows.float() - mean, planes.matrix[0], bits, 30)
    for name in available_kernels():
        kernel = resolve(name)
        codes, norms = kernel.hash_rows(rows, mean, planes, 0)
        assert torch.equal(codes.t().long() & 0xFFFF, expected)
        assert torch.allclose(norms, (rows.float() - mean).norm(dim=1), rtol=1e-6)
        for size in (1, 7, 64):
            parts = [kernel.hash_rows(part, mean, planes, 0)[0] for part in rows.split(size)]
            assert torch.equal(torch.cat(parts, 1), codes)


@pytest.mark.parametrize("threads", [1, 2])
def test_exact_signs_next_to_zero(threads: int) -> None:
    # Vectors orthogonal to a plane up to rounding: any order of summation in float32 gives another sign.
    planes = draw_planes(128, 4, 8, seed=0)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 128, generator=generator)
    plane = planes.matrix[0, :, 0]
    rows -= (rows @ plane / plane.dot(plane))[:, None] * plane
    expected = (rows.double() @ planes.matrix[0].double()) > 0
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for name in available_kernels():
            codes, _ = resolve(name).hash_rows(rows, None, planes, 0)
            bits = (codes.long()[..., None] >> torch.arange(4)) & 1
            assert torch.equal(bits.permute(1, 0, 2).reshape(64, 32).bool(), expected)
    finally:
        torch.set_num_threads(before)


def test_reduced_matmul_precision_does_not_change_codes() -> None:
    planes = draw_planes(64, 8, 16)
    rows = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    expected = simhash_codes(rows, planes.matrix[0], 8, 16)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert torch.equal(simhash_codes(rows, planes.matrix[0], 8, 16), expected)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(simhash_codes(rows, planes.matrix[0], 8, 16), expected)
    finally:
        torch.set_float32_matmul_precision(before)


def test_planes_depend_on_seed_and_layer_only() -> None:
    first, again = draw_planes(16, 4, 5, seed=1, layer=2), draw_planes(16, 4, 5, seed=1, layer=2)
    assert torch.equal(first.matrix, again.matrix)
    assert not torch.equal(first.matrix, draw_planes(16, 4, 5, seed=1, layer=3).matrix)
    assert draw_planes(16, 4, 5, sets=3).matrix.shape == (3, 16, 20)


@pytest.mark.parametrize("dim", [64, 80, 128])
def test_structured_planes_follow_the_collision_law(dim: int) -> None:
    # P[same sign] = 1 - angle / pi; the pairs average over many planes of many draws.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, dim, generator=generator)
    for weight in (0.0, 0.3, 1.0, 3.0):
        y = weight * x + torch.randn(200, dim, generator=generator)
        angle = torch.arccos(torch.nn.functional.cosine_similarity(x, y).clamp(-1, 1)) / torch.pi
        same = torch.stack(
            [
                ((x @ planes > 0) == (y @ planes > 0)).float().mean(1)
                for seed in range(10)
                for planes in [draw_planes(dim, 10, 50, seed=seed, kind="hadamard").matrix[0]]
            ]
        ).mean(0)
        assert float((same - (1 - angle)).abs().mean()) < 0.012


@pytest.mark.parametrize(("size", "columns"), [(3, 6), (4, 5)])
def test_misfits_are_refused(size: int, columns: int) -> None:
    with pytest.raises(InvalidValueError, match="shape must be"):
        simhash_codes(torch.zeros(2, size), torch.zeros(4, columns), 2, 3)


@pytest.mark.parametrize("sizes", [(0, 2, 3), (4, 0, 3), (4, 2, 0)])
def test_impossible_planes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidValueError, match="1 or more"):
        draw_planes(*sizes)
    with pytest.raises(InvalidValueError, match="planes='sparse'"):
        draw_planes(4, 2, 3, kind="sparse")


@pytest.mark.parametrize("kind", ["gaussian", "hadamard"])
def test_planes_are_those_of_the_seed_whatever_the_surroundings(kind: str) -> None:
    expected = draw_planes(20, 3, 30, seed=5, kind=kind).matrix
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert torch.equal(draw_planes(20, 3, 30, seed=5, kind=kind).matrix, expected)
    finally:
        torch.set_default_dtype(before)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(draw_planes(20, 3, 30, seed=5, kind=kind).matrix, expected)


def test_codes_that_do_not_fit_are_refused() -> None:
    vectors = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    planes = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    assert int(simhash_codes(vectors, planes[:, :63], 63, 1).min()) >= 0
    with pytest.raises(InvalidValueError, match="key_bits=64"):
        simhash_codes(vectors, planes, 64, 1)
    for bad in (torch.nan, torch.inf):
        spoiled = vectors.clone()
        spoiled[1, 2] = bad
        with pytest.raises(InvalidValueError, match="vectors hold"):
            simhash_codes(spoiled, planes, 4, 16)
        with pytest.raises(InvalidValueError, match="planes hold"):
            simhash_codes(vectors, planes * bad, 4, 16)

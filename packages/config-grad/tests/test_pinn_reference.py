"""Reference solutions, computed and read from files."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_config_grad.pinn import MLP, Burgers, Reference, cole_hopf, etdrk4, load_reference, split_step
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingFileError
from scipy.io import savemat

X, T = np.linspace(-1, 1, 6), np.linspace(0, 0.9, 4)
GRID = np.meshgrid(X, T, indexing="ij")
U = cole_hopf(*GRID)


@pytest.mark.parametrize(
    ("t", "far", "near"),
    [(0.25, 0.8031984208, 0.5315978594), (0.5, 0.5927695344, 0.9789821784), (1.0, 0.3761813957, 0.7000270809)],
)
def test_burgers_check_values(t, far, near):
    found = cole_hopf(np.array([-0.5, -0.05]), np.array([t, t]))
    np.testing.assert_allclose(found, [far, near], atol=5e-11)


@settings(deadline=None, max_examples=25)
@given(x=st.floats(-1, 1), t=st.floats(0, 1))
def test_burgers_is_odd_bounded_and_converged(x, t):
    value, mirrored = cole_hopf(np.array([x, -x]), np.array([t, t]))
    assert value == pytest.approx(-mirrored, abs=1e-12)
    assert abs(value) <= 1 + 1e-12
    assert value == pytest.approx(cole_hopf(np.array([x]), np.array([t]), num_nodes=300)[0], abs=1e-11)


def test_burgers_starts_from_its_initial_condition():
    np.testing.assert_allclose(cole_hopf(X, np.zeros_like(X)), -np.sin(np.pi * X), atol=1e-14)


@pytest.mark.parametrize("viscosity", [1e-4, 1e-3, 1.0])
def test_burgers_neither_overflows_nor_loses_small_viscosities(viscosity):
    u = cole_hopf(*GRID, viscosity)
    assert np.isfinite(u).all()
    # Before the shock the inviscid solution u = -sin(pi (x - u t)) is approached.
    x, t = np.array([0.3]), np.array([0.1])
    if viscosity <= 1e-3:
        u = cole_hopf(x, t, viscosity)
        np.testing.assert_allclose(u, -np.sin(np.pi * (x - u * t)), atol=20 * viscosity)


def test_burgers_is_computed_in_chunks_without_a_seam():
    x = np.linspace(-1, 1, 9000)
    np.testing.assert_array_equal(cole_hopf(x, np.full(9000, 0.5))[8500:], cole_hopf(x[8500:], np.full(500, 0.5)))


def test_schrodinger_check_values():
    x, t, h = split_step()
    assert (x[128], len(x), len(t)) == (0.0, 256, 201)
    expected = [0.316084 + 2.509898j, -3.694461 - 1.530041j, 1.417053 + 1.414561j]
    np.testing.assert_allclose(h[128, [50, 100, 200]], expected, atol=2e-6)
    assert np.abs(h).max() == pytest.approx(3.99876, abs=1e-5)
    # The equation conserves the mass.
    mass = (np.abs(h) ** 2).sum(axis=0)
    np.testing.assert_allclose(mass, mass[0], rtol=1e-10)


def test_schrodinger_is_of_fourth_order():
    ends = [split_step(64, 11, substeps)[2][:, -1] for substeps in (20, 40, 80)]
    coarse, fine = np.abs(ends[0] - ends[1]).max(), np.abs(ends[1] - ends[2]).max()
    assert 3.5 < math.log2(coarse / fine) < 4.5


def test_kuramoto_sivashinsky_converges_and_keeps_its_mean():
    x, t, u = etdrk4(0.2, num_times=5, substeps=200)
    assert u.shape == (256, 5)
    np.testing.assert_allclose(u[:, 0], np.cos(x) * (1 + np.sin(x)), atol=1e-12)
    np.testing.assert_allclose(u.mean(axis=0), 0.0, atol=1e-12)
    finer = etdrk4(0.2, num_points=512, num_times=5, substeps=400)[2][::2]
    np.testing.assert_allclose(u, finer, atol=1e-5)
    assert t[-1] == 0.2


def test_references_that_are_shared_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        split_step()[2][0, 0] = 0


def test_errors():
    reference = Reference.from_grid(("x", "t"), ("u", "v"), (X, T), np.stack([U, 0 * U], axis=-1))
    off = reference.values + np.array([0.1, -0.3])
    errors = reference.errors(off)
    assert errors.mse == pytest.approx((0.01 + 0.09) / 2)
    assert errors.max_error == pytest.approx(0.3)
    assert errors.relative_l2 == pytest.approx((0.1 * math.sqrt(24) / np.linalg.norm(U), 0.3 * math.sqrt(24)))
    off[0, 0] = np.nan
    assert reference.errors(off).mse == math.inf


def test_predictions_come_in_the_order_of_the_points():
    reference = Burgers().reference()
    network = MLP((2, 4, 1), dtype=torch.float64)
    prediction = reference.predict(network)
    row = torch.tensor([[reference.axes[0][7], reference.axes[1][3]]])
    assert reference.grid(values=prediction)[7, 3] == pytest.approx(network(row).item())


def csv_with_header(path):
    table = np.column_stack([GRID[0].ravel(), GRID[1].ravel(), U.ravel()])
    np.savetxt(path, table[::-1], delimiter=",", header="x,t,u", comments="")


def csv_reordered(path):
    table = np.column_stack([U.ravel(), GRID[1].ravel(), GRID[0].ravel()])
    np.savetxt(path, table, delimiter=",", header="u,t,x")


def plain_table(path):
    return np.column_stack([GRID[0].ravel(), GRID[1].ravel(), U.ravel()])


WRITERS = {
    "axes.npz": lambda path: np.savez(path, x=X, t=T, u=U),
    "transposed.npz": lambda path: np.savez(path, x=X, t=T, u=U.T, note=np.array(["ignored"])),
    "columns.npz": lambda path: np.savez(path, x=GRID[0].ravel(), t=GRID[1].ravel(), u=U.ravel()),
    "official.mat": lambda path: savemat(path, {"x": X[:, None], "t": T[:, None], "u": U}),
    "header.csv": csv_with_header,
    "reordered.csv": csv_reordered,
    "plain.csv": lambda path: np.savetxt(path, plain_table(path), delimiter=","),
    "plain.npy": lambda path: np.save(path, plain_table(path)),
    "UPPER.NPY": lambda path: np.save(open(path, "wb"), plain_table(path)),  # noqa: SIM115 - np.save would rename
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_file_format_gives_the_same_reference(name, tmp_path):
    WRITERS[name](tmp_path / name)
    reference = load_reference(tmp_path / name)
    assert reference.coordinates == ("x", "t")
    np.testing.assert_allclose(reference.grid(), U, atol=1e-15)
    np.testing.assert_allclose(reference.axes[0], X)
    np.testing.assert_allclose(reference.axes[1], T)


def test_scattered_points_stay_scattered(tmp_path):
    np.save(tmp_path / "some.npy", plain_table(None)[:-1])
    reference = load_reference(tmp_path / "some.npy")
    assert reference.axes is None
    with pytest.raises(InvalidValueError, match="do not form a grid"):
        reference.grid()


def test_columns_of_another_problem(tmp_path):
    table = np.random.default_rng(0).random((5, 4))
    np.save(tmp_path / "flow.npy", table)
    reference = load_reference(tmp_path / "flow.npy", ("x", "y"), ("u", "p"))
    np.testing.assert_array_equal(reference.values, table[:, 2:])


def write(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv", ".mat"])
def test_damaged_files(suffix, tmp_path):
    path = write(tmp_path / f"bad{suffix}", b"\x93NUMPY\x01\x00 nothing that was ever a number, \xff\xfe")
    with pytest.raises(InvalidStateError, match=r"cannot be read .* it is damaged or not a"):
        load_reference(path)
    with pytest.raises(InvalidStateError, match="damaged"):
        load_reference(write(tmp_path / f"empty{suffix}", b""))


def test_torn_archive(tmp_path):
    np.savez(tmp_path / "whole.npz", x=X, t=T, u=U)
    torn = write(tmp_path / "torn.npz", (tmp_path / "whole.npz").read_bytes()[:-300])
    with pytest.raises(InvalidStateError, match="damaged"):
        load_reference(torn)


def test_pickles_are_refused(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{"x": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InvalidStateError, match="plain numbers"):
        load_reference(tmp_path / "objects.npy")


def test_what_does_not_fit(tmp_path):
    with pytest.raises(MissingFileError, match=r"no reference at .*none\.npz"):
        load_reference(tmp_path / "none.npz")
    with pytest.raises(InvalidValueError, match=r"unknown type; give one of \.npz"):
        load_reference(write(tmp_path / "u.txt", b"1"))
    np.savez(tmp_path / "missing.npz", x=X, t=T, usol=U)
    with pytest.raises(InvalidValueError, match=r"no array 'u'; it has t, usol, x"):
        load_reference(tmp_path / "missing.npz")
    np.savez(tmp_path / "sizes.npz", x=X, t=T, u=U[:, :-1])
    with pytest.raises(InvalidValueError, match=r"do not fit together \(x \(6,\), t \(4,\), u \(6, 3\)\)"):
        load_reference(tmp_path / "sizes.npz")
    np.savez(tmp_path / "complex.npz", x=X, t=T, u=U * 1j)
    with pytest.raises(InvalidValueError, match="array 'u' of reference .* holds complex128"):
        load_reference(tmp_path / "complex.npz")
    np.savez(tmp_path / "nan.npz", x=X, t=T, u=U * np.nan)
    with pytest.raises(InvalidValueError, match="not finite"):
        load_reference(tmp_path / "nan.npz")
    np.save(tmp_path / "wide.npy", np.zeros((5, 7)))
    with pytest.raises(
        InvalidValueError, match=r"shape \(5, 7\); give one row for each point with the columns x, t, u"
    ):
        load_reference(tmp_path / "wide.npy")
    write(tmp_path / "ragged.csv", b"x,t,u,v\n1,2,3\n")
    with pytest.raises(InvalidValueError, match="4 names in its header and 3 columns"):
        load_reference(tmp_path / "ragged.csv")


def test_bad_arguments():
    with pytest.raises(InvalidValueError, match="times >= 0"):
        cole_hopf(np.array([0.0]), np.array([-0.1]))
    with pytest.raises(InvalidValueError, match="viscosity > 0"):
        cole_hopf(np.array([0.0]), np.array([0.1]), 0.0)
    with pytest.raises(InvalidValueError, match="even number"):
        split_step(255)
    with pytest.raises(InvalidValueError, match="final time"):
        etdrk4(0.0)
    with pytest.raises(InvalidValueError, match=r"values have shape \(6, 4\), the grid of x, t needs \(6, 4, 1\)"):
        Reference.from_grid(("x", "t"), ("u",), (X, T), U)
    with pytest.raises(InvalidValueError, match="3 points and 2 values"):
        Reference(("x",), ("u",), np.zeros((3, 1)), np.zeros((2, 1)))
    with pytest.raises(InvalidValueError, match="needs columns x, t and u"):
        Reference(("x", "t"), ("u",), np.zeros((3, 1)), np.zeros((3, 1)))

"""Figures: what they show, not how it looks."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from octavo_config_grad import plots
from octavo_config_grad.landscape import Trajectory, landscape_grid
from octavo_config_grad.pinn import History, Reference
from octavo_core.errors import InvalidValueError


def history(seed, evaluations=12):
    generator = np.random.default_rng(seed)
    steps = np.arange(evaluations) * 100
    cosines = np.ones((evaluations, 2, 2))
    cosines[:, 0, 1] = cosines[:, 1, 0] = generator.uniform(-1, 1, evaluations)
    decay = np.exp(-np.arange(evaluations) / 4)
    return History(steps, steps * 2, steps / 50.0, decay + 0.01, decay[:, None] * [1.0, 0.3], cosines)


RUNS = {"Adam": history(0), "ConFIG": history(1), "M-ConFIG": history(2)}


def assert_drawn(figure, panels):
    assert isinstance(figure, Figure)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    assert len(content.getvalue()) > 5_000
    axes = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
    assert len(axes) == panels
    assert all(ax.get_xlabel() for ax in axes)
    assert axes[0].get_ylabel()
    return axes


def test_errors():
    axes = assert_drawn(plots.plot_errors(RUNS), 2)
    assert [line.get_label() for line in axes[0].get_lines()] == list(RUNS)
    np.testing.assert_array_equal(axes[0].get_lines()[1].get_ydata(), RUNS["ConFIG"].mse)
    np.testing.assert_array_equal(axes[1].get_lines()[1].get_xdata(), RUNS["ConFIG"].seconds)
    colors = {line.get_color() for line in axes[0].get_lines()}
    assert len(colors) == 3


def test_losses():
    axes = assert_drawn(plots.plot_losses(RUNS, ("pde", "boundary")), 2)
    assert axes[1].get_title() == "Loss: boundary"
    np.testing.assert_array_equal(axes[1].get_lines()[0].get_ydata(), RUNS["Adam"].losses[:, 1])


def test_cosines():
    figure = plots.plot_cosines(RUNS)
    assert_drawn(figure, 1)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[0] == f"Adam (conflict {RUNS['Adam'].conflict_rate:.0%})"


@pytest.mark.parametrize("scattered", [False, True])
def test_solution(scattered):
    x, t = np.linspace(-1, 1, 8), np.linspace(0, 1, 5)
    values = np.add.outer(x, t)[..., None]
    reference = Reference.from_grid(("x", "t"), ("u",), (x, t), values)
    if scattered:
        reference = Reference(("x", "t"), ("u",), reference.points, reference.values)
    axes = assert_drawn(plots.plot_solution(reference, reference.values + 0.5), 3)
    assert [ax.get_title() for ax in axes] == ["Reference", "Prediction", "Error"]
    shown = axes[2].collections[0].get_array()
    np.testing.assert_allclose(shown, 0.5)
    # A perfect prediction has an error of zero everywhere, and still a scale.
    assert_drawn(plots.plot_solution(reference, reference.values), 3)


def test_landscape():
    paths = {
        name: Trajectory(np.array([[0.0, 5.0], [end, -5.0]]), np.zeros((2, 2)))
        for name, end in (("Adam|1", 1.0), ("Adam|2", 2.0), ("ConFIG|1", 3.0))
    }
    figure = plots.plot_landscape(landscape_grid(resolution=21), paths)
    assert_drawn(figure, 1)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Pareto set", "Adam", "ConFIG"]


def test_figures_leave_no_global_state():
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    plots.plot_errors(RUNS)
    assert pyplot.get_fignums() == before


def test_bad_input():
    with pytest.raises(InvalidValueError, match="nothing to draw"):
        plots.plot_errors({})
    with pytest.raises(InvalidValueError, match="'Adam' has 2 losses and there are 3 names"):
        plots.plot_losses(RUNS, ("a", "b", "c"))
    flow = Reference(("x", "y", "z"), ("u",), np.zeros((4, 3)), np.zeros((4, 1)))
    with pytest.raises(InvalidValueError, match="drawn over two coordinates, the reference has x, y, z"):
        plots.plot_solution(flow, flow.values)
    plane = Reference(("x", "y"), ("u",), np.zeros((4, 2)), np.zeros((4, 1)))
    with pytest.raises(InvalidValueError, match=r"prediction has shape \(3, 1\)"):
        plots.plot_solution(plane, np.zeros((3, 1)))
    with pytest.raises(InvalidValueError, match="field 1 must be one of 0 to 0"):
        plots.plot_solution(plane, plane.values, field=1)

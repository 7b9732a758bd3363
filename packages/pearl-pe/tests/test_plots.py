from __future__ import annotations

import pytest
import torch
from octavo_pearl_pe.datasets import family_graph
from torch_geometric.data import Data

pytest.importorskip("matplotlib")

from octavo_core.report import figure_png
from octavo_pearl_pe import plots
from octavo_pearl_pe.demo import cycle_stability


def test_figures() -> None:
    tree = Data(edge_index=family_graph("tree", 12), num_nodes=12)
    figures = [
        plots.plot_errors([8, 32], {"R-PEARL": [0.2, 0.1]}),
        plots.plot_times({"pearl": [10, 100]}, {"pearl": [0.1, 1.0]}),
        plots.plot_stability({"B-PEARL": cycle_stability("basis")}),
        plots.plot_encoding(tree, torch.rand(12, 4)),
        plots.plot_encoding(tree, torch.rand(12, 1)),
    ]
    assert all(figure_png(figure).startswith(b"\x89PNG") for figure in figures)

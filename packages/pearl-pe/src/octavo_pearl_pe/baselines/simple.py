"""Encodings without eigenvector networks: none, random features, random-walk return probabilities, distances."""

from __future__ import annotations

import itertools

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor, nn
from torch_geometric.data import Data

from octavo_pearl_pe.baselines.eigenvectors import spectrum
from octavo_pearl_pe.graph import read_data
from octavo_pearl_pe.noise import draw_signals, mix_seed
from octavo_pearl_pe.sparse import apply_operator
from octavo_pearl_pe.walks import closed_walks

__all__ = ["PEG", "RWSE", "NoPE", "RandomNodeInit"]


class NoPE(nn.Module):
    """A constant: what message passing alone can tell.

    Args:
        out_channels: d.
    """

    def __init__(self, out_channels: int = 1) -> None:
        super().__init__()
        self.out_channels = out_channels

    def forward(self, data: Data) -> Float[Tensor, "nodes channels"]:
        """Return ones.

        Args:
            data: The graph.

        Returns:
            Ones.
        """
        graph = read_data(data, kind="rw")
        return graph.weights.new_ones(graph.num_nodes, self.out_channels)


class RandomNodeInit(nn.Module):
    """One vector of random features a node, without pooling: drawn anew each step in training, by seed in evaluation.

    Args:
        out_channels: d.
        noise: A name in ``octavo_pearl_pe.noise.NOISES``.
        seed: Seed.
    """

    draws: Tensor

    def __init__(self, out_channels: int, *, noise: str = "normal", seed: int = 0) -> None:
        super().__init__()
        self.out_channels, self.noise, self.seed = out_channels, noise, seed
        self.register_buffer("draws", torch.tensor(0))

    def forward(self, data: Data) -> Float[Tensor, "nodes channels"]:
        """Draw features.

        Args:
            data: The graph.

        Returns:
            Random features.
        """
        graph = read_data(data, kind="rw")
        generator = None
        if self.training:
            generator = torch.Generator(graph.batch.device).manual_seed(mix_seed(self.seed, int(self.draws)))
            self.draws += 1
        return draw_signals(self.noise, graph, self.out_channels, generator=generator, seed=self.seed)


class RWSE(nn.Module):
    """Return probabilities of random walks of 1 to k steps, ``diag((D^-1 A)^j)``, exactly.

    Args:
        steps: k, at least 1.

    Raises:
        InvalidValueError: If ``steps`` is below 1.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        if steps < 1:
            raise InvalidValueError(f"steps={steps} is out of range; give 1 or more")
        self.out_channels = self.steps = steps

    def forward(self, data: Data) -> Float[Tensor, "nodes steps"]:
        """Compute the probabilities.

        Args:
            data: The graph.

        Returns:
            Column j - 1 for j steps.
        """
        graph = read_data(data, kind="sym_adj", dtype=torch.float64)
        # D^-1 A and D^-1/2 A D^-1/2 are similar by a diagonal matrix, so the diagonals of their powers agree.
        return closed_walks(graph.shift, self.steps)[:, 1:].float()


class PEG(nn.Module):
    """Message passing weighted by a function of distances between Laplacian eigenvector rows, which rotations keep.

    Args:
        out_channels: d.
        count: Number of eigenvectors.
        hidden: Width inside.
        layers: Rounds of message passing, at least 1.

    Raises:
        InvalidValueError: If there is no layer.
    """

    def __init__(self, out_channels: int, *, count: int = 8, hidden: int = 32, layers: int = 2) -> None:
        super().__init__()
        if layers < 1:
            raise InvalidValueError(f"layers={layers} is out of range; give 1 or more")
        self.out_channels, self.count = out_channels, count
        widths = [1, *[hidden] * (layers - 1), out_channels]
        self.weights = nn.ModuleList(
            nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Sigmoid()) for _ in range(layers)
        )
        self.linears = nn.ModuleList(nn.Linear(2 * a, b) for a, b in itertools.pairwise(widths))

    def forward(self, data: Data) -> Float[Tensor, "nodes channels"]:
        """Encode a graph or a batch.

        Args:
            data: The graph.

        Returns:
            The encoding.
        """
        dtype = next(self.parameters()).dtype
        graph = read_data(data, dtype=dtype)
        places = spectrum(graph, self.count, skip=1).vectors
        distance = (places[graph.rows] - places[graph.columns]).norm(dim=1, keepdim=True)
        x = apply_operator(graph.adjacency, places.new_ones(graph.num_nodes, 1)).log1p()
        for index, (weight, linear) in enumerate(zip(self.weights, self.linears, strict=True)):
            message = x[graph.columns] * weight(distance)
            total = torch.zeros_like(x).index_add_(0, graph.rows, message)
            x = linear(torch.cat([x, total], dim=1))
            x = x.relu() if index < len(self.linears) - 1 else x
        return x

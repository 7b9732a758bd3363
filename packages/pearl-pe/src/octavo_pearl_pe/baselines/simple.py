"""Encodings without eigenvector networks: none, random features, random-walk return probabilities, distances."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch_geometric.data import Data

from octavo_pearl_pe.baselines.eigenvectors import spectrum
from octavo_pearl_pe.checks import whole_number
from octavo_pearl_pe.graph import read_data
from octavo_pearl_pe.noise import check_noise, draw_signals, training_generator
from octavo_pearl_pe.sparse import apply_operator
from octavo_pearl_pe.walks import closed_walks

__all__ = ["PEG", "RWSE", "NoPE", "RandomNodeInit"]


class NoPE(nn.Module):
    """A constant: what message passing alone can tell.

    Args:
        out_channels: d.

    Raises:
        InvalidValueError: If ``out_channels`` is below 1.
    """

    like: Tensor

    def __init__(self, out_channels: int | Any = 1) -> None:
        super().__init__()
        self.out_channels = whole_number("out_channels", out_channels)
        # Without weights, this is what follows .double() and .to().
        self.register_buffer("like", torch.empty(0), persistent=False)

    def forward(self, data: Data) -> Float[Tensor, "nodes channels"]:
        """Return ones.

        Args:
            data: The graph.

        Returns:
            Ones, in the dtype of the module.
        """
        graph = read_data(data, kind="rw", dtype=torch.float64)
        return graph.weights.new_ones(graph.num_nodes, self.out_channels, dtype=self.like.dtype)


class RandomNodeInit(nn.Module):
    """One vector of random features a node, without pooling: drawn anew each step in training, by seed in evaluation.

    Args:
        out_channels: d.
        noise: A name in ``octavo_pearl_pe.noise.NOISES``.
        seed: Seed.

    Raises:
        InvalidValueError: If ``out_channels`` is below 1 or the noise is unknown.
    """

    draws: Tensor
    like: Tensor

    def __init__(self, out_channels: int | Any, *, noise: str = "normal", seed: int = 0) -> None:
        super().__init__()
        check_noise(noise, 1, False)
        self.out_channels, self.noise, self.seed = whole_number("out_channels", out_channels), noise, seed
        self.register_buffer("draws", torch.tensor(0))
        self.register_buffer("like", torch.empty(0), persistent=False)

    def forward(self, data: Data) -> Float[Tensor, "nodes channels"]:
        """Draw features.

        Args:
            data: The graph.

        Returns:
            Random features, in the dtype of the module.
        """
        graph = read_data(data, kind="rw", dtype=torch.float64)
        generator = None
        if self.training:
            generator = training_generator(self.seed, int(self.draws), graph.batch.device)
            self.draws += 1
        drawn = draw_signals(self.noise, graph, self.out_channels, generator=generator, seed=self.seed)
        return graph.restored(drawn.to(self.like.dtype))


class RWSE(nn.Module):
    """Return probabilities of random walks of 1 to k steps, ``diag((D^-1 A)^j)``, exactly.

    Edge weights count as transition weights; PyG's ``AddRandomWalkPE`` normalises weighted graphs otherwise, so the two
    agree on unweighted graphs only.

    Args:
        steps: k, at least 1.

    Raises:
        InvalidValueError: If ``steps`` is below 1.
    """

    like: Tensor

    def __init__(self, steps: int | Any) -> None:
        super().__init__()
        self.out_channels = self.steps = whole_number("steps", steps)
        self.register_buffer("like", torch.empty(0), persistent=False)

    def forward(self, data: Data) -> Float[Tensor, "nodes steps"]:
        """Compute the probabilities.

        Args:
            data: The graph.

        Returns:
            Column j - 1 for j steps, in the dtype of the module.
        """
        graph = read_data(data, kind="sym_adj", dtype=torch.float64)
        # D^-1 A and D^-1/2 A D^-1/2 are similar by a diagonal matrix, so the diagonals of their powers agree.
        return graph.restored(closed_walks(graph.shift, self.steps)[:, 1:].to(self.like.dtype))


class PEG(nn.Module):
    """Message passing weighted by a function of distances between Laplacian eigenvector rows, which rotations keep.

    Args:
        out_channels: d.
        count: Number of eigenvectors.
        hidden: Width inside.
        layers: Rounds of message passing, at least 1.

    Raises:
        InvalidValueError: If a number is below 1.
    """

    def __init__(self, out_channels: int | Any, *, count: int = 8, hidden: int = 32, layers: int = 2) -> None:
        super().__init__()
        given = {"out_channels": out_channels, "count": count, "hidden": hidden, "layers": layers}
        for name, value in given.items():
            whole_number(name, value)
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
        return graph.restored(x)

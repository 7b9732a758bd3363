"""PEARL: positional encodings by a graph neural network on random or basis inputs, pooled over them (section 3)."""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from octavo_core.checkpoint import load_checkpoint, save_checkpoint
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from octavo_pearl_pe.adaptive import SampleSuggestion, suggest_num_samples
from octavo_pearl_pe.body import make_body
from octavo_pearl_pe.checks import GraphWarning
from octavo_pearl_pe.chunks import run_chunks
from octavo_pearl_pe.config import PEARLConfig, make_config
from octavo_pearl_pe.control import FirstLayerControl
from octavo_pearl_pe.filters import FilterLayer, filter_terms
from octavo_pearl_pe.gnn import ACTIVATIONS, SampleContext
from octavo_pearl_pe.graph import GraphStructure, read_graph
from octavo_pearl_pe.noise import check_independent, draw_signals, training_generator
from octavo_pearl_pe.norms import SampleBatchNorm, make_norm
from octavo_pearl_pe.pooling import Moments, pool_moments
from octavo_pearl_pe.signals import InputSignals

__all__ = ["BPEARL", "PEARL", "RPEARL", "Encoding"]

Graph = Tensor | Data | Any  # Edges [2, E], or a PyG Data or Batch; anything else is refused with a sentence.

_TWO_STATISTICS = ("mean+var", "mean+std")


@dataclass(frozen=True)
class Encoding:
    """An encoding with the record of how it was made.

    Args:
        pe: The encoding P.
        basis: For each graph, whether basis inputs were used.
        num_samples: M of the random inputs, 0 if there were none.
        standard_error: Monte-Carlo standard error of ``pe``, if asked for; 0 where basis inputs were used.
    """

    pe: Float[Tensor, "nodes channels"]
    basis: Bool[Tensor, " graphs"]
    num_samples: int
    standard_error: Float[Tensor, "nodes channels"] | None = None


class PEARL(nn.Module):
    """Learnable positional encoding ``P = rho[Phi(G, q^(1)), ..., Phi(G, q^(M))]``.

    In training every forward pass draws new inputs; in evaluation the same graph, weights and ``eval_seed`` give the
    same encoding on every call. ``PEARL(perm(G), q=perm(q)) == perm(PEARL(G, q))`` holds exactly; without ``q`` the
    random variant is equivariant in distribution and in expectation, the basis variant exactly.

    Args:
        config: d, or a whole configuration.
        **options: Fields of ``PEARLConfig``, beside d.

    Source:
        Section 3, equations for R-PEARL (mean over random inputs) and B-PEARL (sum over the standard basis).
    """

    draws: Tensor

    def __init__(self, config: PEARLConfig | int | Any, **options: Any) -> None:
        super().__init__()
        self.config = config = make_config(config, options)
        if config.variant == "random" and config.pooling == "sum":
            warnings.warn(
                "pooling='sum' over random inputs makes the encoding grow with the number of samples: keep num_samples "
                "the same in training and evaluation, or use pooling='mean'",
                GraphWarning,
                stacklevel=2,
            )
        self.out_channels = config.out_channels
        self.act = ACTIVATIONS[config.act]
        single = config.gnn == "filter" and config.layers == 1
        width = config.out_channels if single else config.hidden
        if config.gnn == "gin":
            width = config.lift_channels or config.hidden
        self.lift = None
        if config.lift or config.gnn == "filter":
            self.lift = FilterLayer(
                1,
                width,
                config.filter_taps,
                basis=config.basis,
                constrain=config.constrain == "beta",
                gso=config.gso,
            )
        self.lift_norm = make_norm(None if single or self.lift is None else config.norm, width)
        if isinstance(self.lift_norm, SampleBatchNorm):
            self.lift_norm.per_graph = config.per_graph_norm
        self.body = make_body(config, width if self.lift is not None else config.filter_taps)
        two = config.pooling in _TWO_STATISTICS
        self.combine = nn.Linear(2 * config.out_channels, config.out_channels) if two else None
        self.register_buffer("draws", torch.tensor(0))

    @property
    def num_samples(self) -> int:
        """M in the present mode."""
        return self.config.num_samples if self.training else self.config.samples_in_evaluation

    def forward(
        self,
        edge_index: Graph,
        batch: Tensor | Any | None = None,
        edge_weight: Tensor | Any | None = None,
        num_nodes: int | Any | None = None,
        q: Tensor | Any | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "nodes channels"]:
        """Encode a graph, or a block-diagonal batch of graphs.

        Args:
            edge_index: Edges, int64 ``[2, E]``; or a PyG ``Data`` or ``Batch``, whose fields are used.
            batch: Graph of each node, in any order, which the result follows; not beside a Data, which has its own.
            edge_weight: Weights ``[E]``; no gradient flows to them.
            num_nodes: N, where isolated nodes follow the last edge; not beside a Data.
            q: Inputs ``[N, M]`` instead of drawn ones.
            generator: Draw the inputs from it.

        Returns:
            The encoding, in the precision of the pooled statistics (at least float32).

        Raises:
            InvalidValueError: If the graph or the inputs are not as above.
            InvalidTypeError: If a type or dtype is wrong, or the weights are float16 or bfloat16 on a CPU.
            InvalidStateError: If the encoding is not finite.
        """
        graph = self.read(edge_index, batch, edge_weight, num_nodes)
        return graph.restored(self._pooled(graph, self._signals(graph, q, generator)))

    def encode(self, data: Data | HeteroData | Any, *, standard_error: bool = False) -> Encoding:
        """Encode and tell how.

        Args:
            data: A PyG ``Data`` or ``Batch``. ``HeteroPEARL`` encodes ``HeteroData``.
            standard_error: Also estimate the Monte-Carlo standard error.

        Returns:
            The encoding, which graphs had basis inputs, and M.

        Raises:
            InvalidTypeError: If ``data`` is heterogeneous.
        """
        graph = self.read(data)
        signals = self._signals(graph, None, None)
        error = self._standard_error(graph, signals) if standard_error else None
        samples = 0 if bool(signals.basis.all()) else self.num_samples
        pe = graph.restored(self._pooled(graph, signals))
        return Encoding(pe, signals.basis, samples, None if error is None else graph.restored(error))

    def standard_error(
        self,
        edge_index: Graph,
        batch: Tensor | Any | None = None,
        edge_weight: Tensor | Any | None = None,
        num_nodes: int | Any | None = None,
        q: Tensor | Any | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "nodes channels"]:
        """Estimate the Monte-Carlo standard error of the mean-pooled encoding from the samples of one pass.

        Args:
            edge_index: See ``forward``.
            batch: See ``forward``.
            edge_weight: See ``forward``.
            num_nodes: See ``forward``.
            q: See ``forward``.
            generator: See ``forward``.

        Returns:
            Standard errors; 0 for basis inputs.

        Raises:
            InvalidValueError: If the pooling is not the mean, there are fewer than two independent samples (none with
                ``noise="orthogonal"``), or control variates are on.
        """
        graph = self.read(edge_index, batch, edge_weight, num_nodes)
        return graph.restored(self._standard_error(graph, self._signals(graph, q, generator)))

    def suggest_num_samples(self, data: Data, tol: float, delta: float = 0.05) -> SampleSuggestion:
        """Suggest M for a graph, see ``octavo_pearl_pe.adaptive.suggest_num_samples``.

        Args:
            data: The graph.
            tol: Largest error wanted.
            delta: Probability of a larger one.

        Returns:
            The suggestion.
        """
        return suggest_num_samples(self, data, tol, delta)

    def read(
        self,
        edge_index: Graph,
        batch: Tensor | Any | None = None,
        edge_weight: Tensor | Any | None = None,
        num_nodes: int | Any | None = None,
    ) -> GraphStructure:
        """Check a graph as this encoder sees it.

        Args:
            edge_index: See ``forward``.
            batch: See ``forward``.
            edge_weight: See ``forward``.
            num_nodes: See ``forward``.

        Returns:
            The graph, in the dtype of the weights.

        Raises:
            InvalidValueError: If the graph is malformed or on another device, or has other fields beside a Data.
            InvalidTypeError: If the weights are float16 or bfloat16 on a CPU, which has no such sparse product.
        """
        if isinstance(edge_index, HeteroData):
            raise InvalidTypeError("data is a HeteroData; encode it with HeteroPEARL, which maps node types and back")
        if isinstance(edge_index, Data):
            data = edge_index
            if batch is not None or num_nodes is not None:
                raise InvalidValueError("batch or num_nodes is given beside a Data, which has its own; set them there")
            if data.edge_index is None:
                raise InvalidValueError("data has no edge_index; give a graph with edges, or an empty [2, 0] tensor")
            weight = data.get("edge_weight") if edge_weight is None else edge_weight
            return self.read(data.edge_index, data.get("batch"), weight, data.num_nodes)
        parameter = next(self.parameters())
        if parameter.device.type == "cpu" and parameter.dtype in {torch.float16, torch.bfloat16}:
            raise InvalidTypeError(
                f"the encoder is {parameter.dtype} on a CPU, which has no sparse product of that type; keep it in "
                "float32 and use torch.autocast"
            )
        if isinstance(edge_index, Tensor) and edge_index.device != parameter.device:
            raise InvalidValueError(
                f"the graph is on {edge_index.device} but the encoder on {parameter.device}; move one with .to()"
            )
        return read_graph(
            edge_index,
            edge_weight,
            batch,
            num_nodes,
            kind=self.config.gso,
            dtype=parameter.dtype,
            make_undirected=self.config.make_undirected,
        )

    def phi(
        self, signal: Float[Tensor, "nodes samples"], context: SampleContext
    ) -> tuple[Float[Tensor, "nodes samples width"], Float[Tensor, "nodes samples channels"]]:
        """Apply Phi to each column.

        Args:
            signal: Inputs q.
            context: The graph.

        Returns:
            Output of the first stage, and of the last layer.
        """
        config = self.config
        if self.lift is None:
            terms = filter_terms(context.shift, signal, config.filter_taps, config.basis)
            first = torch.stack(list(terms), dim=-1)
        else:
            lifted = self.lift_norm(self.lift(signal[..., None], context.shift, context.buffers), context)
            in_place = config.act == "relu" and not torch.is_grad_enabled()
            first = lifted.relu_() if in_place else self.act(lifted)
        last = first if self.body is None else self.body(first, context)
        if last.shape[-1] != self.out_channels:
            raise InvalidValueError(
                f"the network gives {last.shape[-1]} channels, but out_channels={self.out_channels}; make them equal"
            )
        return first, last

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write configuration and weights to one ``.safetensors`` file, atomically.

        Args:
            path: The file.

        Returns:
            The file written.

        Raises:
            InvalidValueError: If the configuration holds a function or module, which no file can.
        """
        fields = {field.name: getattr(self.config, field.name) for field in dataclasses.fields(self.config)}
        if odd := [name for name, value in fields.items() if not isinstance(value, str | int | bool | None)]:
            raise InvalidValueError(f"{', '.join(odd)} is a function or module and cannot be saved; save state_dict()")
        return save_checkpoint(path, {"pearl": fields, "state_dict": self.state_dict()})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PEARL:
        """Read an encoder that ``save`` wrote, without unpickling.

        Args:
            path: The file.

        Returns:
            The encoder, in evaluation mode, in the dtype it was saved in.

        Raises:
            InvalidStateError: If the file is not an encoder, or its weights do not fit its configuration.
        """
        content = load_checkpoint(path)
        try:
            encoder = cls(PEARLConfig(**content["pearl"]))
            state = content["state_dict"]
            encoder.to(next(value.dtype for value in state.values() if value.is_floating_point()))
            encoder.load_state_dict(state)
        except (KeyError, TypeError, StopIteration, RuntimeError) as error:
            raise InvalidStateError(f"{str(path)!r} is not a saved encoder of this version: {error}") from error
        return encoder.eval()

    def _signals(self, graph: GraphStructure, q: Any, generator: torch.Generator | None) -> InputSignals:
        config = self.config
        dtype = graph.weights.dtype
        if q is not None:
            return InputSignals.given(q, graph, dtype)
        if config.variant == "basis":
            return InputSignals.standard_basis(graph, config.max_basis_nodes, force=config.force, width=config.hidden)
        if self.training and generator is None:
            generator = training_generator(config.seed, int(self.draws), graph.batch.device)
            self.draws += 1
        settings = {"antithetic": config.antithetic, "generator": generator, "seed": config.eval_seed, "dtype": dtype}
        signals = draw_signals(config.noise, graph, self.num_samples, **settings)
        if config.variant == "auto":
            return InputSignals.mixed(signals, graph, config.basis_limit)
        return InputSignals.random_only(signals, graph)

    def _pooled(self, graph: GraphStructure, signals: InputSignals) -> Tensor:
        pooling = self.config.pooling
        if not isinstance(pooling, str):
            if pooling is None:
                raise AssertionError("the configuration fills in the pooling")
            outputs, mask = run_chunks(self, graph, signals, keep=True)
            return self._checked(pooling(outputs, mask), graph)
        control = FirstLayerControl(self, graph) if self.config.control_variate else None
        moments = run_chunks(self, graph, signals, control=control)
        pooled = pool_moments(moments, pooling)
        if control is not None:
            pooled = control.correct(pooled, moments)
        pooled = pooled if self.combine is None else self.combine(pooled)
        return self._checked(pooled, graph)

    def _checked(self, pooled: Any, graph: GraphStructure) -> Tensor:
        if not isinstance(pooled, Tensor) or pooled.dim() != 2 or len(pooled) != graph.num_nodes:
            shown = f"shape {tuple(pooled.shape)}" if isinstance(pooled, Tensor) else f"a {type(pooled).__name__}"
            raise InvalidValueError(f"the pooling returned {shown}; it must return one row for {graph.num_nodes} nodes")
        # One number tells in a fraction of the time; a sum of finite numbers can overflow, so it does not decide alone.
        if not math.isfinite(float(pooled.detach().sum())) and not bool(pooled.isfinite().all()):
            raise InvalidStateError(
                "the encoding holds NaN or infinite values: the encoder's weights are not finite, or degrees or edge "
                "weights made it overflow; rescale them, use norm='layer', or train at a lower rate"
            )
        return pooled

    @torch.no_grad()
    def _standard_error(self, graph: GraphStructure, signals: InputSignals) -> Tensor:
        if self.config.pooling != "mean" or self.config.control_variate:
            raise InvalidValueError(
                "a standard error is known for pooling='mean' without control variates; got "
                f"pooling={self.config.pooling!r}, control_variate={self.config.control_variate}"
            )
        if bool(signals.basis.all()):
            return graph.weights.new_zeros(graph.num_nodes, self.out_channels)
        check_independent(self.config.noise)
        if self.config.antithetic and signals.width % 2:
            raise InvalidValueError(
                f"{signals.width} samples are no antithetic pairs; give q with an even number of columns, pairs beside "
                "each other"
            )
        moments: Moments = run_chunks(self, graph, signals, pairs=self.config.antithetic, pooling="mean+var")
        if moments.squares is None:
            raise AssertionError("the variance was asked for")
        exact = signals.basis[graph.batch][:, None]
        if bool(((moments.count < 2) & ~exact).any()):
            raise InvalidValueError(
                "one independent sample has no standard error; give num_samples >= 2 (4 with antithetic pairs)"
            )
        variance = moments.squares / (moments.count - 1.0).clamp_min(1.0) / moments.count
        return torch.where(exact, 0.0, variance.sqrt())


class RPEARL(PEARL):
    """R-PEARL: random inputs, mean pooling.

    Args:
        out_channels: d.
        **options: Fields of ``PEARLConfig``.
    """

    def __init__(self, out_channels: PEARLConfig | int | Any, **options: Any) -> None:
        super().__init__(out_channels, **options)


class BPEARL(PEARL):
    """B-PEARL: the standard basis as inputs, sum pooling; exactly equivariant, quadratic in N.

    Args:
        out_channels: d.
        **options: Fields of ``PEARLConfig``.
    """

    def __init__(self, out_channels: PEARLConfig | int | Any, **options: Any) -> None:
        if not isinstance(out_channels, PEARLConfig):
            options = {"variant": "basis", **options}
        super().__init__(out_channels, **options)

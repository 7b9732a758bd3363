"""The configuration of an encoder: a frozen record that is saved beside the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor, nn

from octavo_pearl_pe.checks import whole_number
from octavo_pearl_pe.filters import BASES
from octavo_pearl_pe.gnn import ACTIVATIONS
from octavo_pearl_pe.graph import GSO_KINDS
from octavo_pearl_pe.noise import Noise, check_noise
from octavo_pearl_pe.pooling import POOLINGS

__all__ = ["VARIANTS", "PEARLConfig", "make_config"]

VARIANTS = ("random", "basis", "auto")
"""R-PEARL, B-PEARL, and per graph B where N <= M and R elsewhere."""


# Range of each whole number; the upper ends are far above any use, and below what only exhausts memory.
_COUNTS = {
    "out_channels": (1, 2**16),
    "num_samples": (1, 2**24),
    "eval_samples": (1, 2**24),
    "filter_taps": (1, 2**10),
    "hidden": (1, 2**16),
    "lift_channels": (1, 2**16),
    "layers": (1, 2**10),
    "mlp_hidden": (0, 2**16),
    "mlp_layers": (1, 2**10),
    "max_basis_nodes": (1, 2**31),
    "seed": (-(2**63), 2**64),
    "eval_seed": (-(2**63), 2**64),
}
_OPTIONAL = ("eval_samples", "lift_channels", "mlp_hidden")
_FLAGS = (
    "per_graph_norm", "lift", "bias", "antithetic", "control_variate", "checkpoint", "force", "make_undirected"
)  # fmt: skip


@dataclass(frozen=True)
class PEARLConfig:
    """Everything that defines an encoder besides its weights.

    Args:
        out_channels: d, the width of the encoding.
        variant: ``"random"`` (R-PEARL), ``"basis"`` (B-PEARL) or ``"auto"``: the basis inputs, scaled by sqrt(n) so
            that they have the second moments of random ones, for graphs of at most ``basis_limit`` nodes, random inputs
            for others.
        num_samples: M in training.
        eval_samples: M in evaluation; 4 M by default, or M where the pooling depends on it (sum, max, a function).
        filter_taps: K, taps of the first stage (and of every layer with ``gnn="filter"``).
        basis: Polynomial basis of the filters.
        gso: Shift operator, one of ``GSO_KINDS``.
        gnn: ``"gin"`` (as released: filter, Linear, then GIN on the adjacency), ``"filter"`` (as in the theory), or a
            module called with ``[N, m, hidden]`` and a ``SampleContext`` that returns ``[N, m, out_channels]``.
        hidden: Width of the hidden layers.
        lift_channels: Width of the first stage before a GIN; ``hidden`` by default.
        layers: Layers of Phi, at least 1; with ``gnn="filter"`` the first stage counts as one.
        mlp_hidden: Width inside the GIN's MLPs; ``hidden`` by default, 0 for each layer's input width.
        mlp_layers: Linear layers of each of these MLPs.
        lift: Map the filter's taps to ``hidden`` channels, with norm and activation, before a GIN.
        jump: ``"last"``, or ``"concat"`` for a GIN whose layers' outputs are all read.
        bias: Whether the GIN's Linear layers have biases.
        pooling: One of ``POOLINGS``, or a function of ``[N, M, d]`` and a mask ``[N, M]`` (or None); by default the
            mean, or the sum for the basis variant.
        noise: Distribution of the random inputs.
        norm: ``"layer"``, ``"batch"`` or None. Batch statistics are over all samples, so with ``"batch"`` a training
            forward is not chunked.
        per_graph_norm: Normalise the first stage by each graph's own batch statistics in training, as released.
        act: Nonlinearity, a name in ``ACTIVATIONS``.
        antithetic: Use random inputs in pairs mu + z, mu - z.
        control_variate: Subtract the error of the first layer's mean, whose expectation is known in closed form.
        constrain: ``"beta"`` bounds every filter's norm by 1 / F (Assumption 4.2); for ``gnn="filter"`` without norm.
        chunk: Samples processed at a time, an even number for antithetic ones; ``"auto"`` keeps a block
            within a processor's cache, None takes all.
        checkpoint: Recompute each chunk in the backward pass instead of keeping its activations.
        seed: Seed of the training draws; the number of draws made is part of the state dict.
        eval_seed: Seed of the evaluation draws.
        max_basis_nodes: Largest graph that the basis variant takes without ``force``.
        force: Take larger ones.
        make_undirected: Symmetrise directed graphs.

    Raises:
        InvalidTypeError: If a value is of another type.
        InvalidValueError: If a value is out of range or two do not fit together.
    """

    out_channels: int
    variant: str = "random"
    num_samples: int = 64
    eval_samples: int | None = None
    filter_taps: int = 4
    basis: str = "monomial"
    gso: str = "sym_lap"
    gnn: str | nn.Module = "gin"
    hidden: int = 32
    lift_channels: int | None = None
    layers: int = 3
    mlp_hidden: int | None = None
    mlp_layers: int = 2
    lift: bool = True
    jump: str = "last"
    bias: bool = True
    pooling: str | Callable[[Tensor, Tensor | None], Tensor] | None = None
    noise: Noise = "normal"
    norm: str | None = "layer"
    per_graph_norm: bool = False
    act: str = "relu"
    antithetic: bool = False
    control_variate: bool = False
    constrain: str | None = None
    chunk: int | str | None = "auto"
    checkpoint: bool = False
    seed: int = 0
    eval_seed: int = 0
    max_basis_nodes: int = 2000
    force: bool = False
    make_undirected: bool = False

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in _checked_types(values).items():
            object.__setattr__(self, name, value)
        if self.pooling is None:
            object.__setattr__(self, "pooling", "sum" if self.variant == "basis" else "mean")
        if self.eval_samples is None:
            scale = 4 if self.pooling in ("mean", "var", "mean+var", "mean+std") else 1
            object.__setattr__(self, "eval_samples", scale * self.num_samples)
        self._check_choices()
        self._check_combinations()

    @property
    def samples_in_evaluation(self) -> int:
        """M in evaluation."""
        return self.eval_samples or self.num_samples

    @property
    def basis_limit(self) -> int:
        """Largest graph that gets basis inputs in the automatic variant: M in training (or in evaluation, if fewer).

        It is the same in both modes, so that a graph is encoded in evaluation as it was in training.
        """
        return min(self.num_samples, self.samples_in_evaluation)

    def _check_choices(self) -> None:
        choices = {
            "variant": VARIANTS,
            "basis": BASES,
            "gso": GSO_KINDS,
            "norm": ("layer", "batch", None),
            "act": tuple(ACTIVATIONS),
            "jump": ("last", "concat"),
            "constrain": ("beta", None),
        }
        if isinstance(self.gnn, str):
            choices["gnn"] = ("gin", "filter")
        if isinstance(self.pooling, str):
            choices["pooling"] = POOLINGS
        for name, accepted in choices.items():
            if (given := getattr(self, name)) not in accepted:
                raise InvalidValueError(f"{name}={given!r} is not known; give one of {', '.join(map(repr, accepted))}")

    def _check_combinations(self) -> None:
        for count in (self.num_samples, self.samples_in_evaluation):
            check_noise(self.noise, count, self.antithetic)
        if self.antithetic and isinstance(self.chunk, int) and self.chunk % 2:
            raise InvalidValueError(f"chunk={self.chunk} would part antithetic pairs; give an even number or 'auto'")
        if self.constrain and (self.gnn != "filter" or self.norm is not None or self.act == "gelu"):
            raise InvalidValueError(
                "constrain='beta' bounds a network of filters and 1-Lipschitz activations alone; use gnn='filter', "
                "norm=None and an activation other than gelu"
            )
        if self.control_variate and not (
            self.variant == "random"
            and self.noise in ("normal", "normal1")
            and self.act == "relu"
            and self.norm is None
            and self.pooling == "mean"
            and self.lift
            and self.basis == "monomial"
            and self.gso != "rw"
        ):
            raise InvalidValueError(
                "control_variate=True needs the closed form of the first layer: variant='random', noise='normal' or "
                "'normal1', act='relu', norm=None, pooling='mean', lift=True, basis='monomial', a symmetric gso"
            )


def _checked_types(values: dict[str, Any]) -> dict[str, Any]:
    """Refuse fields of another type, and return the whole numbers: NumPy's as plain ones, which a file can hold."""
    numbers = {
        name: whole_number(name, values[name], low, high)
        for name, (low, high) in _COUNTS.items()
        if name in values and not (values[name] is None and name in _OPTIONAL)
    }
    for name in _FLAGS:
        if not isinstance(given := values.get(name, False), bool):
            raise InvalidTypeError(f"{name}={given!r} is a {type(given).__name__}; give True or False")
    if not isinstance(given := values.get("gnn", "gin"), str | nn.Module):
        raise InvalidTypeError(f"gnn={given!r} is a {type(given).__name__}; give 'gin', 'filter' or a module")
    for name, allowed in (("pooling", (str, type(None))), ("noise", (str,))):
        if not (isinstance(given := values.get(name, "normal"), allowed) or callable(given)):
            raise InvalidTypeError(f"{name}={given!r} is a {type(given).__name__}; give a name or a function")
    chunk = values.get("chunk")
    whole = isinstance(chunk, int) and not isinstance(chunk, bool) and chunk >= 1
    if not (chunk is None or (isinstance(chunk, str) and chunk == "auto") or whole):
        raise InvalidValueError(f"chunk={chunk!r} is not accepted; give a number of samples, 'auto' or None")
    return numbers


def make_config(config: PEARLConfig | int | Any, options: dict[str, Any]) -> PEARLConfig:
    """Complete a configuration from what a constructor was given.

    Args:
        config: A configuration, or d.
        options: Fields by name; must be empty beside a configuration.

    Returns:
        The configuration.

    Raises:
        InvalidTypeError: If an option does not exist.
        InvalidValueError: If options are given beside a configuration, or a field is out of range.
    """
    if isinstance(config, PEARLConfig):
        if options:
            raise InvalidValueError(f"options {', '.join(options)} beside a PEARLConfig; set them in the configuration")
        return config
    names = [field.name for field in fields(PEARLConfig)]
    if unknown := [name for name in options if name not in names]:
        raise InvalidTypeError(f"unknown option {', '.join(unknown)}; accepted are {', '.join(names)}")
    if "out_channels" in options:
        raise InvalidTypeError("out_channels is given twice; it is the first argument")
    # Checked here too, before a type checker at run time could say it in its own words.
    values: dict[str, Any] = options | {"out_channels": config}
    values.update(_checked_types(values))
    return PEARLConfig(**values)

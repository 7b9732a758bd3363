"""Normalisation of ``[N, m, C]`` tensors with ragged samples, and batch statistics recomputed before an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor, nn

if TYPE_CHECKING:
    from octavo_pearl_pe.gnn import SampleContext

__all__ = [
    "FrozenStatistics",
    "SampleBatchNorm",
    "SampleLayerNorm",
    "SampleNorm",
    "make_norm",
    "recompute_batch_statistics",
]


class SampleNorm(nn.Module):
    """No normalisation; the base of those below."""

    def forward(self, x: Float[Tensor, "nodes samples channels"], context: SampleContext) -> Tensor:
        """Return the input.

        Args:
            x: Input.
            context: The graph and the mask.

        Returns:
            The normalised input.
        """
        return x


class SampleLayerNorm(SampleNorm):
    """Layer normalisation over the channels of each node and sample.

    Args:
        channels: C.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Float[Tensor, "nodes samples channels"], context: SampleContext) -> Tensor:
        """Normalise each node and sample on its own, so that nothing depends on the batch."""
        return self.norm(x)


class SampleBatchNorm(SampleNorm):
    """Batch normalisation over nodes and samples; padded entries do not count.

    Args:
        channels: C.
        eps: Added to the variance.
        momentum: Weight of the newest batch in the running statistics; None for their plain average.
        per_graph: Normalise each graph by its own statistics in training, as the released filter stage does.

    Source:
        Released code. Its statistics differ between training and evaluation, which is harmful with random inputs:
        prefer layer norm, or call ``recompute_batch_statistics`` before evaluating.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self, channels: int, *, eps: float = 1e-5, momentum: float | None = 0.1, per_graph: bool = False
    ) -> None:
        super().__init__()
        self.eps, self.momentum, self.per_graph = eps, momentum, per_graph
        self.track_running_stats = True
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Float[Tensor, "nodes samples channels"], context: SampleContext) -> Tensor:
        """Normalise by the batch in training, by the running statistics in evaluation."""
        if not self.training:
            scale = self.weight * (self.running_var + self.eps).rsqrt()
            return x * scale + (self.bias - self.running_mean * scale)
        groups = context.batch if self.per_graph else torch.zeros_like(context.batch)
        count = context.num_graphs if self.per_graph else 1
        mask = x.new_ones(x.shape[:2]) if context.mask is None else context.mask.to(x.dtype)

        def grouped(values: Tensor) -> Tensor:
            per_node = (values * mask[..., None]).sum(1)
            return per_node.new_zeros(count, per_node.shape[1]).index_add(0, groups, per_node)

        size = grouped(torch.ones_like(x[..., :1])).clamp_min(1.0)
        mean = grouped(x) / size
        centred = x - mean[groups][:, None]
        variance = grouped(centred**2) / size
        if self.track_running_stats:
            self._track(mean, variance, size)
        return centred * ((variance + self.eps).rsqrt() * self.weight)[groups][:, None] + self.bias

    @torch.no_grad()
    def _track(self, means: Tensor, variances: Tensor, size: Tensor) -> None:
        """Update the running statistics once for each group, in order."""
        unbiased = variances * size / (size - 1.0).clamp_min(1.0)
        for mean, variance in zip(means, unbiased, strict=True):
            self.num_batches_tracked += 1
            weight = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
            self.running_var.lerp_(variance.to(self.running_var.dtype), weight)


class FrozenStatistics:
    """Context in which running statistics stay as they are, while training computes what it would without.

    It can be entered again, as a second backward pass through a checkpointed graph does.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._held: list[Any] = []

    def __enter__(self) -> None:
        """Stop the tracking."""
        self._held = [norm for norm in _batch_norms(self._model) if norm.training and norm.track_running_stats]
        for norm in self._held:
            norm.track_running_stats = False

    def __exit__(self, *raised: object) -> None:
        """Go on with it."""
        for norm in self._held:
            norm.track_running_stats = True


def _batch_norms(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, SampleBatchNorm | nn.modules.batchnorm._BatchNorm)]


def make_norm(kind: str | None, channels: int) -> SampleNorm:
    """Make a normalisation by name.

    Args:
        kind: ``"layer"``, ``"batch"`` or None.
        channels: C.

    Returns:
        The module.

    Raises:
        InvalidValueError: If the name is unknown.
    """
    match kind:
        case None:
            return SampleNorm()
        case "layer":
            return SampleLayerNorm(channels)
        case "batch":
            return SampleBatchNorm(channels)
    raise InvalidValueError(f"unknown norm {kind!r}; give 'layer', 'batch' or None")


def recompute_batch_statistics(model: nn.Module, batches: Iterable[Any], run: Callable[[Any], Any]) -> int:
    """Replace the running statistics of all batch norms by their average over a pass, dropout off ("precise BN").

    Args:
        model: The model; left in evaluation mode.
        batches: What to run it on, usually the training loader.
        run: Called with each batch; runs the model.

    Returns:
        Number of batches seen; 0 if the model has no batch norm.

    Source:
        Beyond the paper: running averages of early training made the released code's validation error spike.
    """
    norms = _batch_norms(model)
    model.eval()
    if not norms:
        return 0
    kept = [norm.momentum for norm in norms]
    for norm in norms:
        norm.running_mean.zero_()
        norm.running_var.fill_(1.0)
        norm.num_batches_tracked.zero_()
        norm.momentum = None
        norm.train()
    seen = 0
    with torch.no_grad():
        for batch in batches:
            run(batch)
            seen += 1
    for norm, momentum in zip(norms, kept, strict=True):
        norm.momentum = momentum
    model.eval()
    return seen

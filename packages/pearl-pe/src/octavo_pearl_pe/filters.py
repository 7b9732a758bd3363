"""Polynomial graph filters with a sample axis: the first stage of PEARL and the layer of its theory (section 2)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor, nn

from octavo_pearl_pe.sparse import Buffers, SparseOperator, apply_operator, apply_operator_out

__all__ = ["BASES", "FilterLayer", "GraphFilter", "filter_terms"]

BASES = ("monomial", "chebyshev", "bernstein")
"""Polynomial bases. Chebyshev and Bernstein expect the spectrum [0, 2] of the normalised Laplacian."""

_NORM_BOUNDS = {"sym_lap": 2.0, "sym_adj": 1.0}


class GraphFilter(nn.Module):
    """The terms ``[B_0(S) Q, ..., B_{K-1}(S) Q]`` of a filter, by K - 1 sparse products (Bernstein: K (K - 1) / 2).

    Args:
        num_taps: K, at least 1; the degree is K - 1.
        basis: One of ``BASES``.

    Raises:
        InvalidValueError: If an argument is out of range.

    Source:
        Section 2, ``S^k``; the Bernstein basis ``C(n, k) 2^-n (2I - S)^(n-k) S^k`` with n = K - 1 sums to I.
    """

    def __init__(self, num_taps: int, basis: str = "monomial") -> None:
        super().__init__()
        _check_filter(num_taps, basis)
        self.num_taps = num_taps
        self.basis = basis

    def forward(self, shift: Tensor, signals: Float[Tensor, "nodes samples"]) -> Float[Tensor, "nodes samples taps"]:
        """Compute the terms.

        Args:
            shift: The shift operator from ``gso``, ``[N, N]``.
            signals: One column per sample.

        Returns:
            The terms, along the last axis.

        Raises:
            InvalidTypeError: If the shift operator is not a sparse CSR matrix.
            InvalidValueError: If the sizes do not match.
        """
        if shift.layout != torch.sparse_csr:
            raise InvalidTypeError(f"the shift operator is {shift.layout}; give what gso returns, or .to_sparse_csr()")
        if signals.shape[0] != shift.shape[0]:
            raise InvalidValueError(
                f"signals have {signals.shape[0]} rows but the shift operator {shift.shape[0]}; give one row per node"
            )
        counts = shift.crow_indices().diff()
        rows = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
        operator = SparseOperator.from_sorted(
            rows, shift.col_indices(), shift.values(), shift.shape[0], symmetric=False
        )
        return torch.stack(list(filter_terms(operator, signals, self.num_taps, self.basis)), dim=-1)


def filter_terms(
    operator: SparseOperator, signal: Float[Tensor, "nodes ..."], num_taps: int, basis: str
) -> Iterator[Float[Tensor, "nodes ..."]]:
    """Yield ``B_k(S) signal`` for k = 0 to K - 1.

    Args:
        operator: S.
        signal: N rows and further axes.
        num_taps: K.
        basis: One of ``BASES``.

    Yields:
        The terms, in order.
    """
    if basis == "bernstein":
        yield from _bernstein_terms(operator, signal, num_taps)
        return
    before, term = signal, signal
    for tap in range(num_taps):
        if tap:
            shifted = apply_operator(operator, term)
            if basis == "monomial":
                term = shifted
            else:
                # Chebyshev in S - I, whose spectrum is [-1, 1] for the normalised Laplacian.
                centred = shifted - term
                before, term = term, centred if tap == 1 else 2.0 * centred - before
        yield term


def _bernstein_terms(operator: SparseOperator, signal: Tensor, num_taps: int) -> Iterator[Tensor]:
    degree = num_taps - 1
    terms = list(filter_terms(operator, signal, num_taps, "monomial"))
    for remaining in range(degree, 0, -1):
        # Term k is multiplied by (2I - S) degree - k times, those that still need it in one product.
        block = torch.stack(terms[:remaining], dim=-1)
        terms[:remaining] = (2.0 * block - apply_operator(operator, block)).unbind(-1)
    for tap, term in enumerate(terms):
        yield term * (math.comb(degree, tap) * 0.5**degree)


class FilterLayer(nn.Module):
    """A bank of filters ``sum_k B_k(S) X H_k + b`` (the paper's layer before its nonlinearity).

    Args:
        in_channels: F of the layer before.
        out_channels: F of this layer.
        num_taps: K, at least 1.
        basis: One of ``BASES``.
        bias: Whether b is learned.
        constrain: Scale each scalar filter so that its operator norm is at most 1 / F (Assumption 4.2). Needs the
            monomial basis.
        gso: Kind of the shift operator, which bounds its norm.

    Raises:
        InvalidValueError: If an argument is out of range, or the constraint does not apply.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_taps: int,
        *,
        basis: str = "monomial",
        bias: bool = True,
        constrain: bool = False,
        gso: str = "sym_lap",
    ) -> None:
        super().__init__()
        _check_filter(num_taps, basis)
        if constrain and (gso not in _NORM_BOUNDS or basis != "monomial"):
            raise InvalidValueError(
                f"constrain='beta' needs gso 'sym_lap' or 'sym_adj', whose norms are known, and the monomial basis; "
                f"got {gso!r} and {basis!r}"
            )
        self.basis = basis
        self.constrain = constrain
        self.shift_norm = _NORM_BOUNDS.get(gso, 1.0)
        self.weight = nn.Parameter(torch.empty(num_taps, in_channels, out_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the taps so that all powers contribute alike, whatever the norm of S."""
        num_taps, in_channels, _ = self.weight.shape
        bound = 1.0 / math.sqrt(num_taps * in_channels)
        nn.init.uniform_(self.weight, -bound, bound)
        if self.basis == "monomial":
            powers = self.shift_norm ** torch.arange(num_taps, dtype=self.weight.dtype)
            with torch.no_grad():
                self.weight.div_(powers[:, None, None])
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def taps(self) -> Float[Tensor, "taps inputs outputs"]:
        """Return the taps in effect: after the constraint, if there is one."""
        if not self.constrain:
            return self.weight
        powers = self.shift_norm ** torch.arange(len(self.weight), dtype=self.weight.dtype, device=self.weight.device)
        # |H(S)| <= sum_k |h_k| |S|^k, so this bounds the operator norm whatever the graph.
        norms = (self.weight.abs() * powers[:, None, None]).sum(0)
        return self.weight / (norms * self.weight.shape[1]).clamp_min(1.0)

    def forward(
        self,
        signal: Float[Tensor, "nodes samples inputs"],
        operator: SparseOperator,
        buffers: Buffers | None = None,
    ) -> Float[Tensor, "nodes samples outputs"]:
        """Apply the filters, in the precision of the operator.

        Args:
            signal: X.
            operator: S.
            buffers: Memory for the result, which the next call overwrites; used without gradients only.

        Returns:
            The filtered signal, without a nonlinearity.
        """
        with torch.autocast(signal.device.type, enabled=False):
            taps = self.taps()
            signal = signal.to(taps.dtype)
            num_taps, inputs, outputs = taps.shape
            nodes, samples = signal.shape[:2]
            if torch.is_grad_enabled():
                buffers = None
            elif buffers is None:
                buffers = Buffers()
            if self.basis == "monomial" and inputs == 1 and buffers is not None:
                return self._scalar(signal[..., 0], taps[:, 0], operator, buffers).view(nodes, samples, outputs)
            flat = signal.reshape(nodes * samples, inputs)
            if self.basis == "monomial" and outputs <= inputs:
                result = self._horner(flat, taps, operator, nodes, buffers)
            elif inputs == 1:
                terms = torch.stack(list(filter_terms(operator, signal[..., 0], num_taps, self.basis)))
                return self._mixed(terms.view(num_taps, -1).T, taps[:, 0]).view(nodes, samples, outputs)
            else:
                result = flat.new_zeros(nodes * samples, outputs)
                for tap, term in enumerate(filter_terms(operator, signal, num_taps, self.basis)):
                    result = torch.addmm(result, term.reshape(-1, inputs), taps[tap])
            if self.bias is not None:
                result = result + self.bias if buffers is None else result.add_(self.bias)
        return result.view(nodes, samples, outputs)

    def _scalar(self, signal: Tensor, taps: Tensor, operator: SparseOperator, buffers: Buffers) -> Tensor:
        """One input channel, without gradients: powers and result in buffers, the bias within the product."""
        nodes, samples = signal.shape
        terms = buffers.take(self, 1, (len(taps) * nodes, samples), taps).view(len(taps), nodes, samples)
        terms[0].copy_(signal)
        for tap in range(1, len(taps)):
            # Copied: the product of a wide block lies in memory of its own.
            terms[tap] = apply_operator_out(operator, terms[tap - 1], terms[tap])
        out = buffers.take(self, 0, (nodes * samples, taps.shape[1]), taps)
        return self._mixed(terms.view(len(taps), -1).T, taps, out)

    def _mixed(self, terms: Tensor, taps: Tensor, out: Tensor | None = None) -> Tensor:
        """The terms of one channel times the taps, plus the bias: one product, alike with and without gradients."""
        if self.bias is None:
            return torch.mm(terms, taps, out=out)
        return torch.addmm(self.bias, terms, taps, out=out)

    def _horner(
        self, flat: Tensor, taps: Tensor, operator: SparseOperator, nodes: int, buffers: Buffers | None
    ) -> Tensor:
        """``X H_0 + S (X H_1 + S (...))``: products act on the fewer channels, and X alone is kept for the gradient."""
        last = len(taps) - 1
        if buffers is None:
            result = flat @ taps[last]
            for tap in range(last - 1, -1, -1):
                shifted = apply_operator(operator, result.view(nodes, -1)).view_as(result)
                result = torch.addmm(shifted, flat, taps[tap])
            return result
        shape = (len(flat), taps.shape[2])
        result, spare = buffers.take(self, 0, shape, flat), buffers.take(self, 1, shape, flat)
        torch.mm(flat, taps[last], out=result)
        for tap in range(last - 1, -1, -1):
            shifted = apply_operator_out(operator, result.view(nodes, -1), spare.view(nodes, -1)).view(shape)
            result, spare = shifted.addmm_(flat, taps[tap]), result
        return result


def _check_filter(num_taps: int, basis: str) -> None:
    if not isinstance(num_taps, int) or num_taps < 1:
        raise InvalidValueError(f"a filter of {num_taps} taps does not exist; give a whole number filter_taps >= 1")
    if basis not in BASES:
        raise InvalidValueError(f"unknown polynomial basis {basis!r}; give one of {', '.join(BASES)}")

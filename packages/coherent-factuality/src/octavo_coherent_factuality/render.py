"""Showing results: one HTML page for a filtered trace, and a figure of calibration curves."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np
from octavo_core.errors import MissingDependencyError

from octavo_coherent_factuality.curve import CalibrationCurve
from octavo_coherent_factuality.filter import ConformalFilter, FilteredOutput
from octavo_coherent_factuality.guarantee import GuaranteeReport
from octavo_coherent_factuality.scorers import claim_risks

__all__ = ["draw_trace", "plot_curves", "trace_page"]

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%}td,th{padding:.35rem .6rem;border-bottom:1px solid #d8dee4;text-align:left;
vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums}
tr.kept td:first-child{border-left:.35rem solid #2da44e}tr.cut td:first-child{border-left:.35rem solid #cf222e}
tr.cut{color:#6e7781}pre{white-space:pre-wrap;background:#f6f8fa;padding:1rem;border-radius:.4rem}
h1,td,th,pre{overflow-wrap:anywhere}svg{max-width:100%;height:auto}
@media(max-width:600px){body{margin:1rem auto}table,tbody,tr,td{display:block;width:auto}tr:first-child{display:none}
tr{padding:.4rem 0;border-bottom:1px solid #d8dee4}td,td.n{border:0;padding:.1rem .6rem;text-align:left}
td::before{content:attr(data-head);color:#57606a;display:inline-block;min-width:6.5rem;margin-right:.5rem}
tr.kept{border-left:.35rem solid #2da44e}tr.cut{border-left:.35rem solid #cf222e}
tr.kept td:first-child,tr.cut td:first-child{border-left:0;font-weight:600}}"""


def trace_page(
    output: FilteredOutput, fitted: ConformalFilter | None = None, report: GuaranteeReport | None = None
) -> str:
    """Render a filtered trace as one HTML page that asks for nothing from anywhere.

    Args:
        output: The filtered output.
        fitted: The filter, to show the risks.
        report: What the filter promises.

    Returns:
        The page. Everything that comes from the trace is escaped.
    """
    trace = output.trace
    mask = output.mask
    risks = entries = None
    if fitted is not None:
        risks = claim_risks(fitted.method.scorer, trace)
        entries = fitted.method.output_family(trace).entry_risk
    rows, heads = [], []
    for index, claim in enumerate(trace.claims):
        premises = ", ".join(map(str, trace.graph.parents(index))) or "none"
        cells = [
            ("n", "claim", str(index)),
            ("", "text", escape(claim.text or "(no text)")),
            ("", "relies on", premises),
        ]
        if risks is not None and entries is not None:
            cells += [("n", "risk", f"{risks[index]:.4g}"), ("n", "entry risk", f"{entries[index]:.4g}")]
        cells += [
            ("", "output", "kept" if mask[index] else "cut"),
            ("", "annotation", {True: "true", False: "false", None: "none"}[claim.factual]),
        ]
        heads = [head for _, head, _ in cells]
        # On narrow screens rows become blocks, and the cells carry their own heads.
        content = "".join(f'<td class="{kind}" data-head="{head}">{cell}</td>' for kind, head, cell in cells)
        rows.append(f'<tr class="{"kept" if mask[index] else "cut"}">{content}</tr>')
    threshold = f"{output.threshold:.4g}"
    parts = [
        f"<h1>{escape(trace.question or trace.id or 'Reasoning trace')}</h1>",
        f"<p>{len(output.kept)} of {trace.num_claims} claims kept; threshold {escape(threshold)}"
        f"{'; abstained' if output.abstained else ''}.</p>",
        draw_trace(output),
        f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{''.join(rows)}</table>",
        f"<h2>Output</h2><pre>{escape(output.text())}</pre>",
    ]
    if report is not None:
        parts.append(f"<h2>What is guaranteed</h2><pre>{escape(report.text)}</pre>")
    title = escape((trace.id or "trace")[:80])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def draw_trace(output: FilteredOutput) -> str:
    """Draw the graph of a trace as SVG: premises above, kept claims green, cut ones red.

    Args:
        output: The filtered output.

    Returns:
        The SVG element.
    """
    graph, mask = output.trace.graph, output.mask
    depth = graph.depth()
    layers = [np.flatnonzero(depth == level).tolist() for level in range(int(depth.max(initial=0)) + 1)]
    width = 70 * max(len(layer) for layer in layers) + 20
    position = {
        claim: ((place + 1) * width / (len(layer) + 1), 30 + 70 * level)
        for level, layer in enumerate(layers)
        for place, claim in enumerate(layer)
    }
    lines = []
    for claim, premise in zip(graph.edge_claims.tolist(), graph.indices.tolist(), strict=True):
        (x1, y1), (x2, y2) = position[premise], position[claim]
        lines.append(f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="#8c959f"/>')
    circles = [
        f'<circle cx="{x:.0f}" cy="{y:.0f}" r="16" fill="{"#2da44e" if mask[claim] else "#cf222e"}"/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" fill="#fff" font-size="13">{claim}</text>'
        for claim, (x, y) in position.items()
    ]
    height = 70 * len(layers)
    return (
        f'<svg role="img" aria-label="deducibility graph" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}">{"".join(lines)}{"".join(circles)}</svg>'
    )


def plot_curves(curves: Mapping[str, CalibrationCurve]) -> Any:
    """Plot realised coherence against the target, and claims kept against realised coherence.

    Args:
        curves: Curves by name.

    Returns:
        A matplotlib figure.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError.for_extra("matplotlib", "octavo-coherent-factuality", "plot") from error
    figure = Figure(figsize=(10, 4.2))
    left, right = figure.subplots(1, 2)
    for name, curve in curves.items():
        target, realised = curve.column("target"), curve.column("realised")
        order = np.argsort(target)
        left.plot(target[order], realised[order], marker="o", markersize=3, label=name)
        right.plot(target[order], curve.column("retained")[order], marker="o", markersize=3, label=name)
    span = np.concatenate([curve.column("target") for curve in curves.values()])
    ends = np.array([span.min(), span.max()])
    slack = 1.0 / (next(iter(curves.values())).points[0].n + 1)
    left.fill_between(ends, ends, ends + slack, color="0.8", label="guaranteed band")
    left.set(xlabel="target 1 - alpha", ylabel="realised coherent factuality")
    right.set(xlabel="target 1 - alpha", ylabel="share of claims kept")
    left.legend(fontsize=8)
    figure.tight_layout()
    return figure

"""Penalised logP of 2,000 MOSES molecules: which encoding wins, and how far seeds spread.

Run as a script for the table; needs RDKit and ``pip install --no-deps molsets==0.3.1``.
"""

from __future__ import annotations

import sys

import numpy as np
from octavo_core.device import resolve_device
from octavo_core.progress import ProgressCallback, console_progress, no_progress
from octavo_core.report import Report
from octavo_pearl_pe.demo import molecule_error
from octavo_pearl_pe.molecules import moses_plogp

__all__ = ["run"]

NAMES = ("nope", "rwse", "lappe", "r", "b")


def run(
    *, quick: bool = False, seed: int = 0, device: str = "auto", progress: ProgressCallback = no_progress
) -> Report:
    """Train each encoding on three seeds.

    Args:
        quick: One seed, 300 molecules, 3 epochs.
        seed: First seed.
        device: Device.
        progress: Called with the encoding and the share done.

    Returns:
        The report: test mean absolute errors, no target.
    """
    target = str(resolve_device(device))
    report = Report("pearl-pe", "bench", seed=seed, title="pearl-pe: penalised logP", packages=("rdkit", "molsets"))
    seeds = range(seed, seed + (1 if quick else 3))
    sets = {number: moses_plogp(300 if quick else 2000, number) for number in seeds}
    for index, name in enumerate(NAMES):
        progress(name, index / len(NAMES))
        errors = [
            molecule_error(name, graphs, seed=number, device=target, epochs=3 if quick else 12)
            for number, graphs in sets.items()
        ]
        report.add(
            f"plogp_mae_{name}",
            f"penalised logP, test mean absolute error, encoding {name}",
            float(np.mean(errors)),
            spread=(min(errors), max(errors)),
            note=f"{len(errors)} seeds of data, split and weights",
        )
    progress("molecules", 1.0)
    return report.finish()


if __name__ == "__main__":
    from rich.console import Console

    with console_progress() as callback:
        Console().print(run(quick="--quick" in sys.argv, progress=callback).table())

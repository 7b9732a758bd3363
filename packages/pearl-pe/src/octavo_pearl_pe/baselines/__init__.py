"""The encodings that PEARL is compared with, behind one interface: ``forward(data) -> [N, d]``."""

from octavo_pearl_pe.baselines.eigenvectors import LapPE, spectrum
from octavo_pearl_pe.baselines.simple import PEG, RWSE, NoPE, RandomNodeInit
from octavo_pearl_pe.baselines.spectral import SPE, BasisNet, SignNet

__all__ = ["PEG", "RWSE", "SPE", "BasisNet", "LapPE", "NoPE", "RandomNodeInit", "SignNet", "spectrum"]

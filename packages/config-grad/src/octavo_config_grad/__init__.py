"""Conflict-free update directions for losses that disagree: ConFIG and M-ConFIG.

Qiang Liu, Mengyu Chu, Nils Thuerey, "ConFIG: Towards Conflict-free Training of Physics Informed Neural Networks",
ICLR 2025, arXiv 2408.11104.
"""

from octavo_config_grad.aggregators import Aggregator, ConFIG, LossRatio
from octavo_config_grad.baselines import IMTLG, MGDA, PCGrad, Sum
from octavo_config_grad.diagnostics import ConflictLog
from octavo_config_grad.gradients import per_loss_gradients
from octavo_config_grad.gramian import gramian, weighted_sum
from octavo_config_grad.info import UpdateInfo, update_info
from octavo_config_grad.interop import from_torchjd, to_torchjd
from octavo_config_grad.momentum import MConFIG
from octavo_config_grad.optimizer import ConFIGOptimizer
from octavo_config_grad.update import config_update, config_weights

__version__ = "0.1.0"

__all__ = [
    "IMTLG",
    "MGDA",
    "Aggregator",
    "ConFIG",
    "ConFIGOptimizer",
    "ConflictLog",
    "LossRatio",
    "MConFIG",
    "PCGrad",
    "Sum",
    "UpdateInfo",
    "config_update",
    "config_weights",
    "from_torchjd",
    "gramian",
    "per_loss_gradients",
    "to_torchjd",
    "update_info",
    "weighted_sum",
]

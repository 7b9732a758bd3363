"""Lightning with manual optimisation: two tasks on the scikit-learn digits.

``opt.step(closure=...)`` goes through Lightning's wrapper, so its step counter, hooks and precision plugins keep
working. Run: python lightning_manual.py (pip install 'octavo-config-grad[lightning]')
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import lightning
import torch
from octavo_config_grad import ConFIGOptimizer, MConFIG
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TwoTasks(lightning.LightningModule):
    """Which digit it is, and whether it is even."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.method = method
        self.trunk = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.digit = nn.Linear(32, 10)
        self.even = nn.Linear(32, 1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return ConFIG on the trunk with plain gradients for the heads, or M-ConFIG on everything."""
        if self.method == "config":
            return ConFIGOptimizer(torch.optim.Adam(self.parameters(), lr=1e-2), shared=self.trunk)
        return MConFIG(self.parameters(), num_losses=2, lr=1e-2)

    def losses(self, images: torch.Tensor, digits: torch.Tensor) -> list[torch.Tensor]:
        """Return the loss of each task."""
        features = self.trunk(images)
        even = (digits % 2 == 0).float()
        return [
            nn.functional.cross_entropy(self.digit(features), digits),
            nn.functional.binary_cross_entropy_with_logits(self.even(features).squeeze(1), even),
        ]

    def training_step(self, batch: list[torch.Tensor], batch_index: int) -> None:
        """Step on both losses, or on the one that M-ConFIG asks for."""
        opt: Any = self.optimizers()
        if self.method == "config":
            opt.step(closure=lambda: self.losses(*batch))
        else:
            opt.step(closure=lambda: {index: self.losses(*batch)[index] for index in opt.next_losses()})


def main(epochs: int = 6, seed: int = 0) -> float:
    """Train with ConFIG and with M-ConFIG, and return the lower of the two test accuracies of the digit task."""
    images, digits = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16.0
    accuracies = []
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for method in ("config", "m-config"):
        torch.manual_seed(seed)
        model = TwoTasks(method)
        batches = DataLoader(TensorDataset(images[:1200], digits[:1200]), batch_size=64, shuffle=True)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = lightning.Trainer(
                max_epochs=epochs,
                accelerator="cpu",
                default_root_dir=folder,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(model, batches)
        assert trainer.global_step == epochs * len(batches)
        with torch.no_grad():
            guesses = model.digit(model.trunk(images[1200:])).argmax(1)
            accuracies.append(float((guesses == digits[1200:]).float().mean()))
    return min(accuracies)


if __name__ == "__main__":
    print(f"result: digit accuracy {main():.4f}")

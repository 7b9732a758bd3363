"""Accelerate, on one process or many: two tasks on the scikit-learn digits.

Accelerate places and shards the data; the gradients of each loss are averaged over the processes by ConFIGOptimizer,
before it combines them. That is why the losses are computed under ``no_sync``: DDP would average only what
``backward`` leaves in ``.grad``. Run: python accelerate_ddp.py, or
torchrun --nproc_per_node 2 accelerate_ddp.py (pip install 'octavo-config-grad[accelerate]')
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from octavo_config_grad import ConFIGOptimizer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TwoTasks(nn.Module):
    """Logits of the ten digits, and of being even."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.digit = nn.Linear(32, 10)
        self.even = nn.Linear(32, 1)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both logits."""
        features = self.trunk(images)
        return self.digit(features), self.even(features).squeeze(1)


def main(epochs: int = 6, seed: int = 0) -> float:
    """Train, and return the test accuracy of the digit task."""
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(seed)
    images, digits = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16.0
    model = TwoTasks()
    batches = DataLoader(TensorDataset(images[:1200], digits[:1200]), batch_size=64, shuffle=True)
    optimizer = ConFIGOptimizer(torch.optim.Adam(model.parameters(), lr=1e-2), shared=model.trunk)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(batches))
    model, optimizer, batches, scheduler = accelerator.prepare(model, optimizer, batches, scheduler)

    for _ in range(epochs):
        for inputs, labels in batches:
            with accelerator.no_sync(model):
                digit_logits, even_logits = model(inputs)
                losses = [
                    nn.functional.cross_entropy(digit_logits, labels),
                    nn.functional.binary_cross_entropy_with_logits(even_logits, (labels % 2 == 0).float()),
                ]
                optimizer.step(losses)
            scheduler.step()

    with torch.no_grad():
        guesses = accelerator.unwrap_model(model)(images[1200:])[0].argmax(1)
    return float((guesses == digits[1200:]).float().mean())


if __name__ == "__main__":
    # Every process arrives at the same network.
    print(f"result: digit accuracy {main():.4f}")

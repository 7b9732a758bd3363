"""torchjd both ways: its Aligned-MTL inside ConFIGOptimizer, and ConFIG inside its engine.

Two tasks on the scikit-learn digits, which digit it is and whether it is even, from one trunk.
Run: python torchjd_interop.py (pip install 'octavo-config-grad[torchjd]')
"""

from __future__ import annotations

import torch
from octavo_config_grad import ConFIG, ConFIGOptimizer, from_torchjd, to_torchjd
from sklearn.datasets import load_digits
from torch import nn
from torchjd.aggregation import AlignedMTL
from torchjd.autojac import backward, jac_to_grad


def main(steps: int = 150, seed: int = 0) -> float:
    """Train both ways, and return the lower of the two test accuracies of the digit task."""
    images, digits = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16.0
    train, test = slice(0, 1200), slice(1200, None)

    def make_net() -> nn.ModuleDict:
        torch.manual_seed(seed)
        trunk = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        return nn.ModuleDict({"trunk": trunk, "digit": nn.Linear(32, 10), "even": nn.Linear(32, 1)})

    def losses(net: nn.ModuleDict) -> list[torch.Tensor]:
        features = net["trunk"](images[train])
        even = (digits[train] % 2 == 0).float()
        return [
            nn.functional.cross_entropy(net["digit"](features), digits[train]),
            nn.functional.binary_cross_entropy_with_logits(net["even"](features).squeeze(1), even),
        ]

    def accuracy(net: nn.ModuleDict) -> float:
        with torch.no_grad():
            return float((net["digit"](net["trunk"](images[test])).argmax(1) == digits[test]).float().mean())

    # An aggregator of torchjd in our optimizer.
    first = make_net()
    optimizer = ConFIGOptimizer(
        torch.optim.Adam(first.parameters(), lr=1e-2), from_torchjd(AlignedMTL()), shared=first["trunk"]
    )
    for _ in range(steps):
        optimizer.step(losses(first))

    # ConFIG in torchjd's engine.
    second = make_net()
    adam = torch.optim.Adam(second.parameters(), lr=1e-2)
    aggregator = to_torchjd(ConFIG())
    for _ in range(steps):
        adam.zero_grad()
        backward(losses(second))
        jac_to_grad(second.parameters(), aggregator)
        adam.step()

    return min(accuracy(first), accuracy(second))


if __name__ == "__main__":
    print(f"result: digit accuracy {main():.4f}")

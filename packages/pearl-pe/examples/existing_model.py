"""The encoding in a model that is there already: concatenate it to the node features and train both together."""

from __future__ import annotations

import torch
from octavo_pearl_pe import PEARL
from torch_geometric.datasets import FakeDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn.models import GIN
from torch_geometric.nn.pool import global_add_pool

data = FakeDataset(num_graphs=64, avg_num_nodes=20, num_channels=8, num_classes=2)
pe = PEARL(16, make_undirected=True)
model = GIN(8 + 16, 32, num_layers=2, out_channels=2)
optimizer = torch.optim.Adam([*pe.parameters(), *model.parameters()], lr=1e-3)
for batch in DataLoader(data, batch_size=32, shuffle=True):
    x = torch.cat([batch.x, pe(batch)], dim=1)
    out = global_add_pool(model(x, batch.edge_index), batch.batch)
    loss = torch.nn.functional.cross_entropy(out, batch.y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.3f}")

"""The embedded example's report."""

from __future__ import annotations

import numpy as np
import pytest
from octavo_config_grad import demo, pinn


@pytest.mark.parametrize("quick", [True, False])
def test_a_single_seed_has_no_spread(monkeypatch, quick):
    tiny = pinn.TrainingConfig(steps=2, points=pinn.PointCounts(8, 8, 8), hidden=(4,))
    run = demo._Run(pinn.train(pinn.Burgers(), "adam", tiny))
    monkeypatch.setattr(demo, "_train_all", lambda jobs, progress: {job[:2]: run for job in jobs})
    report = demo.run(quick=quick, device="cpu")
    rows = [row for row in report.rows if row.id.endswith("mse")]
    assert rows
    assert all((row.spread is None) == quick for row in rows)
    assert demo._range(np.array([2.0, 1.0])) == (1.0, 2.0)

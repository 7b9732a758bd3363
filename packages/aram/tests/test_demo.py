"""The embedded example and the benchmarks: rows, targets, and the quick claims."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
from octavo_aram import bench, demo
from octavo_aram.equivalence import equivalence_holds


@pytest.mark.claim
def test_quick_demo_holds_its_claims(tmp_path):
    # In a process of its own: checking shapes at every call makes a training many times slower.
    command = [sys.executable, "-m", "octavo_core.cli", "aram", "demo", "--quick", "--json", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["id"]: row for row in json.loads((tmp_path / "report.json").read_text())["rows"]}
    assert {"aram_valid_rate", "qp_share_vs_projection", "executed_violations", "return_vs_spre"} <= set(rows)
    assert rows["aram_valid_rate"]["target"] == "value >= 0.90"
    assert rows["qp_share_vs_projection"]["target"] == "value <= 0.01"
    assert rows["executed_violations"]["value"] == 0
    assert all(row["holds"] is not False for row in rows.values())
    if importlib.util.find_spec("matplotlib") is not None:
        assert (tmp_path / "runs.png").read_bytes().startswith(b"\x89PNG")


def test_without_mujoco_the_example_is_bike_sharing(monkeypatch):
    monkeypatch.setattr(demo, "_has_mujoco", lambda: False)
    settings = demo.demo_settings("aram", seed=3)
    assert (settings.env, settings.constraint) == ("octavo_aram/BSS3z-v0", "BSS3z")
    assert settings.config.seed == 3
    # The bound of the equivalence at the lowest reward of a random policy, about -3.4, and preference (0.5, 0.5).
    assert equivalence_holds(settings.config.penalty, -3.5, settings.config.preference)


@pytest.mark.claim
def test_quick_demo_without_mujoco_holds_its_claims(tmp_path):
    # The module is hidden in a process of its own.
    code = (
        "import sys; from octavo_aram import demo; demo._has_mujoco = lambda: False\n"
        "if __name__ == '__main__':\n"
        "    from octavo_core.cli import main\n"
        f"    sys.exit(main(['aram', 'demo', '--quick', '--json', '--out', {str(tmp_path)!r}]))\n"
    )
    (tmp_path / "run.py").write_text(code)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "run.py")], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    rows = {row["id"]: row for row in json.loads((tmp_path / "report.json").read_text())["rows"]}
    assert "bike-sharing" in rows["aram_valid_rate"]["note"]
    assert rows["aram_valid_rate"]["value"] >= 0.9
    assert rows["qp_share_vs_projection"]["value"] <= 0.01


def test_a_policy_of_a_given_spread():
    agent = bench.make_agent("aram", bench.PointEnv(), bench.L2Ball(0.05, action_dim=2))
    bench.set_policy_spread(agent, 0.1)
    import numpy as np

    draws = agent.proposals(np.ones((1, 10)), np.array([0.5, 0.5]), 20_000)[0]
    assert np.arctanh(draws).std() == pytest.approx(0.1, rel=0.03)

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from octavo_core.errors import OctavoError
from octavo_magicpig import bench, demo, plots, tune
from octavo_magicpig.cli import app
from typer.testing import CliRunner

RUNNER = CliRunner()
LATIN = Path(__file__).parent / "data" / "case_mha_k4_l12.npz"


def test_the_command_line_does_not_load_torch() -> None:
    code = "import sys, octavo_magicpig.cli; print('torch' in sys.modules)"
    # The package itself imports torch; the plug-in must be reachable without it.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_info_names_the_kernel() -> None:
    result = RUNNER.invoke(app, ["info"])
    assert result.exit_code == 0
    assert result.output.startswith("active: ")
    document = json.loads(RUNNER.invoke(app, ["info", "--json"]).output)
    assert set(document["reasons"]) == {"native", "numba", "torch"}
    assert document["reasons"][document["active"]] == "available"


def test_timing(tmp_path: Path) -> None:
    words = ["time", "--heads", "4/2", "--dim", "32", "--lengths", "512,1k", "--batch", "1", "--enable-gqa", "--quiet"]
    result = RUNNER.invoke(app, [*words, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    document = json.loads((tmp_path / "timing.json").read_text())
    assert [row["keys"] for row in document["steps"]] == [512, 1024]
    assert {"lsh_ms", "dense_ms", "grouped_ms", "enable_gqa_ms"} <= set(document["steps"][0])
    assert (tmp_path / "timing.md").read_text().startswith("| keys | batch |")
    assert (tmp_path / "timing.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["time", "--heads", "5/2"], "not a multiple"),
        (["time", "--lengths", "4q"], "not a positive number"),
        (["eval", "niah", "--resume"], "--resume needs --out"),
        (["eval", "nll", "--text", "/nowhere.txt"], "no file"),
        (["eval", "qa"], "unknown task"),
        (["eval", "niah", "--methods", "magic"], "unknown method"),
        (["tune", "--text", "/nowhere.txt"], "no file"),
        (["eval", "nll", "--bits", "20"], "key_bits=20"),
        (["eval", "niah", "--protocol", ""], "give A, B or both"),
        (["eval", "niah", "--protocol", "C"], "unknown protocol 'C'"),
        (["eval", "niah", "--budget", "0"], "budget=0.0"),
        (["eval", "niah", "--budget", "nan"], "budget=nan"),
        (["eval", "nll", "--text", str(LATIN)], "not UTF-8"),
        (["tune", "--text", str(LATIN)], "not UTF-8"),
        (["tune", "--budget", "0"], "budget=0.0"),
        (["time", "--lengths", "100000000k"], "GiB"),
        (["time", "--lengths", "\u00b2k"], "not a positive number"),
        (["time", "--lengths", "9" * 5000], "not a positive number"),
        (["time", "--threads", "100000"], "--threads 100000"),
    ],
)
def test_bad_input_is_told(words: list[str], message: str) -> None:
    if words[0] != "time":
        pytest.importorskip("transformers", minversion="5.24")
    result = RUNNER.invoke(app, words)
    assert isinstance(result.exception, OctavoError)
    assert message in str(result.exception)


@pytest.mark.parametrize("words", [["niah", "--device", "tpu"], ["nll", "--device", "tpu"]])
def test_a_device_is_checked_before_the_model_is_loaded(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", minversion="5.24")
    monkeypatch.setattr("octavo_magicpig.evaluation._runner.load_model", lambda _: pytest.fail("the model was loaded"))
    result = RUNNER.invoke(app, ["eval", *words])
    assert isinstance(result.exception, OctavoError)
    assert "tpu" in str(result.exception)


SAMPLE = {
    name: torch.randn(1, heads, tokens, 16, generator=torch.Generator().manual_seed(seed))
    for seed, (name, heads, tokens) in enumerate((("queries", 4, 2), ("keys", 2, 200), ("values", 2, 200)))
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": None}, "queries is of type NoneType"),
        ({"queries": SAMPLE["queries"][:, :, :0]}, "queries of shape.*at least one"),
        ({"queries": SAMPLE["queries"][:, :, 0]}, "queries of shape"),
        ({"queries": SAMPLE["queries"][:, :3]}, "3 heads.*num_kv_heads=2"),
        ({"keys": SAMPLE["keys"][0]}, "keys of shape"),
        ({"values": SAMPLE["values"][:, :1]}, "values of shape"),
        ({"keys": SAMPLE["keys"][:, :, :60], "values": SAMPLE["values"][:, :, :60]}, "60 tokens.*at least 69"),
        ({"candidates": (8, 75)}, "candidates holds 8.*pairs"),
        ({"candidates": 8}, "candidates=8.*pairs"),
        ({"candidates": [(8, 75, 2)]}, "candidates holds .*pairs"),
        ({"budget": "a"}, "budget='a'"),
        ({"max_table_bytes": "a"}, "max_table_bytes='a'"),
    ],
)
def test_a_sample_that_cannot_be_tuned_on_is_told(change: dict[str, Any], message: str) -> None:
    with pytest.raises(OctavoError, match=message):
        tune(**(SAMPLE | change))


def test_the_smallest_sample_is_tuned_on() -> None:
    (row,) = tune(**{name: tensor[:, :, :69] for name, tensor in SAMPLE.items()}, candidates=[[4, 20]])
    assert row.num_tables == 20
    assert math.isfinite(row.predicted_fraction)


def test_quick_demo() -> None:
    tour = demo.run(quick=True)
    rows = {row.id: row for row in tour.rows}
    assert rows["aggregation_error_lsh"].holds
    assert rows["aggregation_error_topk"].holds
    assert "skipped" in rows["needle_hits_lsh"].note
    assert tour.holds
    json.dumps(tour.to_json(), allow_nan=False)


@pytest.mark.slow
def test_quick_bench() -> None:
    report = bench.run(quick=True)
    rows = {row.id: row for row in report.rows}
    assert rows["decode_vs_grouped_sdpa_16k"].ratio is not None
    assert "skipped" in rows["end_to_end_vs_stock_32k"].note
    json.dumps(report.to_json(), allow_nan=False)


def test_figures() -> None:
    for figure in (
        plots.plot_error_against_budget({"lsh": [(0.01, 0.2), (0.02, 0.1)], "topk": [(0.01, 0.05)]}),
        plots.plot_fraction_by_layer({1: [0.1, 0.2], 2: [0.3, 0.1]}),
        plots.plot_time_against_length([512, 1024], {"lsh": [1.0, 2.0]}),
    ):
        assert figure.axes[0].get_xlabel()

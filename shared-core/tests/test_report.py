from __future__ import annotations

import json
import math
import re
import shutil
import struct
import subprocess
import time
import zlib
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from octavo_core.errors import InvalidStateError, InvalidValueError, MissingFileError
from octavo_core.report import SCHEMA, Report, Row, load_report, target_holds
from rich.console import Console

JSON_SCHEMA = json.loads((Path(__file__).parents[2] / "tests-integration" / "report.schema.json").read_text())


def png(width: int, height: int) -> bytes:
    """Return a picture with a gradient, large enough to be squeezed on a phone."""
    column = np.linspace(0, 255, width).astype(np.uint8)
    lines = b"".join(b"\0" + column.tobytes() for _ in range(height))

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/octavo", "demo", "config-grad", "--out", "a folder"])
    report = Report("config-grad", "demo", seed=3, title="A demo <b>", packages=["no-such-distribution"])
    report.add("speed", "Time of an update", 2.0, "ms", peer="peer 1.0", peer_value=9.0, target="ratio >= 4")
    report.add("slow", "Slow <script>alert(1)</script>", 9.0, "ms", peer="p & q", peer_value=3.0, target="ratio > 1")
    report.add("check", "All fall", True, target="value == 1", note='said "so" with a long ' + "word " * 30)
    report.add("plain", "Steps", 24_000, spread=(23_000.0, 25_000.0))
    report.attach("landscape.png", png(1500, 400))
    report.attach("history.csv", b"step,loss\n")
    return report


@pytest.mark.parametrize(
    ("target", "fields", "expected"),
    [
        ("ratio >= 5", {"ratio": 5.0}, True),
        ("ratio > 5", {"ratio": 5.0}, False),
        ("value<=1e-3", {"value": 0.001}, True),
        ("value < -.5", {"value": -1}, True),
        ("peer_value == 2", {"peer_value": 2.0}, True),
        ("0.9 <= value <= 1.1", {"value": 0.9}, True),
        ("0.9 <= value <= 1.1", {"value": 1.2}, False),
        ("0.9 <= value <= 1.1", {"value": 0.8}, False),
        ("ratio >= 2 and value <= +1.", {"ratio": 2.0, "value": 1.0}, True),
        ("ratio >= 2 and value <= 1", {"ratio": 1.0, "value": 1.0}, False),
        ("ratio >= 2 and value <= 1", {"ratio": 3.0, "value": 2.0}, False),
        ("value == 1", {"value": True}, True),
        ("value == 1", {"value": False}, False),
        ("value >= 0", {"value": None}, False),
        ("value >= 0", {}, False),
        ("value >= 0", {"value": math.inf}, False),
        ("value <= 0", {"value": math.nan}, False),
        ("0 <= value <= 1", {"value": math.nan}, False),
    ],
)
def test_targets(target: str, fields: dict[str, Any], expected: bool) -> None:
    assert target_holds(target, fields) is expected


@pytest.mark.parametrize(
    "target",
    [
        *("", "ratio", "ratio => 5", "ratio >= five", "speed >= 2", "5 <= ratio", "ratio >= 5 or value < 1"),
        *("ratio >= 5 and", "1 < value < 2", "ratio >= 5; import os", "value >= nan", "value >= 1e", "and value >= 1"),
        "value <= 0 and speed >= 2",
    ],
)
def test_a_target_that_cannot_be_read_is_refused_when_the_row_is_made(target: str) -> None:
    with pytest.raises(InvalidValueError, match="cannot be read; write comparisons"):
        Row("id", "label", 1.0, target=target)


@pytest.mark.parametrize(
    ("value", "peer", "better", "ratio"),
    [
        (2.0, 10.0, "lower", 5.0),
        (2.0, 10.0, "higher", 0.2),
        (0.9, 0.6, "higher", 1.5),
        (0.0, 0.5, "higher", 0.0),
        (0.0, 3.0, "lower", None),
        (1.0, 0.0, "higher", None),
        (-1.0, -2.0, "higher", None),
        (None, 2.0, "lower", None),
        (2.0, None, "lower", None),
    ],
)
def test_ratio_is_how_many_times_better(value: Any, peer: Any, better: Any, ratio: float | None) -> None:
    row = Row("id", "label", value, peer="peer", peer_value=peer, better=better, target="ratio >= 1")
    assert row.ratio == (None if ratio is None else pytest.approx(ratio))
    assert row.holds is (ratio is not None and ratio >= 1)


def test_holds_is_computed_and_cannot_be_passed_in() -> None:
    assert Row("id", "label", 1.0).holds is None
    with pytest.raises(TypeError):
        Report("m", "demo").add("id", "label", 1.0, holds=True)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array(2.0), 2.0),
        (torch.tensor(0.25), 0.25),
        (torch.tensor(False), False),
    ],
)
def test_scalars_of_numpy_and_torch_become_plain(given: Any, plain: float | bool) -> None:
    row = Report("m", "demo").add("id", "label", given, peer_value=given).to_json()
    for written in (row["value"], row["peer_value"]):
        assert (written, type(written)) == (plain, type(plain))


def test_ids_are_unique() -> None:
    report = Report("m", "demo")
    report.add("a", "first", 1)
    with pytest.raises(InvalidValueError, match="'a' exists already"):
        report.append(Row("a", "second", 2))
    assert [row.label for row in report.rows] == ["first"]


def test_a_report_holds_unless_a_target_fails(report: Report) -> None:
    assert not report.holds
    report.rows = [row for row in report.rows if row.id != "slow"]
    assert report.holds
    assert Report("m", "demo").holds


def test_json_follows_the_schema_and_is_strict(report: Report) -> None:
    report.add("nan", "Not a number", math.nan, peer="p", peer_value=math.inf, spread=(math.nan, 1.0), target="value>0")
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    jsonschema.validate(document, JSON_SCHEMA)
    assert document["schema"] == SCHEMA
    assert (document["method"], document["kind"], document["seed"]) == ("config-grad", "demo", 3)
    assert document["artifacts"] == ["landscape.png", "history.csv"]
    rows = {row["id"]: row for row in document["rows"]}
    assert (rows["speed"]["ratio"], rows["speed"]["holds"]) == (4.5, True)
    assert (rows["slow"]["holds"], rows["plain"]["holds"]) == (False, None)
    assert rows["check"]["value"] is True
    assert rows["nan"]["value"] is rows["nan"]["peer_value"] is rows["nan"]["ratio"] is None
    assert rows["nan"]["spread"] == [None, 1.0]
    assert rows["nan"]["holds"] is False


def test_the_clock_stops_once() -> None:
    report = Report("m", "bench")
    time.sleep(0.01)
    seconds = report.finish().seconds
    assert seconds >= 0.01
    time.sleep(0.01)
    assert report.finish().seconds == seconds
    assert report.to_json()["seconds"] == round(seconds, 3)


def test_the_command_is_the_one_that_ran_and_can_be_pasted_from_the_page(report: Report) -> None:
    assert report.command == ["octavo", "demo", "config-grad", "--out", "a folder"]
    assert "octavo demo config-grad --out 'a folder'" in _Page(report.to_html()).words


def test_save_writes_the_three_kinds_of_files_and_load_reads_them(report: Report, tmp_path: Path) -> None:
    folder = report.save(tmp_path / "new" / "out")
    assert {path.name for path in folder.iterdir()} == {"report.json", "report.html", "landscape.png", "history.csv"}
    assert (folder / "history.csv").read_bytes() == b"step,loss\n"
    assert load_report(folder) == load_report(folder / "report.json") == report.to_json()


def test_a_matplotlib_figure_is_attached_as_png() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    figure.subplots().plot([1, 2])
    report = Report("m", "demo")
    report.attach("curve.png", figure)
    assert report.artifacts["curve.png"].startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["", "a/b.png", "../b.png", ".hidden", "report.json", "report.html", "/etc/x"])
def test_artifact_names_stay_in_the_folder(name: str) -> None:
    with pytest.raises(InvalidValueError, match="give a plain file name"):
        Report("m", "demo").attach(name, b"")


def test_an_unwritable_place_is_told(report: Report, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidStateError, match="cannot write"):
        report.save(tmp_path / "file" / "out")


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no report at"):
        load_report(tmp_path)
    for content, message in (
        ("{", "is not JSON"),
        ("[]", "schema is 'list'"),
        ('{"schema": "x/2"}', "schema is 'x/2'"),
    ):
        (tmp_path / "report.json").write_text(content)
        with pytest.raises(InvalidValueError, match=message):
            load_report(tmp_path)


def test_the_table_shows_every_row_and_reads_no_markup() -> None:
    report = Report("m", "demo", title="Lengths [m]")
    report.add("a", "Length [x]", 1.5, "[m]", peer="peer [/y] 1", peer_value=3.0, target="ratio >= 3", note="[z]")
    console = Console(width=160, color_system=None)
    with console.capture() as capture:
        console.print(report.table())
    shown = " ".join(capture.get().split())
    for part in (
        "Lengths [m]",
        "Length [x]",
        "1.5 [m]",
        "3 [m] peer [/y] 1",
        "2x",
        "ratio >= 3",
        "DOES NOT HOLD",
        "[z]",
    ):
        assert part in shown


def test_a_summary_is_one_phrase() -> None:
    row = Row("a", "Time", 2.0, "ms", peer="peer 1", peer_value=9.0, target="ratio >= 4", spread=(1.5, 2.5))
    assert row.summary() == "2 ms (1.5 to 2.5) against 9 ms peer 1 (4.5x) [target ratio >= 4]"
    assert Row("b", "Missing", None).summary() == "n/a"
    assert Row("c", "Check", False).summary() == "no"


class _Page(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "action", "data"}]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_asks_for_nothing_and_escapes_everything(report: Report) -> None:
    page = report.to_html()
    parsed = _Page(page)
    assert parsed.links
    assert all(link.startswith("data:") for link in parsed.links)
    assert not re.search(r"url\(|@import|https?://|//[a-z]", page)
    assert not {"script", "iframe", "object", "b"} & set(parsed.tags)
    for shown in ("A demo <b>", "Slow <script>alert(1)</script>", "p & q", 'said "so"', "history.csv", "2 of 3 claims"):
        assert shown in parsed.words
    assert "default-src 'none'" in page


@pytest.fixture(scope="module")
def browse(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    profile = tmp_path_factory.mktemp("profile")

    def run(page: Path, width: int, *flags: str) -> str:
        command = [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={profile}", f"--window-size={width},1200", *flags, page.as_uri()),
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    return run


# Asks the page itself, in a frame as wide as the screen, because headless windows have a least width.
PROBE = """
<!doctype html><iframe src="report.html" style="width:{width}px;height:1000px;border:0"></iframe><pre id="out"></pre>
<script>
addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument, image = page.querySelector("img");
  document.getElementById("out").textContent = JSON.stringify({{
    width: page.documentElement.scrollWidth, image: image.getBoundingClientRect().width, natural: image.naturalWidth,
    header: getComputedStyle(page.querySelector("thead")).display, title: page.title,
    color: getComputedStyle(page.querySelector(".false")).color,
  }});
}});
</script>
"""


@pytest.mark.parametrize(("width", "header"), [(390, "none"), (1200, "table-header-group")])
def test_the_page_fits_the_screen_in_chromium(
    report: Report, tmp_path: Path, browse: Callable[..., str], width: int, header: str
) -> None:
    report.save(tmp_path)
    (tmp_path / "probe.html").write_text(PROBE.format(width=width))
    page = browse(tmp_path / "probe.html", width, "--allow-file-access-from-files", "--dump-dom")
    found = json.loads(re.search(r'<pre id="out">(.*?)</pre>', page)[1].replace("&lt;", "<").replace("&gt;", ">"))
    assert found["width"] <= width
    assert found["natural"] == 1500
    assert 300 < found["image"] <= width - 32
    assert found["header"] == header
    assert found["title"] == "A demo <b>"
    assert found["color"] != "rgb(28, 36, 48)"


def test_a_screenshot_of_the_page_is_not_blank(report: Report, tmp_path: Path, browse: Callable[..., str]) -> None:
    report.save(tmp_path)
    shot = tmp_path / "shot.png"
    browse(tmp_path / "report.html", 390, f"--screenshot={shot}")
    content = shot.read_bytes()
    assert content.startswith(b"\x89PNG")
    # A blank page of this size compresses to about 5 kB.
    assert len(content) > 20_000

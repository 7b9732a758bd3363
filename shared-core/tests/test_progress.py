from __future__ import annotations

import sys

import pytest
from octavo_core.progress import console_progress, no_progress


def test_lines_go_to_stderr_once_per_interval_and_the_end_once(capsys: pytest.CaptureFixture[str]) -> None:
    with console_progress(every_seconds=3600.0) as progress:
        for step in range(11):
            progress("training", step / 10)
        progress("training", 1.0)
        progress("evaluating", 0.5)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["training: 0%", "training: 100%", "evaluating: 50%"]


def test_quiet_and_the_default_of_library_code_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with console_progress(quiet=True) as progress:
        progress("training", 1.0)
    no_progress("training", 0.5)
    assert capsys.readouterr() == ("", "")


def test_a_bar_is_drawn_on_a_terminal_only_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with console_progress() as progress:
        progress("training", 0.25)
        progress("training", 1.0)
    out, err = capsys.readouterr()
    assert out == ""
    assert "training" in err
    assert "100%" in err

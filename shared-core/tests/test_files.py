from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from octavo_core.errors import InvalidStateError
from octavo_core.files import atomic_path, atomic_write, ensure_folder


@pytest.mark.parametrize(("content", "expected"), [("größer\n", "größer\n".encode()), (b"\x00\xff", b"\x00\xff")])
def test_atomic_write_stores_text_as_utf8_and_bytes_as_they_are(
    tmp_path: Path, content: str | bytes, expected: bytes
) -> None:
    path = atomic_write(tmp_path / "file.txt", content)
    assert path.read_bytes() == expected
    assert os.listdir(tmp_path) == ["file.txt"]


def test_an_exception_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    target = atomic_write(tmp_path / "file.bin", b"old")

    def fail() -> None:
        with atomic_path(target) as temporary:
            temporary.write_bytes(b"half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.bin"]


def test_what_the_writer_leaves_beside_the_file_is_removed_and_the_name_is_kept(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "weights.npz") as temporary:
        assert temporary.name == "weights.npz"
        assert temporary.parent.parent == tmp_path
        (temporary.parent / ".tmp-of-the-writer").write_text("x")
        temporary.write_text("x")
    assert os.listdir(tmp_path) == ["weights.npz"]


def test_a_block_that_writes_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidStateError, match="cannot write"), atomic_path(tmp_path / "file"):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="permission bits are POSIX")
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask_and_the_umask_stays(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        path = atomic_write(tmp_path / "file", "x")
    finally:
        left = os.umask(before)
    assert left == mask
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_folder_below_a_regular_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, reason in {
        tmp_path / "file": "it is a file; give a",
        tmp_path / "file" / "below": "give a folder you",
    }.items():
        with pytest.raises(InvalidStateError, match=rf"cannot write to the folder .*file.*{reason}"):
            ensure_folder(path)


@pytest.mark.parametrize("place", ["missing/file.txt", "regular/file.txt"])
def test_a_file_that_cannot_be_made_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "regular").write_text("x")
    with pytest.raises(InvalidStateError, match=f"cannot write .*{place}"):
        atomic_write(tmp_path / place, "x")


def test_a_folder_in_the_place_of_the_file_is_named_and_kept(tmp_path: Path) -> None:
    (tmp_path / "report.json" / "inner").mkdir(parents=True)
    with pytest.raises(InvalidStateError, match=r"cannot write .*report.json"):
        atomic_write(tmp_path / "report.json", "x")
    assert os.listdir(tmp_path) == ["report.json"]


def test_ensure_folder_makes_parents_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = ensure_folder(tmp_path / "a" / "b")
    assert folder.is_dir()
    assert os.listdir(folder) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kill_9_while_writing_leaves_one_whole_content(tmp_path: Path) -> None:
    script = """
        import os, random, signal, sys, time
        from octavo_core.files import atomic_write

        target = sys.argv[1]
        atomic_write(target, b"0" * 2_000_000)
        for kill in range(25):
            child = os.fork()
            if not child:
                digit = 0
                while True:
                    digit = (digit + 1) % 10
                    atomic_write(target, str(digit).encode() * 2_000_000)
            time.sleep(random.Random(kill).uniform(0.005, 0.04))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            content = open(target, "rb").read()
            assert len(content) == 2_000_000 and content == content[:1] * 2_000_000, (kill, len(content))
        print("whole")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "target.bin")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "whole", done.stderr

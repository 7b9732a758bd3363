"""A README says what a user must know to choose, install, try and judge a package, and its example runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Member, Python

SECTIONS = {
    "core": ["Install", "Example"],
    "method": [
        "When to use it",
        "Install",
        "Example",
        "Your own data",
        "Reproduced claims",
        "Performance",
        "Limits",
        "Citation",
    ],
}


def sections(readme: str) -> dict[str, str]:
    """Second-level sections by heading; headings inside code blocks do not count."""
    found: dict[str, list[str]] = {}
    body: list[str] = []
    fenced = False
    for line in readme.splitlines():
        fenced ^= line.lstrip().startswith("```")
        if not fenced and line.startswith("## "):
            body = found.setdefault(line[3:].strip(), [])
        else:
            body.append(line)
    return {heading: "\n".join(lines).strip() for heading, lines in found.items()}


def test_readme_has_the_required_sections(member: Member) -> None:
    assert member.readme.startswith(f"# {member.distribution}\n")
    wanted = SECTIONS["core" if member.slug == "core" else "method"]
    found = sections(member.readme)
    assert [heading for heading in found if heading in wanted] == wanted
    assert not [heading for heading in wanted if not found[heading]]
    assert f"pip install {member.distribution}" in found["Install"].replace('"', "").replace("'", "")


def test_readme_tells_when_not_to_use_it(method: Member) -> None:
    assert re.search(r"(?i)\bnot\b", sections(method.readme)["When to use it"]), "say also when not to use it"


def test_readme_names_a_command_for_each_claim(method: Member) -> None:
    table = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        for line in sections(method.readme)["Reproduced claims"].splitlines()
        if line.lstrip().startswith("|")
    ]
    assert len(table) > 2, "a table with a header and at least one claim"
    header, _, *claims = table
    column = [name.lower() for name in header].index("command")
    assert not [claim for claim in claims if not re.search(r"`[^`]+`", claim[column])]


def test_readme_example_runs_as_pasted(member: Member, workspace_python: Python, tmp_path: Path) -> None:
    example = re.search(r"^```python\n(.*?)^```", member.readme, re.MULTILINE | re.DOTALL)
    assert example is not None
    (tmp_path / "example.py").write_text(example[1])
    done = workspace_python("example.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr

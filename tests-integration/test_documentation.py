"""Public names are documented: what goes in, what comes out, what is refused."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Member


def test_every_module_has_a_docstring(member: Member) -> None:
    files = sorted(member.source.rglob("*.py"))
    assert not [str(f.relative_to(member.source)) for f in files if not ast.get_docstring(ast.parse(f.read_text()))]


def test_public_names_exist_and_are_documented(member: Member) -> None:
    problems = []
    for module, names in public_names(member).items():
        imported = importlib.import_module(module)
        tree = ast.parse(module_file(member, module).read_text())
        problems += [f"{module}.{name}: in __all__ but not defined" for name in names if not hasattr(imported, name)]
        for name, node, text in definitions(tree):
            if name in names:
                problems += [f"{module}.{name}: {problem}" for problem in documentation_problems(node, text)]
    assert not problems, "\n".join(problems)


def test_method_exports_its_api(method: Member) -> None:
    package = importlib.import_module(method.package)
    assert package.__all__
    assert len(set(package.__all__)) == len(package.__all__)


def module_file(member: Member, module: str) -> Path:
    path = member.source.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def public_names(member: Member) -> dict[str, set[str]]:
    """Public names by module: those of its ``__all__``, and those that a package re-exports from it."""
    names: dict[str, set[str]] = {}
    for file in sorted(member.source.rglob("*.py")):
        parts = file.relative_to(member.source).with_suffix("").parts
        module = ".".join((member.package, *(parts[:-1] if parts[-1] == "__init__" else parts)))
        tree = ast.parse(file.read_text())
        exported = declared_all(tree)
        names.setdefault(module, set()).update(exported)
        if file.name == "__init__.py":
            for node in tree.body:
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{member.package}."):
                    kept = {alias.name for alias in node.names if (alias.asname or alias.name) in exported}
                    names.setdefault(node.module or "", set()).update(kept)
    return names


def declared_all(tree: ast.Module) -> set[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return set(ast.literal_eval(node.value))
    return set()


def definitions(tree: ast.Module) -> Iterator[tuple[str, ast.stmt, str]]:
    """Names that a module defines at its top level, with their docstrings; a constant's is the string below it."""
    for node, following in zip_longest(tree.body, tree.body[1:]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # The implementation documents its overloads.
            if any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list):
                continue
            yield node.name, node, ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            text = following.value if isinstance(following, ast.Expr) else None
            documented = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield target.id, node, documented


def documentation_problems(node: ast.stmt, text: str) -> list[str]:
    """What the docstring of a public name lacks, in the terms of the Google style."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return function_problems(node, node, text)
    if isinstance(node, ast.ClassDef):
        found = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
        if "__init__" in found:
            return function_problems(node, found["__init__"], text, constructor=True)
        post = found.get("__post_init__")
        raises = ["no Raises"] if post is not None and raises_octavo_error(post) and not has(text, "Raises") else []
        return raises if text else ["no docstring"]
    # An option of a command, and a command line, carry their help themselves.
    if isinstance(node, ast.Assign) and re.search(r"Annotated\[|\btyper\.Typer\(", ast.unparse(node.value)):
        return []
    return [] if text else ["no docstring below it"]


def function_problems(node: ast.stmt, function: Any, text: str, *, constructor: bool = False) -> list[str]:
    if not text:
        return ["no docstring"]
    problems = []
    arguments = function.args
    named = [a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
    starred = [a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None]
    parameters = [name for name in [*named, *starred] if name not in {"self", "cls"} and not name.startswith("_")]
    described = section(text, "Args")
    missing = [name for name in parameters if not re.search(rf"^\s+\*{{0,2}}{name}:", described, re.MULTILINE)]
    if missing:
        problems.append(f"Args lacks {', '.join(missing)}")
    returns = "" if function.returns is None else ast.unparse(function.returns)
    if (
        not constructor
        and returns not in {"", "None", "NoReturn"}
        and not (has(text, "Returns") or has(text, "Yields"))
    ):
        problems.append("no Returns")
    if raises_octavo_error(function) and not has(text, "Raises"):
        problems.append("no Raises")
    return problems


def has(text: str, heading: str) -> bool:
    return re.search(rf"^{heading}:", text, re.MULTILINE) is not None


def section(text: str, heading: str) -> str:
    match = re.search(rf"^{heading}:\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return match[1] if match else ""


def raises_octavo_error(function: ast.AST) -> bool:
    """Whether a function raises an error of ``octavo_core.errors`` itself; those of functions inside it are theirs."""
    errors = {
        "InvalidStateError",
        "InvalidTypeError",
        "InvalidValueError",
        "MissingDependencyError",
        "MissingFileError",
    }
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Raise) and errors & {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}:
            return True
        pending += ast.iter_child_nodes(node)
    return False


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('def f(a, *, b):\n    """Do.\n\n    Args:\n        a: One.\n    """', ["Args lacks b"]),
        ('def f(a, *rest):\n    """Do.\n\n    Args:\n        a: One.\n        *rest: More.\n    """', []),
        ('def f() -> int:\n    """Count."""', ["no Returns"]),
        ('def f():\n    """Do."""\n    raise InvalidValueError("x")', ["no Raises"]),
        ('def f():\n    """Do."""\n    def g():\n        raise InvalidValueError("x")', []),
        ("def f(): ...", ["no docstring"]),
        ('class C:\n    """It."""\n    def __init__(self, a): ...', ["Args lacks a"]),
        ('@overload\ndef f(a): ...\ndef f(a):\n    """Do.\n\n    Args:\n        a: One.\n    """', []),
        ("N = 1", ["no docstring below it"]),
        ('N = 1\n"""Count."""', []),
    ],
)
def test_the_check_of_docstrings_sees_what_is_missing(code: str, expected: list[str]) -> None:
    ((_, node, text),) = definitions(ast.parse(code))
    assert documentation_problems(node, text) == expected

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from octavo_core.errors import InvalidStateError, InvalidValueError
from octavo_core.plugins import find_method, installed_methods, unknown_method

METADATA = """\
    Project-URL: Homepage, https://example.org
    Project-URL: Paper, https://example.org/paper
    Provides-Extra: fast
    Provides-Extra: old
    Provides-Extra: plain
    Provides-Extra: all
    Requires-Dist: numpy>=1
    Requires-Dist: no-such-distribution>=2 ; extra == 'fast'
    Requires-Dist: numpy>=1 ; extra == 'fast'
    Requires-Dist: numpy>=9999 ; extra == 'old'
    Requires-Dist: torch ; extra == 'plain'
    Requires-Dist: octavo-alpha[fast,old] ; extra == 'all'
    Requires-Dist: no-such-distribution ; (python_version < '3') and extra == 'plain'
"""


def test_methods_are_described_in_order_without_being_imported(add_method: Callable[..., Path]) -> None:
    add_method("zeta")
    add_method("alpha", metadata=METADATA)
    alpha, zeta = installed_methods()
    assert (alpha.slug, alpha.distribution, alpha.version, alpha.package) == (
        *("alpha", "octavo-alpha", "1.2.3", "octavo_alpha"),
    )
    assert alpha.summary == "The alpha of the tests"
    assert alpha.paper == "https://example.org/paper"
    assert (zeta.slug, zeta.paper) == ("zeta", "")
    assert not {"octavo_alpha", "octavo_zeta"} & set(sys.modules)


def test_no_method_is_an_empty_list(add_method: Callable[..., Path]) -> None:
    assert installed_methods() == []


def test_a_method_is_found_by_its_slug_and_loads_its_app(add_method: Callable[..., Path]) -> None:
    add_method("alpha")
    app = find_method("alpha").load()
    assert {command.callback.__name__ for command in app.registered_commands} == {"demo", "bench", "fail"}


def test_an_unknown_slug_names_the_installed_and_the_line_that_installs(add_method: Callable[..., Path]) -> None:
    add_method("alpha")
    with pytest.raises(InvalidValueError, match=r"'beta'; installed methods: alpha; .* pip install octavo-beta"):
        find_method("beta")
    assert "installed methods: none" in unknown_method("beta", [])


@pytest.mark.parametrize(
    ("cli", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", "ZeroDivisionError"),
        ("app", "NameError"),
        ("def broken(:", "SyntaxError"),
        ("other = 1", "AttributeError"),
        ("import sys; sys.exit(3)", "SystemExit"),
    ],
)
def test_a_broken_method_is_listed_and_its_loading_says_why(
    add_method: Callable[..., Path], cli: str, reason: str
) -> None:
    add_method("alpha", cli=cli)
    (method,) = installed_methods()
    with pytest.raises(InvalidStateError, match=f"'alpha' is installed but cannot be loaded .{reason}.*octavo-alpha"):
        method.load()


@pytest.mark.parametrize("body", ["", "Metadata-Version: 2.4\n", "\x00\x01 no headers"])
def test_damaged_metadata_leaves_the_fields_empty(add_method: Callable[..., Path], body: str) -> None:
    add_method("alpha", body=body)
    add_method("beta")
    alpha, beta = installed_methods()
    assert (alpha.slug, alpha.version, alpha.summary, alpha.paper) == ("alpha", "", "", "")
    assert beta.version == "1.2.3"
    assert alpha.missing_by_extra() == {}
    assert alpha.load() is not None


def test_what_an_extra_lacks_is_listed_with_versions(add_method: Callable[..., Path]) -> None:
    add_method("alpha", metadata=METADATA)
    assert find_method("alpha").missing_by_extra() == {
        "fast": ["no-such-distribution>=2"],
        "old": ["numpy>=9999"],
        "plain": [],
    }

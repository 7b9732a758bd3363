from __future__ import annotations

import pytest
from octavo_core import errors


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InvalidValueError, ValueError),
        (errors.InvalidTypeError, TypeError),
        (errors.InvalidStateError, RuntimeError),
        (errors.MissingFileError, FileNotFoundError),
        (errors.MissingDependencyError, ImportError),
    ],
)
def test_each_error_is_caught_as_octavo_error_and_as_its_builtin_kind(kind: type[Exception], builtin: type) -> None:
    for caught in (errors.OctavoError, builtin):
        with pytest.raises(caught, match="give 1 or more"):
            raise kind("count 0 is too small; give 1 or more")


def test_missing_extra_names_the_line_that_installs_it() -> None:
    error = errors.MissingDependencyError.for_extra("torchjd", "octavo-config-grad", "bench")
    assert "torchjd is not installed" in str(error)
    assert "pip install 'octavo-config-grad[bench]'" in str(error)

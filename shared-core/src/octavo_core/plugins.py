"""The installed methods: found through entry points and package metadata, loaded only when called."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from octavo_core.errors import InvalidStateError, InvalidValueError

if TYPE_CHECKING:
    import typer

__all__ = ["GROUP", "Method", "find_method", "installed_methods"]

GROUP = "octavo.methods"
"""The entry-point group that methods join."""


@dataclass(frozen=True)
class Method:
    """An installed method, described without importing it.

    Args:
        slug: Name on the command line.
        distribution: Distribution that provides it.
        version: Installed version.
        summary: One line about it.
        paper: Link to the paper.
        entry_point: Where its Typer app is.
    """

    slug: str
    distribution: str
    version: str
    summary: str
    paper: str
    entry_point: importlib.metadata.EntryPoint = field(repr=False)

    @property
    def package(self) -> str:
        """Import name, e.g. ``"octavo_config_grad"``."""
        return self.entry_point.module.partition(".")[0]

    def load(self) -> typer.Typer:
        """Import the method and return its Typer app.

        Returns:
            The app.

        Raises:
            InvalidStateError: If the method cannot be imported.
        """
        # Whatever a broken plug-in raises must not take the host down, nor may its exit be taken for ours.
        try:
            return self.entry_point.load()
        except (Exception, SystemExit) as error:
            raise InvalidStateError(
                f"method {self.slug!r} is installed but cannot be loaded ({type(error).__name__}: {error}); "
                f"reinstall it with: pip install --force-reinstall {self.distribution}"
            ) from error

    def missing_by_extra(self) -> dict[str, list[str]]:
        """List, by extra of the distribution, the requirements that are not installed or too old.

        Returns:
            Requirements by extra; an empty list for an extra that is complete.
        """
        metadata = _metadata(self.entry_point)
        requirements = [Requirement(text) for text in metadata.get("Requires-Dist", ())]
        missing: dict[str, list[str]] = {}
        for extra in metadata.get("Provides-Extra", ()):
            wanted = [
                requirement
                for requirement in requirements
                if requirement.marker is not None
                and requirement.marker.evaluate({"extra": extra})
                and not requirement.marker.evaluate({"extra": ""})
                and requirement.name != self.distribution
            ]
            if wanted:
                missing[extra] = [
                    str(requirement).partition(";")[0].strip() for requirement in wanted if not _met(requirement)
                ]
        return missing


def installed_methods() -> list[Method]:
    """Find the installed methods, in alphabetical order, without importing any.

    Returns:
        The methods. One whose metadata is damaged appears with empty fields.
    """
    methods = {}
    for entry_point in importlib.metadata.entry_points(group=GROUP):
        metadata = _metadata(entry_point)
        name, version, summary = (metadata.get(field, [""])[0] for field in ("Name", "Version", "Summary"))
        urls = dict(text.split(", ", 1) for text in metadata.get("Project-URL", ()) if ", " in text)
        methods[entry_point.name] = Method(entry_point.name, name, version, summary, urls.get("Paper", ""), entry_point)
    return [methods[slug] for slug in sorted(methods)]


def find_method(slug: str) -> Method:
    """Find one installed method.

    Args:
        slug: Its name.

    Returns:
        The method.

    Raises:
        InvalidValueError: If no method of that name is installed.
    """
    methods = {method.slug: method for method in installed_methods()}
    if slug not in methods:
        raise InvalidValueError(unknown_method(slug, list(methods)))
    return methods[slug]


def unknown_method(slug: str, installed: list[str]) -> str:
    """Say that a method is not installed, and how to install it.

    Args:
        slug: The name that was given.
        installed: The names that are installed.

    Returns:
        One sentence.
    """
    known = ", ".join(installed) or "none"
    return (
        f"no method or command {slug!r}; installed methods: {known}; if {slug!r} is an Octavo method, "
        f"install it with: pip install octavo-{slug}"
    )


def _metadata(entry_point: importlib.metadata.EntryPoint) -> dict[str, list[str]]:
    """Return the fields of the distribution behind an entry point; none where its metadata is damaged."""
    message = entry_point.dist.metadata if entry_point.dist is not None else None
    return {name: message.get_all(name) or [""] for name in message} if message else {}


def _met(requirement: Requirement) -> bool:
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return requirement.specifier.contains(version, prereleases=True)

"""Verifiers by name, through the entry-point group `posttrain.verifiers`. Nothing is imported before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from ledger.errors import InputError, MissingExtra
from verifiers.base import Verifier
from verifiers.errors import UnknownVerifier

GROUP = "posttrain.verifiers"

FIRST_PARTY = {
    entry.name: entry
    for entry in (
        EntryPoint("exact-answer", "verifiers.answers:ExactAnswer", GROUP),
    )
}  # fmt: skip
"""This project's own, so that a source tree works before it is installed, and so that nothing else can take their names."""


def names() -> list[str]:
    """Every name that `load` knows, sorted."""
    return sorted(FIRST_PARTY.keys() | entry_points(group=GROUP).names)


def load(name: str) -> Callable[..., Verifier]:
    """The class called `name`; call it with the configuration's strings as keywords.

    Raises:
        UnknownVerifier: nothing has that name. The message lists what there is.
        MissingExtra: its entry point names an extra that is not installed.
        InputError: two distributions claim the name, or its import fails.
    """
    entry = FIRST_PARTY.get(name) or _third_party(name)
    try:
        return cast("Callable[..., Verifier]", entry.load())
    except ModuleNotFoundError as error:
        if entry.extras:
            raise MissingExtra(f"verifier {name!r}", entry.extras[0]) from error
        raise InputError(f"verifier {name!r} ({entry.value}) needs the module {error.name!r}; install it") from error
    except (ImportError, AttributeError) as error:
        raise InputError(f"verifier {name!r} ({entry.value}) cannot be loaded: {error}") from error


def create(name: str, config: Mapping[str, str]) -> Verifier:
    """The verifier called `name`, configured.

    Raises:
        InvalidConfig: a key or value that it does not have.
        InputError: what the name stands for is no verifier. And what `load` raises.
    """
    verifier = load(name)(**config)
    if not isinstance(verifier, Verifier):
        raise InputError(f"verifier {name!r}: {type(verifier).__name__} does not follow verifiers.base.Verifier")
    return verifier


def _third_party(name: str) -> EntryPoint:
    found = {entry.value: entry for entry in entry_points(group=GROUP, name=name)}
    if not found:
        raise UnknownVerifier(f"no verifier is called {name!r}; known: {', '.join(names())}")
    if len(found) > 1:
        raise InputError(
            f"verifier {name!r} is declared more than once ({', '.join(sorted(found))}); uninstall all but one"
        )
    return next(iter(found.values()))

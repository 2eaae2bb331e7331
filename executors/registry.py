"""Executors by name: a short table of this project's own, and the entry-point group `posttrain.executors`.

A class is imported when it is asked for. What an executor's command line or child needs beyond the core belongs to an
extra, and the error names it.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from executors.base import Executor
from executors.launchers.base import Launcher
from ledger.errors import InfrastructureError, InputError, MissingExtra

GROUP = "posttrain.executors"

FIRST_PARTY = {
    "fake": "executors.fake:FakeExecutor",
    "fsdp": "executors.trainers.fsdp:FsdpExecutor",
    "evaluate": "executors.evaluation.executor:EvaluationExecutor",
}
"""Known without installation; an entry point cannot take one of these names."""

EXTRAS = {
    "torch": "train",
    "transformers": "train",
    "safetensors": "train",
    "numpy": "train",
    "tokenizers": "train",
    "fastapi": "serve",
    "uvicorn": "serve",
    "httpx": "serve",
    "deepspeed": "deepspeed",
    "vllm": "vllm",
}
"""Import name → the extra of this distribution that installs it."""


def executor_names() -> list[str]:
    """Every name that `load_executor` knows, sorted."""
    return sorted(_targets())


def load_executor(name: str, launcher: Launcher | None = None) -> Executor:
    """The executor called `name`, whose attempts `launcher` starts (`None`: on this machine).

    Raises:
        InputError: no such executor; the message lists the known ones.
        MissingExtra: it is known and needs a package that is not installed.
        InfrastructureError: a third party's plug-in cannot be imported.
    """
    targets = _targets()
    if name not in targets:
        close = difflib.get_close_matches(name, targets, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise InputError(f"executor {name!r} is unknown{hint}; known: {', '.join(sorted(targets))}")
    module, _, attribute = targets[name].partition(":")
    try:
        made = getattr(import_module(module), attribute)(launcher)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in EXTRAS:
            raise MissingExtra(f"executor {name}", EXTRAS[missing]) from None
        raise InfrastructureError(f"executor {name} ({targets[name]}) cannot be loaded: {error}") from error
    except (AttributeError, ImportError, TypeError) as error:
        raise InfrastructureError(f"executor {name} ({targets[name]}) cannot be loaded: {error}") from error
    if not isinstance(made, Executor):
        raise InfrastructureError(f"executor {name} ({targets[name]}) does not fit the protocol of executors.base")
    return made


def _targets() -> dict[str, str]:
    """Name → `module:attribute`."""
    found: dict[str, str] = {}
    plugged: list[EntryPoint] = sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))
    for entry in plugged:
        if found.setdefault(entry.name, entry.value) != entry.value and entry.name not in FIRST_PARTY:
            raise InfrastructureError(
                f"two plug-ins name an executor {entry.name!r}: {found[entry.name]} and {entry.value}; uninstall one"
            )
    return {**found, **FIRST_PARTY}

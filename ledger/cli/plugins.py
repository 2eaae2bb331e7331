"""Commands that other packages add through the entry-point group `posttrain.commands`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points

from ledger.cli.command import Command
from ledger.cli.output import warn

GROUP = "posttrain.commands"

SOURCE_TREE = (
    EntryPoint("executors", "executors.cli:COMMANDS", GROUP),
    EntryPoint("assets", "assets.cli:COMMANDS", GROUP),
)
"""This project's own, for a source tree that was not installed."""


def plugin_commands(taken: frozenset[str]) -> tuple[Command, ...]:
    """Every command of every plug-in whose name is not `taken`. A broken plug-in costs one warning line, nothing else."""
    found: dict[str, Command] = {}
    for entry in _entries():
        for command in _load(entry):
            if command.name in taken or command.name in found:
                warn(f"plug-in {entry.name} ({entry.value}) adds a second command {command.name}; it is ignored")
            else:
                found[command.name] = command
    return tuple(found.values())


def _entries() -> Iterator[EntryPoint]:
    installed = sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))
    present = {entry.value for entry in installed}
    yield from (entry for entry in SOURCE_TREE if not present & {own.value for own in SOURCE_TREE})
    yield from installed


def _load(entry: EntryPoint) -> tuple[Command, ...]:
    try:
        commands = tuple(entry.load())
    except ModuleNotFoundError as error:
        # A package of this project that was left out of the installation is no fault.
        if entry not in SOURCE_TREE or error.name not in (entry.module, entry.module.partition(".")[0]):
            return _broken(entry, error)
        return ()
    except (Exception, SystemExit) as error:  # whatever a third party's import does, the other commands must work
        return _broken(entry, error)
    wrong = [item for item in commands if not isinstance(item, Command)]
    if wrong:
        return _broken(entry, TypeError(f"{wrong[0]!r} is not a ledger.cli.command.Command"))
    return commands


def _broken(entry: EntryPoint, error: BaseException) -> tuple[Command, ...]:
    warn(f"plug-in {entry.name} ({entry.value}) is ignored: {type(error).__name__}: {error}")
    return ()

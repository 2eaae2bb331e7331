"""A command as a table lists it: enough for `posttrain --help` without importing what runs it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One top-level command.

    `target` is `module:attribute`, imported when the command is used: a function becomes a command, a `typer.Typer` a
    group. `example` is what the end of `--help` shows, one command line a line; a group leaves it empty when each of its
    commands has its own (`ledger.cli.output.example`).

    A package adds commands through the entry-point group `posttrain.commands`, whose values are tuples of these in a
    module that imports nothing heavy: `executors = "executors.cli:COMMANDS"`.
    """

    name: str
    target: str
    help: str
    example: str = ""

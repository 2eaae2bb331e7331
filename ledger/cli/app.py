"""`posttrain`: the table of commands, loaded when used, and the boundary that turns errors into exit codes.

Exit codes: 0 done, 1 a check said no, 2 wrong usage or input, 3 refused by a rule, 4 infrastructure failed (a bug, with
its traceback, counts as that: it must never look like a check's answer), 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command as command_of
from typer.main import get_group as group_of

from ledger.cli.command import Command
from ledger.cli.output import example, fail, json_requested, leave_quietly
from ledger.cli.plugins import plugin_commands
from ledger.errors import InfrastructureError, InputError, PosttrainError

COMMANDS: tuple[Command, ...] = (
    Command("init", "ledger.cli.init:init", "Create the home directory, the ledger and its keys.", "posttrain init"),
    Command("base", "ledger.cli.bases:base", "Pin base models by digest, verify and list them."),
    Command("data", "ledger.cli.data:data", "Build dataset versions and suites, check them for leaks."),
    Command("runs", "ledger.cli.runs:runs", "List runs, or show one with its attempts and checkpoints."),
    Command("checkpoint", "ledger.cli.checkpoints:checkpoint", "List a run's checkpoints or show one."),
    Command("gate", "ledger.cli.gates:gate", "Decide whether a candidate may replace an incumbent."),
    Command(
        "promote",
        "ledger.cli.promote:promote",
        "Move a stage to a model that passed its gate.",
        'posttrain promote r-0123456789abcdef --to production --reason "passed the gate"',
    ),
    Command(
        "which",
        "ledger.cli.which:which_command",
        "Which model serves a stage, how it was built, and what proves it.",
        "posttrain which production\nposttrain which production --json --timing",
    ),
    Command(
        "lineage",
        "ledger.cli.lineage:lineage",
        "Everything that a model, dataset or run was made from, or led to.",
        "posttrain lineage production\nposttrain lineage production --format dot",
    ),
    Command("log", "ledger.cli.log:log", "Verify the event log, follow it, show one event."),
    Command(
        "fsck", "ledger.cli.fsck:fsck_command", "Check that every recorded byte is there and right.", "posttrain fsck"
    ),
    Command(
        "sql",
        "ledger.cli.sql:sql",
        "Ask the ledger in SQL (read-only).",
        'posttrain sql "SELECT run_id, state, step FROM runs"\nposttrain sql',
    ),
    Command("budget", "ledger.cli.budgets:budget", "Set and show what stages may spend, and prices."),
    Command("cost", "ledger.cli.budgets:cost", "What runs did cost, by stage.", "posttrain cost"),
)


class LazyGroup(TyperGroup):
    """The top of the command line. A command is a line in a table until somebody uses it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.known: dict[str, Command] = {}
        self.with_plugins = False
        self._add(COMMANDS)

    def list_commands(self, ctx: Any) -> list[str]:
        self._add_plugins()
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args[0] not in self.known:
            self._add_plugins()
        if args[0] in self.known:
            self.load(args[0])
        return super().resolve_command(ctx, args)

    def load(self, name: str) -> Any:
        """Replace the table's line `name` by the command itself, once.

        Raises:
            InfrastructureError: a plug-in's command cannot be imported.
        """
        entry = self.known[name]
        try:
            module, _, attribute = entry.target.partition(":")
            target = getattr(import_module(module), attribute)
        except Exception as error:
            if entry in COMMANDS:
                raise
            raise InfrastructureError(
                f"command {name} ({entry.target}) cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        command = _command(entry, target)
        self.commands[name] = command
        return command

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        before = words[: words.index("--")] if "--" in words else words
        json_requested.set("--json" in before)
        _show_what_cannot_be_encoded()
        try:
            sys.exit(self._run(words, prog_name or "posttrain", complete_var, extra))
        except typer.Exit as ending:
            sys.exit(ending.exit_code)

    def _run(self, words: list[str], prog_name: str, complete_var: str | None, extra: dict[str, Any]) -> int:
        try:
            _check_text(words)
            result = super().main(words, prog_name, complete_var, standalone_mode=False, **extra)
            if _reader_is_gone():
                leave_quietly()
        except PosttrainError as error:
            fail(str(error), kind=type(error).__name__, exit_code=error.exit_code)
        except typer.TyperException as error:
            _fail_usage(error, prog_name)
        except typer.Abort:
            fail("aborted", kind="Interrupted", exit_code=130)
        except KeyboardInterrupt:
            result = 130
        except Exception as error:
            _fail_unexpected(error)
        if result == 130:  # Typer has already turned the KeyboardInterrupt into this
            fail(
                "interrupted; what was recorded is kept, repeat the command to go on", kind="Interrupted", exit_code=130
            )
        return result if isinstance(result, int) else 0

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            if _reader_is_gone():
                leave_quietly()
            raise InfrastructureError("a process or connection that was written to has ended") from None

    def _add(self, entries: Sequence[Command]) -> None:
        for entry in entries:
            self.known[entry.name] = entry
            self.commands[entry.name] = TyperCommand(name=entry.name, help=entry.help)

    def _add_plugins(self) -> None:
        if not self.with_plugins:
            self.with_plugins = True
            self._add(plugin_commands(taken=frozenset(self.known)))


app = typer.Typer(
    name="posttrain",
    cls=LazyGroup,
    help="The system of record and the run system for post-training language models.",
    epilog=example("posttrain init", "posttrain which production"),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)


@app.callback()
def posttrain(
    home: Annotated[
        Path | None, typer.Option("--home", help="The home directory; $POSTTRAIN_HOME or ./.posttrain without it.")
    ] = None,
) -> None:
    if home is not None:
        os.environ["POSTTRAIN_HOME"] = str(home)  # child processes must find the same ledger


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit: the console script."""
    app(args)


def _command(entry: Command, target: Any) -> Any:
    if isinstance(target, typer.Typer):
        command: Any = group_of(target)
        command.help = command.help or entry.help
        command.epilog = command.epilog or (_epilog(entry) if entry.example else None)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode="rich")
        single.command(entry.name, help=target.__doc__ or entry.help, epilog=_epilog(entry))(target)
        command = command_of(single)
    command.name = entry.name
    return command


def _epilog(entry: Command) -> str | None:
    return example(*entry.example.splitlines()) if entry.example else None


def _fail_usage(error: typer.TyperException, prog_name: str) -> None:
    ctx = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":  # the help is already printed
        raise typer.Exit(error.exit_code)
    path = ctx.command_path if ctx is not None else prog_name
    fail(f"{error.format_message().rstrip('.')} (see {path} --help)", kind="UsageError", exit_code=error.exit_code)


def _fail_unexpected(error: Exception) -> None:
    """Known failures of the machine become one line; anything else is a bug and shows its traceback."""
    line = _machine_failure(error)
    if line is None and (wrong := _wrong_text(error)) is not None:
        fail(wrong)
    if line is None:
        traceback.print_exception(error)
        line = f"{type(error).__name__}: {error}; this is a bug in posttrain or a plug-in"
        fail(line, kind="Bug", exit_code=InfrastructureError.exit_code)
    fail(line, kind=InfrastructureError.__name__, exit_code=InfrastructureError.exit_code)


def _machine_failure(error: Exception) -> str | None:
    """One line about a disk, permission, lock or database failure; `None` for anything else."""
    if isinstance(error, OSError):
        place = f": {error.filename}" if error.filename is not None else ""
        return f"{_advice(error.errno)}{error.strerror or error}{place}"
    cause = getattr(error, "orig", None) or error  # SQLAlchemy keeps the driver's error there
    if any(cls.__name__ == "Error" and cls.__module__ == "sqlite3" for cls in type(cause).__mro__):
        return f"the ledger's database: {cause}"
    if any(cls.__name__ == "DBAPIError" and cls.__module__ == "sqlalchemy.exc" for cls in type(error).__mro__):
        return f"the ledger's database: {cause}"
    return None


def _wrong_text(error: Exception) -> str | None:
    """One line about a text that an event cannot hold (a reason of 3,000 characters); `None` for anything else."""
    cls = type(error)
    if cls.__name__ != "ValidationError" or not cls.__module__.startswith("pydantic"):
        return None
    problems = error.errors()  # type: ignore[attr-defined]  # pydantic is not imported here, `--help` has no use for it
    if not all(problem["type"].startswith("string_") for problem in problems):
        return None
    first = problems[0]
    return f"{'.'.join(map(str, first['loc']))} {str(first['input'])[:40]!r}: {first['msg']}"


def _advice(number: int | None) -> str:
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "free some space and repeat the command: "
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "permission denied, nothing was changed: "
    return ""


def _check_text(words: list[str]) -> None:
    for word in words:
        if not word.isprintable() and any("\ud800" <= character <= "\udfff" for character in word):
            raise InputError(f"the argument {word!r} is not text (UTF-8)")


def _show_what_cannot_be_encoded() -> None:
    """A terminal that knows no `é` gets `\\xe9` instead of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _reader_is_gone() -> bool:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return True
    return False

"""What every command prints with: people by default, JSON for programs, and nothing that can break a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console, ConsoleOptions, JustifyMethod, OverflowMethod, RenderableType
from rich.highlighter import Highlighter
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

BROKEN_PIPE = 128 + 13  # what a shell reports for a program that SIGPIPE ended

json_requested: ContextVar[bool] = ContextVar("json_requested", default=False)
"""Whether `--json` is on the command line; the boundary sets it, progress bars and errors read it."""

_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C, 0x2028, 0x2029, 0xFEFF)
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), *_BIDI, *range(0xD800, 0xE000))
_VISIBLE = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _CONTROLS}
_VISIBLE_LINES = {code: text for code, text in _VISIBLE.items() if code != 0x0A}


def plain(value: object) -> str:
    """`value` as one line of text: control characters, bidirectional overrides and lone surrogates become `\\x1b`-like
    escapes, so that a name from outside cannot move the cursor, forge a line or hide another name."""
    return str(value).translate(_VISIBLE)


class SafeConsole(Console):
    """A console that reads no markup in what it prints and lets no control character through."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False, soft_wrap=False)

    def render_str(
        self,
        text: str,
        *,
        style: str | Style = "",
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        emoji: bool | None = None,
        markup: bool | None = None,
        highlight: bool | None = None,
        highlighter: Highlighter | Callable[[str | Text], Text] | None = None,
    ) -> Text:
        # Before the layout, so that columns are as wide as what is shown.
        return super().render_str(
            text.translate(_VISIBLE_LINES), style=style, justify=justify, overflow=overflow, markup=False, emoji=False
        )

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        # After it, for `Text` objects that were built elsewhere.
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(segment.text.translate(_VISIBLE_LINES), segment.style)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        leave_quietly()


def stdout() -> SafeConsole:
    """The console for results. Wide when nobody looks, so that a pipe gets whole values."""
    return SafeConsole(width=None if sys.stdout.isatty() else _piped_width())


def stderr() -> SafeConsole:
    """The console for progress, warnings and errors."""
    return SafeConsole(stderr=True)


def emit(value: dict[str, Any] | list[Any], render: Callable[[Console], None], as_json: bool) -> None:
    """Print a result: `value` as JSON, or what `render` draws on the console for people."""
    if as_json:
        # ASCII only: escapes in JSON are the same text to a program and harmless to a terminal.
        write(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False))
    else:
        render(stdout())


def write(text: str) -> None:
    """Print `text` and a newline as they are; for formats whose escapes are already right (JSON, CSV, DOT)."""
    try:
        sys.stdout.write(text + "\n")
    except BrokenPipeError:
        leave_quietly()


def warn(message: str) -> None:
    """One warning line on stderr."""
    sys.stderr.write(f"posttrain: warning: {plain(message)}\n")


def fail(message: str, *, kind: str = "InputError", exit_code: int = 2) -> NoReturn:
    """One line on stderr (with `--json` also an error object on stdout), then exit. Errors that are raised from
    `ledger.errors` come here by themselves."""
    if json_requested.get():
        write(json.dumps({"error": {"kind": kind, "message": message}}, ensure_ascii=True))
    sys.stderr.write(f"posttrain: {plain(' '.join(message.split()))}\n")
    raise typer.Exit(exit_code)


def leave_quietly() -> NoReturn:
    """Exit as a program does whose reader went away (`posttrain runs | head -1`)."""
    # What is still buffered must not raise again when the interpreter flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(BROKEN_PIPE)


def example(*lines: str) -> str:
    """The end of a command's `--help`: `@app.command(epilog=example("posttrain which production"))`."""
    heading = "Example:" if len(lines) == 1 else "Examples:"
    # Blank lines, because the help renderer joins lines that are not a paragraph of their own; a backslash keeps
    # `[…]` from being read as markup.
    return "\n\n".join((heading, *("  " + line.replace("[", "\\[") for line in lines)))


@contextmanager
def progress(
    description: str, total: int | None, unit: Literal["bytes", "steps", "rows", "items", "events", "files"] = "items"
) -> Iterator[Callable[[int], None]]:
    """A bar with rate and time left on stderr; yields the function to call with how much more is done.

    Silent when stderr is not a terminal or with `--json`. `total` is `None` when it is not known.
    """
    if json_requested.get() or not sys.stderr.isatty():
        yield lambda _amount: None
        return
    from ledger.cli.bars import bar  # rich's progress modules cost a third of `--help`'s time

    with bar(stderr(), plain(description), total, unit) as advance:
        yield advance


def _piped_width() -> int:
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else 200

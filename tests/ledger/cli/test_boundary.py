"""The boundary: every error is one line and the right exit code, and a plug-in can break nothing."""

from __future__ import annotations

import errno
import sqlite3
import sys
from importlib import import_module
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from ledger.cli import plugins
from ledger.errors import (
    BudgetExceeded,
    CheckFailed,
    InfrastructureError,
    LeakFound,
    MissingExtra,
    NewerLedger,
    NotFound,
    RuleBroken,
    StaleVersion,
    TamperFound,
)
from tests.ledger.cli.conftest import Run

PLUGIN = """
import errno, os, typer
from ledger.cli.command import Command

raised = None

def throw() -> None:
    "Raise what the test wants."
    raise raised

def answer(count: int = 3) -> None:
    "A command of a plug-in."
    print("count", count)

def leave() -> int:
    "End with an exit code."
    return 3

group = typer.Typer(help="A group.")

@group.command("only")
def only() -> None:
    "The only command of the group."
    print("only")

COMMANDS = (
    Command("throw", "throwing_plugin:throw", "Raise."),
    Command("answer", "throwing_plugin:answer", "Answer.", "posttrain answer --count 4"),
    Command("leave", "throwing_plugin:leave", "Leave."),
    Command("club", "throwing_plugin:group", "A group with one command."),
    Command("gone", "throwing_plugin:missing", "Its target does not exist."),
)
"""


@pytest.fixture
def throwing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """A plug-in whose command `throw` raises `raised`."""
    (tmp_path / "throwing_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = plugins.EntryPoint("throwing", "throwing_plugin:COMMANDS", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
    module = import_module("throwing_plugin")
    monkeypatch.setitem(sys.modules, "throwing_plugin", module)
    return module


def one_line(err: str) -> str:
    assert err.startswith("posttrain: "), err
    assert err.count("\n") == 1, err
    return err.removeprefix("posttrain: ").rstrip("\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckFailed("no"), 1),
        (LeakFound("no"), 1),
        (TamperFound("no"), 1),
        (NotFound("no"), 2),
        (MissingExtra("no", "sql"), 2),
        (NewerLedger("no"), 2),
        (RuleBroken("no"), 3),
        (BudgetExceeded("no"), 3),
        (StaleVersion("no"), 3),
        (InfrastructureError("no"), 4),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_an_error_of_the_tree_is_a_line_and_its_exit_code(
    run: Run, throwing: object, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    monkeypatch.setattr(throwing, "raised", error)
    answer = run("throw")
    assert (answer.code, answer.out) == (code, "")
    assert one_line(answer.err) == str(error)


def test_with_json_the_error_is_an_object_too(run: Run, demo: object) -> None:
    answer = run("which", "nowhere", "--json")
    assert answer.code == 2
    error = answer.json["error"]
    assert error["kind"] == "NotFound"
    assert error["message"] == one_line(answer.err)
    assert "nowhere" in error["message"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "ledger.db"), "free some space"),
        (PermissionError(errno.EACCES, "Permission denied", "ledger.db"), "permission denied"),
        (sqlite3.OperationalError("database is locked"), "database is locked"),
        (OperationalError("INSERT …", {}, sqlite3.OperationalError("database or disk is full")), "disk is full"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "has ended"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_failure_of_the_machine_is_a_line_and_4(
    run: Run, throwing: object, monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    monkeypatch.setattr(throwing, "raised", error)
    answer = run("throw")
    assert answer.code == 4
    assert says in one_line(answer.err)


def test_a_bug_shows_its_traceback_and_never_looks_like_a_check(
    run: Run, throwing: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throwing, "raised", ZeroDivisionError("by zero"))
    answer = run("throw", "--help")
    assert answer.code == 0
    answer = run("throw")
    assert answer.code == 4
    assert "Traceback" in answer.err
    assert answer.err.splitlines()[-1].startswith("posttrain: ZeroDivisionError: by zero; this is a bug")


def test_ctrl_c_is_a_line_and_130(run: Run, throwing: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throwing, "raised", KeyboardInterrupt())
    answer = run("throw")
    assert answer.code == 130
    assert one_line(answer.err).startswith("interrupted")


def test_an_error_with_control_characters_stays_one_harmless_line(
    run: Run, throwing: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throwing, "raised", NotFound("no \x1b]0;title\x07\nposttrain: all is well\r\u202e"))
    answer = run("throw")
    assert one_line(answer.err) == "no \\x1b]0;title\\x07 posttrain: all is well \\u202e"


def test_a_wrong_name_is_2_with_a_suggestion(run: Run) -> None:
    answer = run("whihc")
    assert answer.code == 2
    assert one_line(answer.err) == "No such command 'whihc'. Did you mean 'which'? (see posttrain --help)"


def test_a_wrong_option_is_2_and_json_when_asked(run: Run) -> None:
    answer = run("runs", "list", "--limit", "none", "--json")
    assert answer.code == 2
    assert answer.json["error"]["kind"] == "UsageError"
    assert "posttrain runs list --help" in one_line(answer.err)


def test_nothing_at_all_is_help_and_2(run: Run) -> None:
    answer = run()
    assert answer.code == 2
    assert "Usage: posttrain" in answer.out
    assert answer.err == ""


def test_no_ledger_is_a_line_that_says_what_to_do(run: Run, home: Path) -> None:
    answer = run("which")
    assert answer.code == 2
    assert "posttrain init" in one_line(answer.err)
    assert not home.exists()


def test_an_argument_that_is_not_text_is_refused(run: Run, demo: object) -> None:
    answer = run("runs", "show", "\udcff")
    assert answer.code == 2
    assert "not text" in one_line(answer.err)


def test_a_text_that_no_event_can_hold_is_a_mistake_of_the_user(run: Run, copy: object) -> None:
    answer = run("budget", "set", "sft", "12", "--reason", "x" * 3000)
    assert answer.code == 2
    assert one_line(answer.err).startswith("reason 'xxx")
    assert run("log", "verify").code == 0


def test_home_can_be_given(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "elsewhere"
    answer = run("--home", str(place), "init", "--json")
    assert answer.code == 0
    assert answer.json["home"] == str(place)
    assert (place / "ledger.db").is_file()


# Plug-ins


def test_commands_of_a_plugin_are_listed_and_run(run: Run, throwing: object) -> None:
    listed = run("--help").out
    assert "A group with one command." in listed
    assert run("answer", "--count", "5").out == "count 5\n"
    assert "posttrain answer --count 4" in run("answer", "--help").out
    assert run("club", "only").out == "only\n"
    assert run("leave").code == 3


def test_a_command_of_a_plugin_that_cannot_be_loaded_is_a_line(run: Run, throwing: object) -> None:
    answer = run("gone")
    assert answer.code == 4
    assert "command gone (throwing_plugin:missing) cannot be loaded" in one_line(answer.err)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("raise SystemExit(1)", "SystemExit"),
        ("COMMANDS = ('which',)", "not a ledger.cli.command.Command"),
        ("COMMANDS = None", "TypeError"),
        ("", "AttributeError"),
    ],
)
def test_a_broken_plugin_costs_one_warning(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo: object, source: str, says: str
) -> None:
    name = f"broken_plugin_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = plugins.EntryPoint("broken", f"{name}:COMMANDS", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
    answer = run("--help")
    assert answer.code == 0
    assert "Which model serves" in answer.out
    assert answer.err.startswith("posttrain: warning: plug-in broken")
    assert says in answer.err
    assert answer.err.count("\n") == 1
    # A command of the ledger does not even look at plug-ins.
    assert run("which").err == ""


def test_a_plugin_cannot_take_a_name(run: Run, throwing: object, monkeypatch: pytest.MonkeyPatch, demo: object) -> None:
    from ledger.cli.command import Command

    monkeypatch.setattr(throwing, "COMMANDS", (Command("which", "throwing_plugin:answer", "Another which."),))
    answer = run("--help")
    assert "adds a second command which" in answer.err
    assert "Another which" not in answer.out
    assert "serves model" in run("which").out


def test_a_source_tree_has_its_own_commands(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed, and a foreign plug-in does not hide this project's own commands."""
    monkeypatch.setattr(plugins, "entry_points", lambda group: [])
    assert "rollback" in run("--help").out.split()
    found = {command.name for command in plugins.plugin_commands(frozenset())}
    assert {"run", "resume", "logs", "eval", "serve", "rollback"} <= found

"""Names and reasons come from outside: they move no cursor, forge no line, and are no markup."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from ledger import events as ev
from ledger.cli.lineage import to_dot
from ledger.cli.output import SafeConsole, example, plain
from ledger.digest import sha256_digest
from ledger.home import Ledger
from ledger.lineage import Lineage, Link, Node
from ledger.registry import decide_gate, promote
from ledger.testing.history import DemoHistory
from tests.ledger.cli.conftest import Run

EVIL = 'a\x1b[2J\x1b]0;own\x07\r\x9b31m\u202egnp.exe\u2028[bold red]b[/bold red]:smile:\ud7ff"; }\\'
FORBIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def evil(copy: DemoHistory) -> DemoHistory:
    """The demo history with hostile text wherever an event takes free text."""
    ledger = Ledger.open(actor=f"eve {EVIL}")
    ledger.record(
        ev.BaseRevisionPinned(
            name="evil", base=sha256_digest(b"evil"), source=EVIL, licence=EVIL, upstream_revision=EVIL, size_bytes=1, files=1,
            tokenizer=sha256_digest(b"t"),
        )
    )  # fmt: skip
    ledger.record(ev.BudgetSet(stage="sft", cap="1", reason=EVIL))
    spec = sha256_digest(b"spec")
    code = ev.CodeRevision(commit=EVIL, diff=sha256_digest(b""), dirty=True)
    config = {"learning_rate": EVIL, "nested": {"deep": EVIL}}
    ledger.record(
        ev.RunSubmitted(
            run_id=f"r-{spec[7:23]}", kind="sft", stage="sft", executor="fake", spec=spec, config=config, seed=1,
            base=copy.base, verifier=EVIL, code=code, environment=copy.environment,
        )
    )  # fmt: skip
    ledger.record(
        ev.AttemptStarted(
            run_id=f"r-{spec[7:23]}", attempt=1, launcher="local", host=EVIL, devices=1, device_kind="cpu"
        )
    )
    ledger.record(ev.RunFailed(run_id=f"r-{spec[7:23]}", reason=EVIL, retryable=True))
    ledger.record(
        ev.GatePolicySet(
            stage="evil", suite="held-out", method="paired-t", confidence="0.95", min_gain="0", min_items=2
        )
    )
    decide_gate(ledger, copy.model, copy.base, "evil")
    promote(ledger, copy.model, "evil", reason=EVIL)
    return copy


@pytest.mark.parametrize(
    "words",
    [
        ("which", "evil"),
        ("lineage", "evil"),
        ("lineage", "evil", "--format", "dot"),
        ("lineage", "evil", "--json"),
        ("runs",),
        ("runs", "show", f"r-{sha256_digest(b'spec')[7:23]}"),
        ("base", "list"),
        ("log", "tail", "-n", "20"),
        ("log", "tail", "-n", "20", "--json"),
        ("log", "show", "31"),
        ("log", "show", "31", "--json"),
        ("budget", "show"),
        ("data", "list"),
        ("sql", "SELECT actor, payload FROM events"),
        ("sql", "SELECT actor, payload FROM events", "--json"),
    ],
    ids=" ".join,
)
def test_no_command_lets_a_control_character_through(run: Run, evil: DemoHistory, words: tuple[str, ...]) -> None:
    if words[0] == "sql":
        pytest.importorskip("duckdb")
    answer = run(*words)
    assert answer.code == 0, answer.err
    assert FORBIDDEN.findall(answer.out) == []


def test_markup_is_shown_as_it_is(run: Run, evil: DemoHistory) -> None:
    out = run("which", "evil").out
    assert "[bold red]b[/bold red]:smile:" in out
    assert "a\\x1b[2J\\x1b]0;own\\x07\\x0d\\x9b31m\\u202egnp.exe\\u2028" in out


def test_csv_is_exact_for_programs(run: Run, evil: DemoHistory) -> None:
    pytest.importorskip("duckdb")
    text = run("sql", "SELECT source FROM bases WHERE name = 'evil'", "--format", "csv").out
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["source"], [EVIL]]


STRING = r'"(?:[^"\\\n]|\\.)*"'
STATEMENT = re.compile(rf"^  {STRING}(?: -> {STRING})? \[label={STRING}\];$")


def test_dot_keeps_every_name_in_its_string() -> None:
    names = ["a:plain", f"b:{EVIL}", 'c:" -> "x', "d:back\\", "e:<html>", "f:new\nline", "g:\\n"]
    nodes = {name: Node(name, name[0], name[2:], None, None) for name in names}
    links = tuple(Link(name, EVIL, names[0], 1) for name in names[1:])
    lines = to_dot(Lineage(names[0], "up", nodes, links, True, "", 1)).split("\n")
    assert (lines[0], lines[-1]) == ("digraph lineage {", "}")
    statements = lines[3:-1]
    assert len(statements) == len(nodes) + len(links)
    for statement in statements:
        assert STATEMENT.fullmatch(statement), statement
        assert not FORBIDDEN.search(statement)
    assert '  "d:back\\\\" [label="d\\nback\\\\"];' in statements
    assert '  "g:\\\\n" [label="g\\n\\\\n"];' in statements


def test_plain_is_one_line() -> None:
    assert plain("a\nb\tc\x1b\x7f\x85\u2066\ud800é") == "a\\x0ab\\x09c\\x1b\\x7f\\x85\\u2066\\ud800é"
    assert plain(3) == "3"


def test_the_console_cleans_what_was_built_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    console = SafeConsole(width=80)
    console.print(Text("red \x1b[31m"))
    console.print("[bold]text[/bold] \x9b1m\nsecond line")
    out = capsys.readouterr().out
    assert out == "red \\x1b[31m\n[bold]text[/bold] \\x9b1m\nsecond line\n"


def test_an_example_with_brackets_survives_the_help_renderer(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        Console(file=file, width=80, markup=True).print(example("posttrain which [STAGE]"))
    assert "posttrain which [STAGE]" in (tmp_path / "out").read_text()

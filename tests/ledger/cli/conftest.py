"""One demo history for all tests of the commands, and a function that runs a command in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ledger.cli.app import app
from ledger.home import Ledger
from ledger.testing.history import DemoHistory, demo_history


@dataclass(frozen=True)
class Demo:
    home: Path
    history: DemoHistory


@dataclass(frozen=True)
class Answer:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Answer]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    home = tmp_path_factory.mktemp("demo") / "home"
    return Demo(home, demo_history(Ledger.open(home, create=True, actor="ada")))


@pytest.fixture
def demo(recorded: Demo, monkeypatch: pytest.MonkeyPatch) -> DemoHistory:
    """Commands ask the demo history; for tests that change nothing."""
    monkeypatch.setenv("POSTTRAIN_HOME", str(recorded.home))
    return recorded.history


@pytest.fixture
def copy(recorded: Demo, home: Path) -> DemoHistory:
    """Commands work on a copy of the demo history that belongs to this test."""
    shutil.copytree(recorded.home, home)
    return recorded.history


@pytest.fixture
def run() -> Run:
    """Run `posttrain WORDS…` in this process, on a wide terminal."""

    def invoke(*words: str) -> Answer:
        result: Result = CliRunner().invoke(app, list(words), env={"COLUMNS": "300"})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    return invoke

"""What the distribution promises exists: entry points, extras, and one table of plug-ins."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ENTRY_POINTS = [
    EntryPoint(name, value, group)
    for group, entries in {**PROJECT["entry-points"], "console_scripts": PROJECT["scripts"]}.items()
    for name, value in entries.items()
]


@pytest.mark.parametrize("entry", ENTRY_POINTS, ids=lambda entry: f"{entry.group}:{entry.name}")
def test_an_entry_point_leads_somewhere(entry: EntryPoint) -> None:
    if entry.group == "posttrain.executors" and entry.name != "fake":
        pytest.importorskip("torch")
    assert entry.load()


def test_the_tables_of_a_source_tree_say_the_same_as_the_distribution() -> None:
    from executors.registry import FIRST_PARTY as EXECUTORS
    from ledger.cli.plugins import SOURCE_TREE
    from verifiers.registry import FIRST_PARTY as VERIFIERS

    declared = {group: dict(entries) for group, entries in PROJECT["entry-points"].items()}
    assert declared["posttrain.executors"] == EXECUTORS
    assert declared["posttrain.verifiers"] == {name: entry.value for name, entry in VERIFIERS.items()}
    commands = {entry.name: entry.value for entry in SOURCE_TREE}
    assert declared["posttrain.commands"].items() <= commands.items()


def test_every_extra_that_an_error_names_exists() -> None:
    extras = set(PROJECT["optional-dependencies"])
    named = {}
    for package in ("ledger", "executors", "verifiers", "assets"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text("utf-8")
            calls = re.findall(r"MissingExtra\([^()]*(?:\([^()]*\)[^()]*)*,\s*\"([a-z0-9]+)\"\)", text)
            for extra in calls + re.findall(r"posttrain\[([a-z0-9,]+)\]", text):
                named[extra] = str(path.relative_to(ROOT))
    assert "sql" in named
    assert {extra: place for extra, place in named.items() if set(extra.split(",")) - extras} == {}


def test_every_extra_of_the_first_release_exists() -> None:
    wanted = {"train", "vllm", "deepspeed", "dagster", "s3", "postgres", "verify", "evaluate", "serve", "sql", "dev"}
    assert wanted <= set(PROJECT["optional-dependencies"])


def test_the_core_is_small() -> None:
    names = {re.split(r"[<>=!\[ ]", line)[0] for line in PROJECT["dependencies"]}
    assert names == {"cryptography", "fsspec", "pydantic", "pyyaml", "rich", "sqlalchemy", "typer"}

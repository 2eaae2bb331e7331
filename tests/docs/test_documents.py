"""The documents say what is: links, commands, options, targets, YAML and Python are tried."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(path for place in (ROOT, ROOT / "docs", ROOT / "docs/decisions") for path in place.glob("*.md"))
CODE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^(?:    .*)?\n)+", re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def code(path: Path, language: str) -> list[str]:
    return [body for kind, body in CODE.findall(path.read_text("utf-8")) if kind == language]


def command_lines(text: str) -> Iterator[str]:
    """Each use of `posttrain COMMAND …` in a code span or block; `a|b` becomes two uses, a wide gap begins a description."""
    blocks = [body for _, body in CODE.findall(text)] + INDENTED.findall(text)
    lines = SPAN.findall(text) + [line for block in blocks for line in block.splitlines()]
    for line in lines:
        for part in re.split(r"&&|\|\||;|\$\(| \| ", line.partition(" #")[0]):
            found = re.search(r"(?:^|[\s/])posttrain (\S.*?)(?: {2}|$)", part)
            if found is not None:
                words = [word.split("|") for word in found[1].split() if word not in ("…", "\\")]
                yield from (" ".join(choice) for choice in product(*words))


USES = sorted({(name(path), use) for path in DOCUMENTS for use in command_lines(path.read_text("utf-8"))})


@pytest.fixture(scope="module")
def commands() -> Any:
    """The whole command line as Typer sees it."""
    from typer.main import get_group

    from ledger.cli.app import app

    return get_group(app)


def find(group: Any, words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and the words that are left."""
    command, rest = group, list(words)
    while getattr(command, "commands", None) is not None and rest and not rest[0].startswith("-"):
        context = command.make_context(command.name or "posttrain", list(rest))
        rest = [*context._protected_args, *context.args]  # with the group's default command, when it has one
        known = command.list_commands(context)
        assert rest[0] in known, f"{' '.join(words)}: {rest[0]} is not one of {', '.join(known)}"
        _, command, rest = command.resolve_command(context, rest)
    return command, rest


def _context(command: Any) -> Any:
    return command.make_context(command.name or "posttrain", [], resilient_parsing=True)


@pytest.mark.parametrize(("document", "use"), USES)
def test_a_command_in_a_document_exists(commands: Any, document: str, use: str) -> None:
    words = use.split()
    if words[0] == "[--home":  # the usage line
        return
    command, rest = find(commands, words)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "-h"}
    used = {word.split("=")[0] for word in rest if word.startswith("--") and word != "--"}
    assert used <= known, f"{document}: posttrain {use}"


def test_the_command_page_lists_every_command(commands: Any) -> None:
    listed = re.findall(r"^\| `posttrain ([a-z]+)", (ROOT / "docs/cli.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(set(listed)) == sorted(commands.list_commands(_context(commands)))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_a_link_leads_somewhere(document: Path) -> None:
    text = document.read_text("utf-8")
    targets = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)", text)
    missing = []
    for target, anchor in targets:
        place = (document.parent / target) if target else document
        if not place.exists():
            missing.append(target)
        elif anchor and anchor not in anchors(place):
            missing.append(f"{target}#{anchor}")
    assert missing == []


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_a_make_target_exists(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    text = document.read_text("utf-8")
    commands = SPAN.findall(text) + [line.strip() for line in text.splitlines() if line.startswith("    make ")]
    for line in commands:
        words = line.partition(" #")[0].split()
        for word in words[words.index("make") + 1 :] if "make" in words else []:
            if re.fullmatch(r"[a-z]+(-[a-z]+)*", word):
                family, _, rest = word.partition("-")
                places = {"bench": f"tests/benchmarks/{rest}.py", "campaign": f"tests/faults/campaign_{rest}.py"}
                assert word in targets or (ROOT / places.get(family, "missing")).exists(), line


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_a_module_in_a_document_exists(document: Path) -> None:
    spans = SPAN.findall(document.read_text("utf-8"))
    files = {
        span
        for span in spans
        if re.fullmatch(r"(?:ledger|executors|verifiers|assets|tests|docs|deploy)/[\w./-]*", span)
    }
    assert {span for span in files if not (ROOT / span).exists()} == set()


def test_the_yaml_of_the_stage_page_is_accepted(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from executors.stage import load_stage
    from ledger.datasets.build import Recipe
    from ledger.datasets.suites import load_suite_file
    from ledger.yamlfile import load_yaml

    loaders = {"stage": load_stage, "sources": lambda path: load_yaml(path, Recipe), "items": load_suite_file}
    seen: dict[str, BaseModel] = {}
    for body in code(ROOT / "docs/stage-files.md", "yaml"):
        kind = next(key for key in loaders if re.search(rf"^{key}:", body, re.MULTILINE))
        path = tmp_path / f"{kind}.yaml"
        path.write_text(body, "utf-8")
        seen[kind] = loaders[kind](path)
    assert set(seen) == set(loaders)


def test_the_python_of_the_ledger_page_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs/ledger.md").read_text("utf-8")
    block = next(block for block in INDENTED.findall(text) if "import" in block)
    program = "\n".join(line[4:] for line in block.splitlines())
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "1 price/cpu 1 1\n"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}

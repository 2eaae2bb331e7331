"""The shape of the code: sizes, names, docstrings, and nothing that belongs to one machine."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ledger", "executors", "verifiers", "assets")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70
MAX_LONG_SHARE = 0.10  # at most this share of the functions is over 40 lines
NO_CONCEPT = {"utils", "util", "common", "helpers", "helper", "misc"}

# Directories in which a machine keeps what is its own. A file in the repository that names one works nowhere else.
MACHINE_PATH = re.compile(r"(?<![\w.~}])/(?:home|Users|root|work|workspace|private|mnt|media|scratch)/[\w.-]+")
# Where packages, models and code are fetched from is the reader's choice, made in pip's own configuration.
HOST = re.compile(
    r"\b(?:pypi[.]org|files[.]python\w+[.]org|huggingface[.]co|hf[.]co|download[.]pytorch[.]org|ghcr[.]io)\b"
)


def tracked() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """The place and length in lines of every function in a file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", lines


def test_files_are_short() -> None:
    tests = sorted((ROOT / "tests").rglob("*.py"))
    sizes = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in [*sources(), *tests]}
    assert {name: size for name, size in sizes.items() if size > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    sizes = dict(size for path in sources() for size in functions(path))
    assert {name: size for name, size in sizes.items() if size > MAX_FUNCTION_LINES} == {}
    long = [name for name, size in sizes.items() if size > 40]
    assert len(long) <= MAX_LONG_SHARE * len(sizes), long


def test_a_module_is_named_for_a_concept() -> None:
    nameless = [str(path.relative_to(ROOT)) for path in sources() if NO_CONCEPT & {path.stem, path.parent.name}]
    assert nameless == []


def test_every_public_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sources()
        if not path.stem.startswith("_") or path.stem == "__init__"
        if ast.get_docstring(ast.parse(path.read_text("utf-8"))) is None
    ]
    assert silent == []


OPTIONAL = {
    "dagster", "duckdb", "fastapi", "gguf", "httpx", "safetensors", "starlette", "tokenizers", "torch", "transformers",
    "uvicorn",
}  # fmt: skip


def local_imports(path: Path) -> Iterator[str]:
    """Imports within functions that bring nothing optional in and give no reason."""
    text = path.read_text("utf-8")
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        found: list[tuple[str, int]] = []
        for node in ast.walk(function):
            if isinstance(node, ast.Import):
                found += [(alias.name, node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                found.append((node.module or "", node.lineno))
        brings = OPTIONAL & {module.partition(".")[0] for module, _ in found}
        for module, line in found:
            top = module.partition(".")[0]
            loads_it = top in PACKAGES and brings  # our own module that needs what is loaded beside it
            if not (top in OPTIONAL or loads_it or "  # " in text.splitlines()[line - 1]):
                yield f"{path.relative_to(ROOT)}:{line} {module}"


def test_an_import_within_a_function_loads_something_optional_or_says_why() -> None:
    assert [place for path in sources() for place in local_imports(path)] == []


def test_the_top_level_holds_the_known_folders() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in tracked() if len(path.relative_to(ROOT).parts) > 1}
    assert folders - {".ci"} <= {"assets", "deploy", "docs", "executors", "ledger", "tests", "verifiers"}


@pytest.mark.parametrize(("what", "pattern"), [("a machine's path", MACHINE_PATH), ("a package or model host", HOST)])
def test_no_file_names(what: str, pattern: re.Pattern[str]) -> None:
    found = []
    for path in tracked():
        if path == Path(__file__):
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:  # not text
            continue
        found += [f"{path.relative_to(ROOT)}: {what}: {match.group()}" for match in pattern.finditer(text)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "finds"),
    [
        ("see /home/ada/models/base", True),
        ('path = "/Users/ada/x"', True),
        ("/root/.cache/x", True),
        ("$HOME/work/posttrain", False),
        ("tests/home/x", False),
        ("~/home/x", False),
        ("https://example.org/home/x", False),
    ],
)
def test_a_machine_path_is_recognised(text: str, finds: bool) -> None:
    assert bool(MACHINE_PATH.search(text)) is finds

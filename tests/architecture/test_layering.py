"""The layering holds, and the contracts that say so bite."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ledger", "executors", "verifiers", "assets")


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the packages in `tree`, which must win over an installed posttrain."""
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from importlinter.cli import lint_imports_command as c; c()"
    )
    return subprocess.run(
        [sys.executable, "-I", "-c", code, str(tree), "pyproject.toml", "--no-cache", "--no-logo"],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the packages that a test may spoil."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_tree_keeps_every_contract() -> None:
    answer = lint_imports(ROOT)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert " 0 broken" in answer.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("ledger/digest.py", "import torch", "the ledger loads no trainer, engine or orchestrator"),
        ("ledger/digest.py", "import dagster", "the ledger loads no trainer, engine or orchestrator"),
        ("ledger/digest.py", "import executors.base", "assets → executors | verifiers → ledger"),
        ("ledger/digest.py", "def load():\n    import verifiers", "assets → executors | verifiers → ledger"),
        ("executors/base.py", "import verifiers.base", "assets → executors | verifiers → ledger"),
        ("verifiers/base.py", "import executors.base", "assets → executors | verifiers → ledger"),
        ("verifiers/base.py", "import torch", "verifiers load no tensors"),
        ("executors/base.py", "import dagster", "only assets know Dagster"),
    ],
)
def test_an_import_upward_breaks_its_contract(tree: Path, module: str, line: str, contract: str) -> None:
    path = tree / module
    path.write_text(f"{path.read_text('utf-8')}\n\n{line}\n", "utf-8")
    answer = lint_imports(tree)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert f"{contract} BROKEN" in answer.stdout


def test_verifiers_is_this_project() -> None:
    """A foreign distribution installs the same import name."""
    import verifiers

    assert Path(str(verifiers.__file__)).parent == ROOT / "verifiers"

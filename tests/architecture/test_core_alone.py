"""The core works without any extra: its modules import, the command starts, and what is missing is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What the extras bring. A core installation has none of it.
EXTRAS = (
    "accelerate", "dagster", "datasets", "deepspeed", "duckdb", "fastapi", "httpx", "math_verify", "numpy", "openai",
    "psycopg", "pyarrow", "ray", "s3fs", "safetensors", "starlette", "sympy", "tokenizers", "torch", "transformers",
    "uvicorn", "vllm",
)  # fmt: skip

# Packages of which only a child process loads every module, and what the parent needs of them: plans, layouts, protocols.
IN_A_CHILD = (
    "executors.checkpoints", "executors.evaluation.worker", "executors.rollout", "executors.serving.web",
    "executors.trainers",
)  # fmt: skip
IN_THE_PARENT = (
    "executors.checkpoints", "executors.checkpoints.layout", "executors.rollout", "executors.rollout.base",
    "executors.trainers", "executors.trainers.config", "executors.trainers.fsdp",
)  # fmt: skip


BLOCKED = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked)", name=name)

sys.meta_path.insert(0, Blocker())
sys.path.insert(0, {str(ROOT)!r})
"""


def run_without_extras(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code, *args], capture_output=True, text=True, timeout=120, cwd=ROOT
    )


def modules(package: str) -> list[str]:
    """Every module of a package, as `import` names it; `__main__` runs and is not imported."""
    names = []
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] != "__main__":
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


@pytest.mark.parametrize("package", ["ledger", "verifiers", "executors"])
def test_modules_import_without_extras(package: str) -> None:
    names = [name for name in modules(package) if name in IN_THE_PARENT or not name.startswith(IN_A_CHILD)]
    assert package in names
    code = """
import importlib, json
broken = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        broken[name] = f"{type(error).__name__}: {error}"
print(json.dumps(broken))
"""
    answer = run_without_extras(code, *names)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout.splitlines()[-1]) == {}


def test_help_loads_no_store_and_no_extra() -> None:
    """`posttrain --help` stays fast because it imports nothing that it does not need."""
    code = """
from ledger.cli.app import main
try:
    main(["--help"])
except SystemExit as ending:
    assert not ending.code, ending.code
heavy = {"sqlalchemy", "fsspec", "cryptography", "yaml", "asyncio"} & set(sys.modules)
print("loaded:", sorted(heavy))
"""
    answer = run_without_extras(code)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "loaded: []"
    assert "which" in answer.stdout


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    code = """
from ledger.cli.app import main
main(sys.argv[1:])
"""
    home = str(tmp_path / "home")
    assert run_without_extras(code, "--home", home, "init").returncode == 0
    answer = run_without_extras(code, "--home", home, "sql", "SELECT 1")
    assert answer.returncode == 2
    assert "posttrain[sql]" in answer.stderr
    assert "Traceback" not in answer.stderr

"""README's synopsis runs as it stands, and does what its comments say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def synopsis() -> str:
    section = README.partition("\n## Synopsis\n")[2].partition("\n## ")[0]
    found = re.search(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell in which `posttrain` and `python` are those of this tree, as in an activated .venv."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in {"posttrain": " -m ledger.cli", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    # A copy, because a run's identity holds the code: an edit while the test runs would make it another run.
    tree = tmp_path / "tree"
    for package in ("ledger", "executors", "verifiers", "assets"):
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    return {**os.environ, "PATH": path, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1", "COLUMNS": "160"}


def test_the_synopsis_has_twenty_lines() -> None:
    assert len(synopsis().splitlines()) == 20


@pytest.mark.slow
def test_the_synopsis_runs(tmp_path: Path, shell: dict[str, str]) -> None:
    pytest.importorskip("transformers")
    work = tmp_path / "work"
    work.mkdir()
    script = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", synopsis()], cwd=work, env=shell, capture_output=True, text=True, timeout=150
    )
    assert script.returncode == 0, script.stderr
    assert "exit 4: the process died of kill -9 at step 25" in script.stdout
    runs = posttrain(work, shell, "runs")
    assert [(run["state"], run["step"], run["attempts"]) for run in runs] == [("completed", 40, 2)]
    events = [json.loads(line) for line in posttrain_lines(work, shell, "log", "tail", "-n", "1000")]
    types = [event["type"] for event in events]
    assert types.count("CheckpointCommitted") == 4
    assert types.count("RunCompleted") == 1
    assert [e["payload"]["from_step"] for e in events if e["type"] == "AttemptStarted"] == [0, 20]


def posttrain_lines(work: Path, shell: dict[str, str], *words: str) -> list[str]:
    answer = subprocess.run(
        ["posttrain", *words, "--json"], cwd=work, env=shell, capture_output=True, text=True, timeout=60, check=True
    )
    return answer.stdout.splitlines()


def posttrain(work: Path, shell: dict[str, str], *words: str) -> list[dict[str, object]]:
    return list(json.loads("\n".join(posttrain_lines(work, shell, *words))))

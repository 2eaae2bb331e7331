"""A tiny model, and a ledger that has it, a suite and a price."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ledger import budget
from ledger.artifacts import media_types
from ledger.canonical import canonical_digest
from ledger.digest import sha256_digest
from ledger.events import BaseRevisionPinned, SuiteRegistered
from ledger.home import Ledger
from tests.executors.rollout.tiny import save_model

ITEMS = [{"prompt": f"{i}+{i % 7}=", "answer": str(i + i % 7)} for i in range(60)]
DIGESTS = [canonical_digest(item) for item in ITEMS]


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def suite_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "suite"
    directory.mkdir()
    (directory / "items.jsonl").write_bytes(suite_bytes(ITEMS))
    return directory


@pytest.fixture
def ledger(home: Path, model_directory: Path) -> Ledger:
    """The base `tiny` and the suite `sums` are known, and a CPU has a price."""
    opened = Ledger.open(home, create=True, actor="ada")
    add_base(opened, "tiny", model_directory)
    add_suite(opened, "sums", ITEMS)
    budget.set_price(opened, "cpu", "0.05")
    return opened


def suite_bytes(items: Sequence[dict[str, str]]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


def add_base(ledger: Ledger, name: str, directory: Path) -> str:
    stored = ledger.artifacts.add_directory(directory, media_types.MODEL)
    ledger.record(
        BaseRevisionPinned(
            name=name,
            base=stored.digest,
            source=f"generated:{name}",
            size_bytes=stored.size_bytes,
            files=len(stored.manifest.files),
            tokenizer=sha256_digest(b"tokenizer"),
        )
    )
    return stored.digest


def add_suite(ledger: Ledger, name: str, items: Sequence[dict[str, str]], config: dict[str, str] | None = None) -> str:
    config = {"extract": "last-number"} if config is None else config
    about = {"name": name, "verifier": "exact-answer", "verifier_config": config, "items": len(items)}
    files: dict[str, Path | bytes] = {"items.jsonl": suite_bytes(items), "suite.json": json.dumps(about).encode()}
    digest = ledger.artifacts.add_files(files, media_types.SUITE).digest
    ledger.record(
        SuiteRegistered(
            name=name,
            suite=digest,
            items=len(items),
            verifier="exact-answer",
            verifier_config=config,
            licence="CC0-1.0",
            source="generated",
        )
    )
    return digest

"""A small directory with fixed bytes, and stores of both kinds."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from ledger.artifacts import ArtifactStore

FIXED = {
    "config.json": b'{"hidden_size": 8}',
    "model.safetensors": b"weights " * 1000,
    "sub/rows.jsonl": b'{"prompt":"1+1=","response":"2"}\n',
    "README.md": "Ein Modell für Tests\n".encode(),
    "empty.txt": b"",
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, data in FIXED.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "source"


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    if request.param == "memory":
        return ArtifactStore.open(f"memory://{secrets.token_hex(8)}")
    return ArtifactStore.open(tmp_path / "store")


@pytest.fixture
def local(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore.open(tmp_path / "store")

"""A small directory with fixed bytes, a larger one of several chunks, and stores of both kinds."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from ledger.artifacts import Artifact, ArtifactStore, media_types
from ledger.artifacts.storage import CHUNK_BYTES

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


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """Two files of three and two chunks, and a small one."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.safetensors").write_bytes(os.urandom(3 * CHUNK_BYTES - 5))
    (source / "b.safetensors").write_bytes(os.urandom(2 * CHUNK_BYTES + 5))
    (source / "config.json").write_bytes(b"{}")
    return source


@pytest.fixture
def stored(local: ArtifactStore, big: Path) -> Artifact:
    return local.add_directory(big, media_types.MODEL)

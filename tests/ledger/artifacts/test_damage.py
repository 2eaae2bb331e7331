"""Flipped bits, cut, grown, emptied and missing blobs: named by the store's check, and refused by every read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ledger.artifacts import Artifact, ArtifactStore
from ledger.errors import NotFound, TamperFound
from tests.ledger.artifacts.disk import blob_file, change, flip

DAMAGE: dict[str, tuple[Callable[[bytearray], object], str]] = {
    "flipped": (flip, "its bytes have another digest"),
    "cut": (lambda data: data.pop(), "bytes, not"),
    "grown": (lambda data: data.append(0), "bytes, not"),
    "emptied": (lambda data: data.clear(), "it has 0 bytes, not"),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", ["a.safetensors", "config.json"])
def test_a_damaged_file_is_found_by_problems_and_by_every_read(
    local: ArtifactStore, stored: Artifact, tmp_path: Path, kind: str, name: str
) -> None:
    damage, what = DAMAGE[kind]
    digest = stored.manifest.files[name].digest
    blob = blob_file(local, digest)
    change(blob, damage)
    (problem,) = local.problems(stored.digest)
    assert (problem.blob, problem.name, problem.path) == (digest, name, str(blob))
    assert what in problem.what
    for read in (
        lambda: local.read(stored.digest, name),
        lambda: local.materialise(stored.digest, tmp_path / "out"),
    ):
        with pytest.raises(TamperFound) as found:
            read()
        assert digest in str(found.value)
        assert str(blob) in str(found.value)
    assert not (tmp_path / "out").exists()


def test_a_damaged_manifest_or_config_is_found(local: ArtifactStore, stored: Artifact) -> None:
    change(blob_file(local, stored.manifest.config_digest), flip)
    assert [problem.name for problem in local.problems(stored.digest)] == ["config"]
    with pytest.raises(TamperFound, match=stored.manifest.config_digest):
        local.config(stored.digest)
    change(blob_file(local, stored.digest), flip)
    (problem,) = local.problems(stored.digest)
    assert (problem.blob, problem.name, problem.what) == (stored.digest, "manifest", "its bytes have another digest")
    for ask in (local.manifest, local.has, local.config):
        with pytest.raises(TamperFound, match=stored.digest):
            ask(stored.digest)


def test_nothing_is_erased_while_a_damaged_manifest_hides_what_is_shared(
    local: ArtifactStore, stored: Artifact
) -> None:
    other = local.put_json(1)
    change(blob_file(local, stored.digest), flip)
    with pytest.raises(TamperFound, match=stored.digest):
        local.erase(other.digest)
    assert local.problems(other.digest) == []


def test_a_missing_file_is_not_found(local: ArtifactStore, stored: Artifact, tmp_path: Path) -> None:
    digest = stored.manifest.files["config.json"].digest
    blob_file(local, digest).unlink()
    (problem,) = local.problems(stored.digest)
    assert (problem.blob, problem.name, problem.what) == (digest, "config.json", "missing")
    assert not local.has(stored.digest)
    for read in (
        lambda: local.read(stored.digest, "config.json"),
        lambda: local.materialise(stored.digest, tmp_path / "out"),
    ):
        with pytest.raises(NotFound, match=f"blob {digest} is missing"):
            read()
    assert not (tmp_path / "out").exists()

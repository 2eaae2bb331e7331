"""The documents of an OCI image layout beside its blobs, and the list of manifests among them.

`manifests/sha256/<hex>` holds the descriptor of each blob that is a manifest. It is written before the manifest, so an
artifact that is there is always listed: erasing another one never takes blobs that it shares. `index.json` repeats the list
for ordinary tools (`oras`, `skopeo`); nothing here reads it for anything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ledger.artifacts import media_types
from ledger.artifacts.manifest import Manifest
from ledger.artifacts.storage import Storage, blob_key
from ledger.canonical import canonical_bytes
from ledger.digest import is_digest
from ledger.errors import InputError, NotFound

_LAYOUT = {"imageLayoutVersion": "1.0.0"}  # image-spec image-layout.md, "oci-layout file"
_MARKERS = "manifests/sha256"
_MAX_INDEX_BYTES = 64 << 20
_OURS = {"oci-layout", "index.json", "blobs", "manifests", "ingest"}


def prepare(storage: Storage) -> None:
    """Make the store ready for writing.

    Raises:
        InputError: the place holds something else.
    """
    if storage.size_bytes("oci-layout") is None:
        strangers = sorted({key.rpartition("/")[2] for key in storage.keys("")} - _OURS)
        if strangers:
            raise InputError(
                f"{storage.url} is not an artifact store: it holds {strangers[0]!r}; choose an empty directory"
            )
        storage.prepare()
        storage.write("oci-layout", canonical_bytes(_LAYOUT))
        if storage.size_bytes("index.json") is None:
            _write_index(storage, [])
        return
    try:
        layout = json.loads(b"".join(storage.read("oci-layout")))
    except (ValueError, RecursionError):
        layout = None
    if not isinstance(layout, dict) or layout.get("imageLayoutVersion") != "1.0.0":
        raise InputError(
            f"{storage.place('oci-layout')} is not of an OCI image layout 1.0.0; choose an empty directory"
        )
    storage.prepare()


def publish(storage: Storage, digest: str, data: bytes, artifact_type: str) -> None:
    """Store a manifest whose blobs are durable; the artifact exists when this returns."""
    entry = {"mediaType": media_types.MANIFEST, "digest": digest, "size": len(data), "artifactType": artifact_type}
    marker = _marker(digest)
    if storage.size_bytes(marker) is None:
        storage.write(marker, canonical_bytes(entry))
    storage.put_bytes(digest, data)
    storage.settle()
    with storage.locked("index", shared=False):
        entries = _read_index(storage)
        if entries is None:
            _write_index(storage, _listed_entries(storage))
        elif all(other["digest"] != digest for other in entries):
            _write_index(storage, [*entries, entry])


def withdraw(storage: Storage, digest: str) -> None:
    """Remove a manifest and its place in the lists."""
    storage.remove(blob_key(digest))
    storage.settle()
    storage.remove(_marker(digest))
    with storage.locked("index", shared=False):
        entries = _read_index(storage)
        kept = (
            _listed_entries(storage) if entries is None else [other for other in entries if other["digest"] != digest]
        )
        _write_index(storage, kept)


def listed(storage: Storage) -> Iterator[str]:
    """The digests of the manifests that are there, sorted. A writer that died may have left one without all its blobs."""
    for key in storage.keys(_MARKERS):
        digest = "sha256:" + key.rpartition("/")[2]
        if is_digest(digest) and storage.size_bytes(blob_key(digest)) is not None:
            yield digest


def _marker(digest: str) -> str:
    return f"{_MARKERS}/{digest.removeprefix('sha256:')}"


def _listed_entries(storage: Storage) -> list[dict[str, Any]]:
    entries = []
    for digest in listed(storage):
        data = b"".join(storage.read(blob_key(digest)))
        try:
            artifact_type = Manifest.parse(data).artifact_type
        except InputError:
            continue  # a damaged manifest is for `problems` to name; tools could not read it
        entry = {"mediaType": media_types.MANIFEST, "digest": digest, "size": len(data), "artifactType": artifact_type}
        entries.append(entry)
    return entries


def _read_index(storage: Storage) -> list[dict[str, Any]] | None:
    """The entries of `index.json`; `None` when it is missing or not one that this store wrote."""
    size = storage.size_bytes("index.json")
    if size is None or size > _MAX_INDEX_BYTES:
        return None
    try:
        entries = json.loads(b"".join(storage.read("index.json")))["manifests"]
        return entries if all(is_digest(entry["digest"]) for entry in entries) else None
    except (ValueError, KeyError, TypeError, RecursionError, NotFound):
        return None


def _write_index(storage: Storage, entries: list[dict[str, Any]]) -> None:
    value = {"schemaVersion": 2, "mediaType": media_types.INDEX, "manifests": entries}
    storage.write("index.json", canonical_bytes(value, _MAX_INDEX_BYTES))

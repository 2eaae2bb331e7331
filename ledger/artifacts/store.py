"""The artifact store: files in, a digest out; a digest in, verified files out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger.artifacts import blobs, layout, media_types, staging
from ledger.artifacts.blobs import Problem
from ledger.artifacts.local import LocalStorage
from ledger.artifacts.manifest import MAX_MANIFEST_BYTES, Descriptor, Manifest, config_blob
from ledger.artifacts.names import check_names
from ledger.artifacts.storage import Storage, Tick, blob_key, hash_file
from ledger.artifacts.transfer import Progress, for_each
from ledger.artifacts.tree import regular_files
from ledger.canonical import canonical_bytes
from ledger.digest import sha256_digest
from ledger.errors import InputError, NotFound, TamperFound

MAX_CONFIG_BYTES = MAX_MANIFEST_BYTES
MAX_JSON_BYTES = 16 << 20
MAX_READ_BYTES = 64 << 20

Source = Path | bytes
Work = Callable[[Source, Tick], tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A stored artifact. `digest` is its manifest's and its identity; `size_bytes` counts its files."""

    digest: str
    manifest: Manifest
    size_bytes: int


class ArtifactStore:
    """Content-addressed files in an OCI image layout.

    Writing goes blobs, then manifest, then (elsewhere) the event: a crash leaves only blobs that nothing refers to. Every
    method raises InfrastructureError when the disk or the far side fails, and InputError for a text that is no digest.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @classmethod
    def open(cls, where: str | Path) -> ArtifactStore:
        """The store at a local path, a `file://` URL or any fsspec URL. Nothing is made before something is added.

        Raises:
            InputError: a URL that fsspec does not know, or whose package is not installed.
        """
        text = str(where).removeprefix("file://")
        if isinstance(where, Path) or ("://" not in text and "::" not in text):
            return cls(LocalStorage(Path(text)))
        from ledger.artifacts.remote import RemoteStorage  # imports fsspec, which a local store does without

        return cls(RemoteStorage(text))

    @property
    def url(self) -> str:
        return self._storage.url

    def add_files(
        self,
        files: Mapping[str, Source],
        artifact_type: str,
        *,
        config: Mapping[str, Any] | None = None,
        annotations: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Artifact:
        """Store files under names. The same names, bytes, type, config and annotations always have the same digest.

        Each source is read once and hashed while it is written; what is stored already is read and not written again.
        Returns when everything is durable.

        Args:
            artifact_type: one of `ledger.artifacts.media_types`.
            config: a small canonical-JSON value stored beside the files and a part of the identity.
            annotations: texts in the manifest, also a part of the identity.
            progress: told the bytes of the files that were handled since its last call.

        Raises:
            InputError: no files, a name that `check_names` refuses, a source that is missing or not a regular file, an
                artifact type that is not a media type, or a config without canonical form.
        """
        media_types.check_artifact_type(artifact_type)
        check_names(files)
        layout.prepare(self._storage)
        with self._storage.locked("store", shared=True):
            descriptors = self._describe(files, artifact_type, self._put, progress)
            manifest, config_data = _assemble(descriptors, artifact_type, config, annotations)
            self._storage.put_bytes(manifest.config_digest, config_data)
            self._storage.settle()
            data = manifest.to_bytes()
            digest = sha256_digest(data)
            layout.publish(self._storage, digest, data, artifact_type)
        return Artifact(digest, manifest, manifest.size_bytes)

    def add_directory(
        self,
        path: Path,
        artifact_type: str,
        *,
        config: Mapping[str, Any] | None = None,
        annotations: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Artifact:
        """Store every file under a directory; names are relative POSIX paths. Otherwise like `add_files`.

        Raises:
            InputError: also for what `regular_files` refuses (links that lead outside, pipes, devices).
        """
        files = regular_files(Path(path))
        return self.add_files(files, artifact_type, config=config, annotations=annotations, progress=progress)

    def put_json(self, value: Any, artifact_type: str = media_types.RECORD) -> Artifact:
        """Store one canonical-JSON document as `data.json`.

        Raises:
            CanonicalError: it has no canonical form, or more than 16 MiB.
        """
        return self.add_files({"data.json": canonical_bytes(value, MAX_JSON_BYTES)}, artifact_type)

    def describe(
        self,
        files: Mapping[str, Source],
        artifact_type: str,
        *,
        config: Mapping[str, Any] | None = None,
        annotations: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Artifact:
        """What `add_files` would return, with nothing stored."""
        media_types.check_artifact_type(artifact_type)
        check_names(files)
        descriptors = self._describe(files, artifact_type, _hash, progress)
        manifest, _ = _assemble(descriptors, artifact_type, config, annotations)
        return Artifact(sha256_digest(manifest.to_bytes()), manifest, manifest.size_bytes)

    def manifest(self, digest: str) -> Manifest:
        """The manifest with this digest.

        Raises:
            NotFound: it is not in this store.
            TamperFound: its bytes have another digest.
            InputError: the digest is of something that is not a manifest.
        """
        try:
            data = blobs.read(self._storage, digest, max_bytes=MAX_MANIFEST_BYTES)
        except NotFound:
            raise NotFound(
                f"artifact {digest} is not in {self.url}; check the digest, or add the artifact again"
            ) from None
        try:
            return Manifest.parse(data)
        except InputError as error:
            raise InputError(f"{digest}: {error}") from None

    def config(self, digest: str) -> dict[str, Any]:
        """The config value of an artifact: as it was given, `{}` when none was, ModelPack's own for a model without one.

        Raises:
            NotFound, TamperFound: as `read`.
        """
        descriptor = self.manifest(digest).config
        data = blobs.read(
            self._storage, descriptor.digest, max_bytes=MAX_CONFIG_BYTES, size_bytes=descriptor.size_bytes
        )
        value = json.loads(data)
        if not isinstance(value, dict):
            raise InputError(f"{digest}: its config is not a JSON object")
        return value

    def read(self, digest: str, name: str, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """The verified bytes of one file.

        Raises:
            NotFound: the artifact or its blob is missing, or it has no such file.
            InputError: the file has more than `max_bytes`.
            TamperFound: the stored bytes are not those that were added.
        """
        file = self.manifest(digest).files.get(name)
        if file is None:
            raise NotFound(f"artifact {digest} has no file {name!r}; `files` of its manifest lists them")
        return blobs.read(self._storage, file.digest, max_bytes=max_bytes, size_bytes=file.size_bytes)

    def materialise(self, digest: str, dest: Path, *, progress: Progress | None = None) -> Path:
        """The artifact as a directory at `dest`, verified while it is copied; returns the absolute path.

        The directory appears whole or not at all. One that is there and complete is verified and used again; an interrupted
        call is continued by the next. Safe to call from several processes at once. The files are read-only copies.

        Raises:
            NotFound: the artifact or one of its blobs is missing.
            TamperFound: stored bytes, or files at `dest` that were staged earlier, were changed.
            InputError: `dest` is a file or a link, or holds something else.
        """
        return staging.materialise(self._storage, digest, self.manifest(digest), Path(dest), progress)

    def problems(self, digest: str, *, progress: Progress | None = None) -> list[Problem]:
        """What is wrong with the stored bytes of an artifact, all of which are read; [] when nothing is."""
        place = self._storage.place(blob_key(digest))
        try:
            manifest = self.manifest(digest)
        except NotFound:
            return [Problem(digest, "manifest", "missing", place)]
        except TamperFound:
            return [Problem(digest, "manifest", "its bytes have another digest", place)]
        except InputError as error:
            return [Problem(digest, "manifest", str(error), place)]
        wanted = [("config", manifest.config), *manifest.files.items()]

        def check(item: tuple[str, Descriptor], tick: Tick) -> Problem | None:
            name, blob = item
            return blobs.check(self._storage, blob.digest, blob.size_bytes, name, tick)

        return [problem for problem in for_each(check, wanted, progress) if problem]

    def has(self, digest: str) -> bool:
        """Whether the artifact is complete: manifest verified, every blob there with its size. `problems` reads the bytes.

        Raises:
            TamperFound: the manifest's bytes have another digest.
        """
        try:
            wanted = self.manifest(digest).blobs()
        except NotFound:
            return False
        return all(self._storage.size_bytes(blob_key(blob)) == size for blob, size in wanted.items())

    def digests(self) -> Iterator[str]:
        """The digests of all artifacts in the store, sorted; also of those that lost a blob."""
        return layout.listed(self._storage)

    def erase(self, digest: str) -> int:
        """Delete the bytes of an artifact; how many bytes that freed. Blobs of other artifacts stay.

        An interrupted call is completed by the next one.

        Raises:
            NotFound: the artifact is not in this store.
            TamperFound: its manifest or another's is damaged, so that nobody can say which blobs are shared.
        """
        if self._storage.size_bytes(blob_key(digest)) is None:
            raise NotFound(f"artifact {digest} is not in {self.url}; there is nothing to erase")
        layout.prepare(self._storage)
        with self._storage.locked("store", shared=False):
            manifest = self.manifest(digest)
            kept = {other for other in self.digests() if other != digest}
            for other in sorted(kept):
                kept |= self.manifest(other).blobs().keys()
            # The manifest goes last: as long as it is there, an interrupted erasure is known and can be completed.
            freed = 0
            for blob in [*sorted(manifest.blobs()), digest]:
                size = self._storage.size_bytes(blob_key(blob))
                if blob in kept or size is None:
                    continue
                if blob != digest:
                    self._storage.remove(blob_key(blob))
                freed += size
            self._storage.settle()
            layout.withdraw(self._storage, digest)
        return freed

    def _describe(
        self, files: Mapping[str, Source], artifact_type: str, work: Work, progress: Progress | None
    ) -> dict[str, Descriptor]:
        results = for_each(work, list(files.values()), progress)
        return {
            name: Descriptor(
                media_type=media_types.layer_media_type(name, artifact_type), digest=digest, size_bytes=size
            )
            for name, (digest, size) in zip(files, results, strict=True)
        }

    def _put(self, source: Source, tick: Tick) -> tuple[str, int]:
        if isinstance(source, Path):
            return self._storage.put_file(source, tick)
        digest = sha256_digest(source)
        self._storage.put_bytes(digest, source)
        tick(len(source))
        return digest, len(source)


def _hash(source: Source, tick: Tick) -> tuple[str, int]:
    return hash_file(source, tick) if isinstance(source, Path) else (sha256_digest(source), len(source))


def _assemble(
    files: Mapping[str, Descriptor],
    artifact_type: str,
    config: Mapping[str, Any] | None,
    annotations: Mapping[str, str] | None,
) -> tuple[Manifest, bytes]:
    """The manifest and the bytes of its config blob."""
    descriptor, data = config_blob(artifact_type, config or {}, files)
    return Manifest.build(artifact_type, files, descriptor, annotations or {}), data

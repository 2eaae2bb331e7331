"""The manifest: which files an artifact holds, under which digests. Its own digest is the artifact's identity.

An OCI image manifest (image-spec v1.1) with `artifactType`; one layer a file, sorted by name, with no times, owners or modes,
so the same files have the same digest on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ledger.artifacts import media_types
from ledger.artifacts.names import check_names
from ledger.canonical import MAX_SAFE_INTEGER, canonical_bytes
from ledger.digest import Digest, sha256_digest
from ledger.errors import CanonicalError, InputError

MAX_MANIFEST_BYTES = 4 << 20  # the distribution-spec asks registries to take at least this much
_EMPTY_JSON = b"{}"


def _media_type(text: str) -> str:
    if not media_types.is_media_type(text):
        raise ValueError(f"{text!r} is not a media type")
    return text


MediaType = Annotated[str, AfterValidator(_media_type)]


class _Wire(BaseModel):
    """What the specification writes in camel case has its Python name here; both are accepted, nothing else is."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_by_name=True, validate_by_alias=True)


class Descriptor(_Wire):
    """Names a blob by digest and declares how many bytes it has. The declared size is a bound for every read."""

    media_type: MediaType = Field(validation_alias="mediaType")
    digest: Digest
    size_bytes: int = Field(validation_alias="size", ge=0, le=MAX_SAFE_INTEGER)
    annotations: dict[str, str] = {}

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size_bytes}
        return {**value, "annotations": self.annotations} if self.annotations else value

    @property
    def name(self) -> str:
        """The file name of a layer.

        Raises:
            InputError: it has none, or two that differ.
        """
        names = {self.annotations[key] for key in (media_types.TITLE, media_types.FILEPATH) if key in self.annotations}
        if len(names) != 1:
            raise InputError(
                f"layer {self.digest} has {'no file name' if not names else f'two file names, {sorted(names)}'}"
            )
        return names.pop()


class Manifest(_Wire):
    """The content of an artifact. Built by `build`, read back by `parse`."""

    schema_version: Literal[2] = Field(default=2, validation_alias="schemaVersion")
    media_type: Literal["application/vnd.oci.image.manifest.v1+json"] = Field(
        default="application/vnd.oci.image.manifest.v1+json", validation_alias="mediaType"
    )
    artifact_type: MediaType = Field(validation_alias="artifactType")
    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: dict[str, str] = {}

    @classmethod
    def build(
        cls, artifact_type: str, files: Mapping[str, Descriptor], config: Descriptor, annotations: Mapping[str, str]
    ) -> Manifest:
        """The manifest of `files`, whose descriptors need no annotations yet.

        Raises:
            InputError: no files, a name that `check_names` refuses, or an artifact type that is not a media type.
        """
        media_types.check_artifact_type(artifact_type)
        if not files:
            raise InputError("an artifact holds at least one file; there is none")
        check_names(files)
        layers = tuple(_layer(name, files[name], artifact_type) for name in sorted(files))
        return cls(artifact_type=artifact_type, config=config, layers=layers, annotations=dict(annotations))

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """The manifest in `data`, whose digest the caller has checked.

        Raises:
            InputError: not an artifact manifest, a hostile name, or an object key that is there twice.
        """
        if len(data) > MAX_MANIFEST_BYTES:
            raise InputError(f"{len(data)} bytes is more than a manifest may have ({MAX_MANIFEST_BYTES})")
        try:
            json.loads(data, object_pairs_hook=_without_duplicates)
            manifest = cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            raise InputError(f"not an artifact manifest: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"not an artifact manifest: {error}") from None
        if not manifest.layers:
            raise InputError("not an artifact manifest: it lists no files")
        check_names([layer.name for layer in manifest.layers])
        return manifest

    @cached_property
    def files(self) -> dict[str, Descriptor]:
        """File name → descriptor, sorted by name."""
        return {layer.name: layer for layer in self.layers}

    @property
    def config_digest(self) -> str:
        return self.config.digest

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together, without manifest and config."""
        return sum(layer.size_bytes for layer in self.layers)

    def blobs(self) -> dict[str, int]:
        """Digest → size of every blob that the manifest needs."""
        return {blob.digest: blob.size_bytes for blob in (self.config, *self.layers)}

    def to_bytes(self) -> bytes:
        """The canonical bytes, which are stored and hashed.

        Raises:
            InputError: more files than 4 MiB can list (about 12,000), or annotations with no canonical form.
        """
        value = {
            "schemaVersion": self.schema_version,
            "mediaType": self.media_type,
            "artifactType": self.artifact_type,
            "config": self.config.to_json(),
            "layers": [layer.to_json() for layer in self.layers],
        }
        if self.annotations:
            value["annotations"] = self.annotations
        try:
            return canonical_bytes(value, MAX_MANIFEST_BYTES)
        except CanonicalError as error:
            raise InputError(
                f"the manifest of {len(self.layers)} files cannot be written: {error}; use fewer files"
            ) from None


def config_blob(
    artifact_type: str, config: Mapping[str, Any], files: Mapping[str, Descriptor]
) -> tuple[Descriptor, bytes]:
    """The config blob that stands beside the files, with its descriptor.

    A model without a configuration of its own gets the one that ModelPack asks for; it lists the layers and nothing else,
    so it adds nothing to the identity of the files.
    """
    if config:
        media_type, data = media_types.CONFIG, canonical_bytes(dict(config))
    elif artifact_type == media_types.MODEL:
        layers = {"type": "layers", "diffIds": [files[name].digest for name in sorted(files)]}
        data = canonical_bytes({"config": {}, "descriptor": {}, "modelfs": layers}, MAX_MANIFEST_BYTES)
        media_type = media_types.MODEL_CONFIG
    else:
        media_type, data = media_types.EMPTY, _EMPTY_JSON
    return Descriptor(media_type=media_type, digest=sha256_digest(data), size_bytes=len(data)), data


def _layer(name: str, file: Descriptor, artifact_type: str) -> Descriptor:
    annotations = {media_types.TITLE: name}
    if artifact_type == media_types.MODEL:
        annotations[media_types.FILEPATH] = name
    return file.model_copy(update={"annotations": annotations})


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        # Two readers may disagree about which of the two counts.
        raise ValueError("an object key is there twice")
    return value

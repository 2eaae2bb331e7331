"""The manifest's bytes are hashed and kept for ever, and a manifest from outside is hostile."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ledger.artifacts import media_types
from ledger.artifacts.manifest import MAX_MANIFEST_BYTES, Descriptor, Manifest, config_blob
from ledger.digest import sha256_digest
from ledger.errors import InputError

GOLDEN = (
    '{"annotations":{"org.example.note":"größer"},"artifactType":"application/vnd.cncf.model.manifest.v1+json",'
    '"config":{"digest":"sha256:ae2749bad5d929588b8ec181d4fea1df817eba5030dfdf043ef8657aedd69fe3",'
    '"mediaType":"application/vnd.cncf.model.config.v1+json","size":291},"layers":['
    '{"annotations":{"org.cncf.model.filepath":"README.md","org.opencontainers.image.title":"README.md"},'
    '"digest":"sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",'
    '"mediaType":"application/vnd.cncf.model.doc.v1.raw","size":5},'
    '{"annotations":{"org.cncf.model.filepath":"config.json","org.opencontainers.image.title":"config.json"},'
    '"digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",'
    '"mediaType":"application/vnd.cncf.model.weight.config.v1.raw","size":2},'
    '{"annotations":{"org.cncf.model.filepath":"model.safetensors","org.opencontainers.image.title":"model.safetensors"},'
    '"digest":"sha256:9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c",'
    '"mediaType":"application/vnd.cncf.model.weight.v1.raw","size":7}],'
    '"mediaType":"application/vnd.oci.image.manifest.v1+json","schemaVersion":2}'
)


def _files() -> dict[str, Descriptor]:
    contents = {"model.safetensors": b"weights", "config.json": b"{}", "README.md": b"hello"}
    return {
        name: Descriptor(
            media_type=media_types.layer_media_type(name, media_types.MODEL),
            digest=sha256_digest(data),
            size_bytes=len(data),
        )
        for name, data in contents.items()
    }


def _manifest(annotations: dict[str, str] | None = None) -> Manifest:
    config, _ = config_blob(media_types.MODEL, {}, _files())
    return Manifest.build(media_types.MODEL, _files(), config, annotations or {})


def _json(**changes: Any) -> bytes:
    value = {**json.loads(_manifest().to_bytes()), **changes}
    return json.dumps(value).encode()


def test_the_bytes_of_a_manifest_never_change() -> None:
    assert _manifest({"org.example.note": "größer"}).to_bytes().decode() == GOLDEN


def test_a_manifest_reads_back_as_it_was_built() -> None:
    manifest = _manifest({"a": "b"})
    again = Manifest.parse(manifest.to_bytes())
    assert again == manifest
    assert list(again.files) == ["README.md", "config.json", "model.safetensors"]
    assert again.files["config.json"].size_bytes == 2
    assert again.size_bytes == 14
    assert (again.artifact_type, again.annotations) == (media_types.MODEL, {"a": "b"})


def test_a_model_without_a_config_gets_the_one_that_modelpack_requires() -> None:
    descriptor, data = config_blob(media_types.MODEL, {}, _files())
    value = json.loads(data)
    assert descriptor.media_type == "application/vnd.cncf.model.config.v1+json"
    assert value.keys() == {"config", "descriptor", "modelfs"}
    assert value["modelfs"] == {"type": "layers", "diffIds": [_files()[name].digest for name in sorted(_files())]}


def test_no_config_is_the_empty_descriptor_of_the_image_specification() -> None:
    descriptor, data = config_blob(media_types.DATASET, {}, _files())
    assert data == b"{}"
    assert descriptor.media_type == "application/vnd.oci.empty.v1+json"
    assert descriptor.digest == "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


LAYER = {
    "mediaType": "application/json",
    "digest": "sha256:" + "0" * 64,
    "size": 1,
    "annotations": {"org.opencontainers.image.title": "a"},
}


def _layer(name: str, **changes: Any) -> dict[str, Any]:
    return {**LAYER, "annotations": {"org.opencontainers.image.title": name}, **changes}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an artifact manifest"),
        (b"\xff\xfe", "not an artifact manifest"),
        (b"[]", "not an artifact manifest"),
        (b"[" * 100_000, "not an artifact manifest"),
        (b"{" + b" " * MAX_MANIFEST_BYTES, "more than a manifest may have"),
        (_json(schemaVersion=1), "schemaVersion"),
        (_json(schemaVersion="2"), "schemaVersion"),
        (_json(mediaType="application/vnd.oci.image.index.v1+json"), "mediaType"),
        (_json(artifactType="model"), "not a media type"),
        (_json(subject=LAYER), "subject"),
        (_json(layers=[]), "no files"),
        (_json(layers=[_layer("../x")]), "`.` or `..`"),
        (_json(layers=[_layer("/x")]), "is absolute"),
        (_json(layers=[_layer("a"), _layer("a")]), "is there twice"),
        (_json(layers=[_layer("a"), _layer("A")]), "only in case"),
        (_json(layers=[_layer("a"), _layer("a/b")]), "is the directory of"),
        (_json(layers=[_layer("a", annotations={})]), "no file name"),
        (
            _json(layers=[_layer("a", annotations={media_types.TITLE: "a", media_types.FILEPATH: "b"})]),
            "two file names",
        ),
        (_json(layers=[_layer("a", size=-1)]), "size"),
        (_json(layers=[_layer("a", size=2**53)]), "size"),
        (_json(layers=[_layer("a", size=1.0)]), "size"),
        (_json(layers=[_layer("a", size=True)]), "size"),
        (_json(layers=[_layer("a", digest="sha256:" + "A" * 64)]), "digest"),
        (_json(layers=[_layer("a", digest="sha256:../../../etc/passwd")]), "digest"),
        (_json(layers=[_layer("a", urls=["https://example.org"])]), "urls"),
        (_manifest().to_bytes().replace(b'"schemaVersion":2', b'"schemaVersion":2,"layers":[]'), "is there twice"),
    ],
)
def test_a_hostile_manifest_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Manifest.parse(data)


def test_more_files_than_a_manifest_can_list_are_refused() -> None:
    file = Descriptor(media_type="application/json", digest="sha256:" + "0" * 64, size_bytes=1)
    files = {f"{number:05}" + "x" * 100: file for number in range(20_000)}
    config, _ = config_blob(media_types.DATASET, {}, files)
    with pytest.raises(InputError, match="the manifest of 20000 files cannot be written"):
        Manifest.build(media_types.DATASET, files, config, {}).to_bytes()

"""Media types: OCI image-spec v1.1, CNCF ModelPack v1 where a type exists, this project's own where none does.

An artifact's type says what the whole is; a layer's media type says what one file is. ModelPack's `.raw` types are files as
they are, neither archived nor compressed, so nothing is ever unpacked.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from ledger.errors import InputError

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"  # image-spec manifest.md, "Guidance for an Empty Descriptor"
OCTETS = "application/octet-stream"

# Artifact types.
MODEL = "application/vnd.cncf.model.manifest.v1+json"
"""A Hugging Face directory: a base, or a fine-tuned model."""
CHECKPOINT = "application/vnd.posttrain.checkpoint.v1+json"
DATASET = "application/vnd.posttrain.dataset.v1+json"
SUITE = "application/vnd.posttrain.suite.v1+json"
REPORT = "application/vnd.posttrain.report.v1+json"
RECORD = "application/vnd.posttrain.record.v1+json"
"""One canonical JSON document, `data.json`: an environment lock, a recipe, a resolved configuration."""

# Config blobs.
MODEL_CONFIG = "application/vnd.cncf.model.config.v1+json"
CONFIG = "application/vnd.posttrain.config.v1+json"

# Layers.
WEIGHT = "application/vnd.cncf.model.weight.v1.raw"
WEIGHT_CONFIG = "application/vnd.cncf.model.weight.config.v1.raw"
DOC = "application/vnd.cncf.model.doc.v1.raw"
CODE = "application/vnd.cncf.model.code.v1.raw"
ROWS = "application/vnd.cncf.model.dataset.v1.raw"
JSON_DOCUMENT = "application/json"

# Annotations.
TITLE = "org.opencontainers.image.title"
"""The layer's file name; `oras pull` writes the file under it."""
FILEPATH = "org.cncf.model.filepath"
"""The same for ModelPack tools."""

_MEDIA_TYPE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}"
)  # RFC 6838 §4.2
_DOCUMENTS = ("readme", "license", "licence", "notice", "copying", "use_policy")
_BY_SUFFIX = {
    ".safetensors": WEIGHT,
    ".py": CODE,
    ".md": DOC,
    ".jsonl": ROWS,
    ".parquet": ROWS,
}


def is_media_type(text: str) -> bool:
    return _MEDIA_TYPE.fullmatch(text) is not None


def check_artifact_type(text: str) -> str:
    """`text` unchanged when it is a media type.

    Raises:
        InputError: it is not.
    """
    if not is_media_type(text):
        raise InputError(f"artifact type {text!r} is not a media type; use one of ledger.artifacts.media_types")
    return text


def layer_media_type(name: str, artifact_type: str) -> str:
    """The media type of the file `name` within an artifact; from the name alone, so that it is the same everywhere."""
    path = PurePosixPath(name.lower())
    if path.stem in _DOCUMENTS:
        return DOC
    if path.suffix in _BY_SUFFIX:
        return _BY_SUFFIX[path.suffix]
    if artifact_type in (MODEL, CHECKPOINT):
        return WEIGHT_CONFIG
    return JSON_DOCUMENT if path.suffix == ".json" else OCTETS

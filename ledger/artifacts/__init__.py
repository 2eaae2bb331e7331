"""Content-addressed files: bytes under digests, in a layout that ordinary OCI tools read.

Adding goes `store` → `transfer` (a few threads) → `storage` (hash while writing, sync, rename) → `layout` (manifest last).
Reading goes `store` → `manifest` (strict, hostile names refused) → `blobs` (verified) or `staging` (a directory that appears
whole or not at all).

    store        ArtifactStore, the only entrance
    manifest     what an artifact holds; its digest is the artifact's identity
    names        which file names are allowed
    media_types  OCI and ModelPack types
    storage      the seam to a file system: `local` (a directory), `remote` (any fsspec URL)
    tree         the files of a directory
    weights      what a safetensors header says, checked before anything is loaded

Nothing here is ever unpacked or unpickled, declared sizes bound every read, and no text but a digest or a checked name becomes
part of a path. May import only `ledger.canonical`, `ledger.digest` and `ledger.errors`; fsspec only in `remote`.
"""

from ledger.artifacts.blobs import Problem
from ledger.artifacts.manifest import Descriptor, Manifest
from ledger.artifacts.store import Artifact, ArtifactStore

__all__ = ["Artifact", "ArtifactStore", "Descriptor", "Manifest", "Problem"]

"""Files in, a digest out; a digest in, verified files out: on a local and on a foreign file system."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.artifacts import ArtifactStore, media_types
from ledger.artifacts.storage import CHUNK_BYTES
from ledger.digest import sha256_digest
from ledger.errors import CanonicalError, InputError, NotFound
from tests.ledger.artifacts.conftest import FIXED

GOLDEN = "sha256:3f00d26f67af4eefea730f8b4818773858fb714110a73fe61b9fe08ce619c348"
REPOSITORY = Path(__file__).parents[3]


def _tree(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def test_a_directory_comes_back_as_it_was(store: ArtifactStore, directory: Path, tmp_path: Path) -> None:
    artifact = store.add_directory(directory, media_types.MODEL)
    place = store.materialise(artifact.digest, tmp_path / "out")
    assert place == tmp_path / "out"
    assert _tree(place) == FIXED
    assert artifact.size_bytes == sum(map(len, FIXED.values()))
    assert store.problems(artifact.digest) == []
    assert store.has(artifact.digest)
    assert list(store.digests()) == [artifact.digest]


def test_the_digest_of_a_directory_never_changes(store: ArtifactStore, directory: Path) -> None:
    assert store.add_directory(directory, media_types.MODEL).digest == GOLDEN


def test_order_times_and_modes_do_not_change_the_digest(store: ArtifactStore, directory: Path) -> None:
    first = store.add_directory(directory, media_types.MODEL)
    for number, path in enumerate(sorted(directory.rglob("*"), reverse=True)):
        os.utime(path, (number, number))
        path.chmod(0o700)
    assert store.add_directory(directory, media_types.MODEL).digest == first.digest
    backwards = dict(sorted(FIXED.items(), reverse=True))
    assert store.add_files(backwards, media_types.MODEL).digest == first.digest
    assert store.describe(backwards, media_types.MODEL).digest == first.digest


def test_what_belongs_to_the_identity_changes_the_digest(store: ArtifactStore) -> None:
    files = {"a.json": b"1"}
    digests = {
        store.add_files(files, media_types.REPORT).digest,
        store.add_files(files, media_types.SUITE).digest,
        store.add_files(files, media_types.REPORT, config={"a": 1}).digest,
        store.add_files(files, media_types.REPORT, annotations={"a": "1"}).digest,
        store.add_files({"b.json": b"1"}, media_types.REPORT).digest,
        store.add_files({"a.json": b"2"}, media_types.REPORT).digest,
    }
    assert len(digests) == 6
    assert set(store.digests()) == digests


def test_the_config_comes_back(store: ArtifactStore) -> None:
    config = {"step": 12, "loss": "0.5", "parts": ["model", "rng"]}
    assert store.config(store.add_files({"a": b"1"}, media_types.CHECKPOINT, config=config).digest) == config
    assert store.config(store.add_files({"a": b"1"}, media_types.CHECKPOINT).digest) == {}
    with pytest.raises(CanonicalError):
        store.add_files({"a": b"1"}, media_types.CHECKPOINT, config={"loss": 0.5})


def test_describing_stores_nothing(store: ArtifactStore, directory: Path) -> None:
    artifact = store.describe({"config.json": directory / "config.json", "b": b"1"}, media_types.MODEL)
    assert not store.has(artifact.digest)
    assert list(store.digests()) == []
    assert store.add_files({"b": b"1", "config.json": directory / "config.json"}, media_types.MODEL) == artifact


def test_one_json_document(store: ArtifactStore) -> None:
    artifact = store.put_json({"b": [1, "x"], "a": None}, media_types.RECORD)
    assert store.read(artifact.digest, "data.json") == b'{"a":null,"b":[1,"x"]}'


def test_reads_are_bounded(store: ArtifactStore) -> None:
    digest = store.add_files({"a": b"12345"}, media_types.RECORD).digest
    assert store.read(digest, "a", max_bytes=5) == b"12345"
    with pytest.raises(InputError, match="has 5 bytes, more than the 4"):
        store.read(digest, "a", max_bytes=4)


def test_what_is_not_there_is_not_found(store: ArtifactStore, tmp_path: Path) -> None:
    unknown = sha256_digest(b"unknown")
    known = store.add_files({"a": b"1"}, media_types.RECORD).digest
    assert not store.has(unknown)
    for ask in (store.manifest, store.config, store.erase, lambda d: store.materialise(d, tmp_path / "out")):
        with pytest.raises(NotFound, match=unknown):
            ask(unknown)
    with pytest.raises(NotFound, match="no file 'b'"):
        store.read(known, "b")
    assert [problem.what for problem in store.problems(unknown)] == ["missing"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "latest", "sha256:../../../../etc/passwd", "sha256:" + "A" * 64, "../" * 8])
def test_only_a_digest_becomes_a_path(store: ArtifactStore, text: str, tmp_path: Path) -> None:
    for ask in (store.manifest, store.has, store.problems, store.erase):
        with pytest.raises(InputError, match="not a digest"):
            ask(text)
    with pytest.raises(InputError, match="not a digest"):
        store.materialise(text, tmp_path / "out")


def test_a_file_is_not_an_artifact(store: ArtifactStore) -> None:
    digest = store.add_files({"a.json": b'{"layers": []}'}, media_types.RECORD).manifest.files["a.json"].digest
    with pytest.raises(InputError, match=f"{digest}: not an artifact manifest"):
        store.manifest(digest)
    assert digest not in list(store.digests())


def test_bad_input_is_refused_and_stores_nothing(store: ArtifactStore, directory: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(InputError, match=f"{missing} does not exist"):
        store.add_directory(missing, media_types.MODEL)
    with pytest.raises(InputError, match=f"{missing} does not exist"):
        store.add_files({"a": missing}, media_types.MODEL)
    with pytest.raises(InputError, match="is not a regular file"):
        store.add_files({"a": directory}, media_types.MODEL)
    with pytest.raises(InputError, match="is absolute"):
        store.add_files({"/etc/passwd": b""}, media_types.MODEL)
    with pytest.raises(InputError, match="'model' is not a media type"):
        store.add_files({"a": b""}, "model")
    with pytest.raises(InputError, match="at least one file"):
        store.add_files({}, media_types.MODEL)
    assert list(store.digests()) == []


def test_progress_adds_up_to_the_size(store: ArtifactStore, tmp_path: Path) -> None:
    files = {}
    for number in range(3):
        files[f"{number}"] = tmp_path / f"{number}"
        files[f"{number}"].write_bytes(os.urandom(CHUNK_BYTES + number))
    counts: list[int] = []
    first = store.add_files(files, media_types.MODEL, progress=counts.append)
    assert sum(counts) == first.size_bytes
    for again in (
        lambda p: store.add_files(files, media_types.MODEL, progress=p),
        lambda p: store.materialise(first.digest, tmp_path / "out", progress=p),
        lambda p: store.materialise(first.digest, tmp_path / "out", progress=p),
    ):
        counts.clear()
        again(counts.append)
        assert sum(counts) == first.size_bytes
        assert min(counts) > 0


def test_erasing_keeps_what_others_share(store: ArtifactStore, tmp_path: Path) -> None:
    first = store.add_files({"shared": b"shared", "own": b"mine"}, media_types.DATASET)
    second = store.add_files({"shared": b"shared", "other": b"yours"}, media_types.DATASET)
    freed = store.erase(first.digest)
    assert freed == len(b"mine") + len(first.manifest.to_bytes())
    assert list(store.digests()) == [second.digest]
    assert not store.has(first.digest)
    assert store.problems(second.digest) == []
    assert store.read(second.digest, "shared") == b"shared"
    with pytest.raises(NotFound):
        store.read(first.digest, "own")
    with pytest.raises(NotFound, match="nothing to erase"):
        store.erase(first.digest)
    assert store.add_files({"own": b"mine", "shared": b"shared"}, media_types.DATASET).digest == first.digest
    assert store.problems(first.digest) == []


def test_the_layout_is_one_that_oci_tools_read(local: ArtifactStore, directory: Path) -> None:
    first = local.add_directory(directory, media_types.MODEL)
    second = local.put_json({"a": 1})
    root = Path(local.url)
    assert json.loads((root / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((root / "index.json").read_bytes())
    assert (index["schemaVersion"], index["mediaType"]) == (2, "application/vnd.oci.image.index.v1+json")
    assert [entry["digest"] for entry in index["manifests"]] == [first.digest, second.digest]
    blobs = list((root / "blobs/sha256").iterdir())
    for blob in blobs:
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
        assert blob.stat().st_mode & 0o777 == 0o444
    for entry in index["manifests"]:
        data = (root / "blobs/sha256" / entry["digest"].removeprefix("sha256:")).read_bytes()
        manifest = json.loads(data)
        assert entry["size"] == len(data)
        assert entry["mediaType"] == manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
        assert entry["artifactType"] == manifest["artifactType"]
        for descriptor in [manifest["config"], *manifest["layers"]]:
            path = root / "blobs/sha256" / descriptor["digest"].removeprefix("sha256:")
            assert path.stat().st_size == descriptor["size"]
    local.erase(first.digest)
    index = json.loads((root / "index.json").read_bytes())
    assert [entry["digest"] for entry in index["manifests"]] == [second.digest]


def test_a_lost_index_is_made_again(local: ArtifactStore) -> None:
    digests = {local.put_json(1).digest, local.put_json(2).digest}
    for content in (None, b"", b"[", b'{"manifests": [{}]}'):
        index = Path(local.url) / "index.json"
        index.unlink()
        if content is not None:
            index.write_bytes(content)
        local.put_json(1)
        assert {entry["digest"] for entry in json.loads(index.read_bytes())["manifests"]} == digests


def test_the_same_bytes_are_stored_once_and_not_written_again(local: ArtifactStore, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(2 * CHUNK_BYTES + 5))
    first = local.add_files({"a": big, "b": b"small"}, media_types.MODEL)
    blobs = {path: path.stat().st_ino for path in (Path(local.url) / "blobs/sha256").iterdir()}
    os.utime(big, (1, 1))
    shutil.copy(big, tmp_path / "copy")
    assert local.add_files({"a": big, "b": b"small"}, media_types.MODEL) == first
    local.add_files({"c": tmp_path / "copy"}, media_types.DATASET)
    for path, inode in blobs.items():
        assert path.stat().st_ino == inode


def test_files_of_one_size_are_told_apart(local: ArtifactStore, tmp_path: Path) -> None:
    data = bytearray(os.urandom(CHUNK_BYTES + 100))
    files = {}
    for number, position in enumerate((0, 1000, len(data) // 2, len(data) - 1)):
        data[position] ^= 1
        path = tmp_path / str(number)
        path.write_bytes(data)
        files[str(number)] = path
        artifact = local.add_files(dict(files), media_types.MODEL)
        for name, source in files.items():
            assert local.read(artifact.digest, name) == source.read_bytes()


def test_adding_again_mends_a_damaged_blob(local: ArtifactStore, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(CHUNK_BYTES))
    artifact = local.add_files({"big": big, "small": b"small"}, media_types.MODEL)
    for file in artifact.manifest.files.values():
        blob = Path(local.url) / "blobs/sha256" / file.digest.removeprefix("sha256:")
        data = bytearray(blob.read_bytes())
        data[3] ^= 1
        blob.chmod(0o644)
        blob.write_bytes(data)
    assert len(local.problems(artifact.digest)) == 2
    local.add_files({"big": big, "small": b"small"}, media_types.MODEL)
    assert local.problems(artifact.digest) == []


def test_opening_makes_nothing(tmp_path: Path) -> None:
    store = ArtifactStore.open(tmp_path / "store")
    assert list(store.digests()) == []
    assert not store.has(sha256_digest(b""))
    assert not (tmp_path / "store").exists()


def test_a_local_store_has_several_spellings(tmp_path: Path) -> None:
    digest = ArtifactStore.open(tmp_path / "store").put_json(1).digest
    for where in (str(tmp_path / "store"), f"file://{tmp_path}/store", tmp_path / "store" / ".." / "store"):
        assert ArtifactStore.open(where).has(digest)


def test_a_directory_with_something_else_in_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("…")
    with pytest.raises(InputError, match=r"is not an artifact store: it holds 'thesis.tex'"):
        ArtifactStore.open(tmp_path).put_json(1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"imageLayoutVersion": "2.0.0"}'])
def test_a_foreign_layout_is_refused(tmp_path: Path, content: str) -> None:
    store = ArtifactStore.open(tmp_path / "store")
    store.put_json(1)
    (tmp_path / "store/oci-layout").write_text(content)
    with pytest.raises(InputError, match=r"oci-layout is not of an OCI image layout 1\.0\.0"):
        store.put_json(2)


def test_an_unknown_url_is_refused() -> None:
    with pytest.raises(InputError, match="cannot open the artifact store 'nosuch://bucket/x'"):
        ArtifactStore.open("nosuch://bucket/x")


def test_a_local_store_does_without_fsspec() -> None:
    code = (
        "import sys, pathlib, tempfile; from ledger.artifacts import ArtifactStore;"
        "ArtifactStore.open(pathlib.Path(tempfile.mkdtemp()) / 's').put_json(1);"
        "print(sorted({'fsspec', 'torch', 'sqlalchemy', 'duckdb'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)


@settings(max_examples=40)  # each writes a store of its own
@given(st.dictionaries(NAMES, st.binary(max_size=200), min_size=1, max_size=6))
def test_any_files_come_back_from_both_kinds_of_store(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    if len({name.casefold() for name in files}) < len(files):
        return
    place = tmp_path_factory.mktemp("any")
    digests = set()
    for store in (ArtifactStore.open(place / "store"), ArtifactStore.open(f"memory://{place}")):
        digest = store.add_files(files, media_types.RECORD).digest
        assert _tree(store.materialise(digest, place / f"out-{len(store.url)}")) == files
        digests.add(digest)
    assert len(digests) == 1

"""Killed writers, full disks, two at once: nothing looks complete that is not, and the next call works."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ledger.artifacts import ArtifactStore, media_types
from ledger.artifacts.storage import CHUNK_BYTES
from ledger.errors import InfrastructureError
from tests.ledger.artifacts.disk import blob_file, same_files
from tests.ledger.artifacts.processes import CRASH_POINTS, KILLED, die_at_call, finish, killer, run, start


def _assert_every_blob_is_what_its_name_says(store: ArtifactStore) -> None:
    for path in (Path(store.url) / "blobs/sha256").glob("*"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


# Writing


@pytest.mark.parametrize("chunks", [1, 3, 5])
def test_a_writer_killed_in_the_middle_leaves_nothing_that_looks_complete(
    local: ArtifactStore, big: Path, chunks: int
) -> None:
    kept = local.put_json({"kept": True})
    expected = local.describe({p.name: p for p in big.iterdir()}, media_types.MODEL)
    kill = killer(chunks * (CHUNK_BYTES - 5))
    assert run(lambda: local.add_directory(big, media_types.MODEL, progress=kill)) == KILLED
    assert not local.has(expected.digest)
    assert list(local.digests()) == [kept.digest]
    _assert_every_blob_is_what_its_name_says(local)

    assert local.add_directory(big, media_types.MODEL).digest == expected.digest
    assert local.problems(expected.digest) == []
    leftovers = {path.name for path in (Path(local.url) / "ingest").iterdir()}
    assert leftovers == {"store.lock", "index.lock"}


@pytest.mark.parametrize(("call", "after"), CRASH_POINTS)
def test_a_writer_killed_at_any_system_call_loses_nothing(tmp_path: Path, call: str, after: bool) -> None:
    """Every rename, sync and write of adding an artifact to a new store, one after the other."""
    files = {"a.json": b"1", "b.json": b"2"}
    for number in range(1, 100):
        store = ArtifactStore.open(tmp_path / f"store-{number}")

        def work(store: ArtifactStore = store, number: int = number) -> None:
            die_at_call(call, number, after=after)
            store.add_files(files, media_types.REPORT)

        code = run(work)
        assert code in (0, KILLED)
        for digest in store.digests():
            assert store.problems(digest) == []
        _assert_every_blob_is_what_its_name_says(store)
        artifact = store.add_files(files, media_types.REPORT)
        assert store.problems(artifact.digest) == []
        assert list(store.digests()) == [artifact.digest]
        if code == 0:
            break
    assert code == 0
    assert number > 8  # two files, a config, a manifest, its marker, the layout and the index twice


def test_an_erasure_killed_at_any_removal_is_completed_by_the_next(tmp_path: Path) -> None:
    for number in range(1, 20):
        store = ArtifactStore.open(tmp_path / f"store-{number}")
        artifact = store.add_files({"a": b"own", "b": b"shared"}, media_types.REPORT)
        other = store.add_files({"b": b"shared"}, media_types.REPORT)

        def work(store: ArtifactStore = store, number: int = number, digest: str = artifact.digest) -> None:
            die_at_call("unlink", number, after=True)
            store.erase(digest)

        code = run(work)
        assert store.problems(other.digest) == []
        if blob_file(store, artifact.digest).exists():
            store.erase(artifact.digest)
        assert not store.has(artifact.digest)
        assert list(store.digests()) == [other.digest]
        assert not blob_file(store, artifact.manifest.files["a"].digest).exists()
        if code == 0:
            break
    assert code == 0
    assert number == 4  # the file, the manifest, its marker


def test_a_living_writer_is_not_swept_away(local: ArtifactStore, big: Path) -> None:
    expected = local.describe({p.name: p for p in big.iterdir()}, media_types.MODEL)
    reading, writing = os.pipe()

    def slowly(count: int) -> None:
        os.write(writing, b".")
        time.sleep(0.05)

    pid = start(lambda: local.add_directory(big, media_types.MODEL, progress=slowly))
    os.read(reading, 1)  # it is in the middle
    local.put_json({"meanwhile": True})
    assert finish(pid) == 0
    os.close(reading)
    os.close(writing)
    assert local.problems(expected.digest) == []


def test_erasing_waits_for_a_writer_that_shares_blobs(local: ArtifactStore, big: Path) -> None:
    shared = local.add_files({"config.json": big / "config.json"}, media_types.MODEL)
    expected = local.describe({p.name: p for p in big.iterdir()}, media_types.MODEL)
    reading, writing = os.pipe()

    def slowly(count: int) -> None:
        os.write(writing, b".")
        time.sleep(0.05)

    pid = start(lambda: local.add_directory(big, media_types.MODEL, progress=slowly))
    os.read(reading, 1)
    local.erase(shared.digest)
    assert finish(pid) == 0
    os.close(reading)
    os.close(writing)
    assert local.problems(expected.digest) == []


def test_two_writers_of_the_same_files_both_succeed(local: ArtifactStore, big: Path) -> None:
    pids = [start(lambda: local.add_directory(big, media_types.MODEL)) for _ in range(2)]
    assert [finish(pid) for pid in pids] == [0, 0]
    (digest,) = local.digests()
    assert local.problems(digest) == []


def test_a_failing_progress_bar_stops_every_thread(local: ArtifactStore, big: Path) -> None:
    def broken(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local.add_directory(big, media_types.MODEL, progress=broken)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("artifact")]
    assert list(local.digests()) == []
    assert local.problems(local.add_directory(big, media_types.MODEL).digest) == []


def test_ctrl_c_stops_every_thread_at_once(local: ArtifactStore, big: Path) -> None:
    reading, writing = os.pipe()

    def slowly(count: int) -> None:
        os.write(writing, b".")
        time.sleep(0.3)

    def work() -> None:
        with pytest.raises(KeyboardInterrupt):
            local.add_directory(big, media_types.MODEL, progress=slowly)

    pid = start(work)
    os.read(reading, 1)  # one of six pieces is done
    os.kill(pid, signal.SIGINT)
    assert finish(pid) == 0
    os.close(writing)
    assert len(os.read(reading, 100)) < 5
    os.close(reading)
    assert list(local.digests()) == []


def test_memory_does_not_grow_with_the_files(local: ArtifactStore, tmp_path: Path) -> None:
    files = {}
    for number in range(4):
        files[str(number)] = tmp_path / str(number)
        files[str(number)].write_bytes(os.urandom(8 * CHUNK_BYTES))
    tracemalloc.start()
    try:
        artifact = local.add_files(files, media_types.MODEL)
        local.materialise(artifact.digest, tmp_path / "out")
        assert local.problems(artifact.digest) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 3 * CHUNK_BYTES  # at most four workers with a few chunks each; the files have 32 chunks


# Full disks and permissions


def _with_file_limit(limit: int, work: Callable[[], object]) -> int:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        work()

    return run(limited)


def _expect_no_room(work: Callable[[], object], place: str) -> Callable[[], object]:
    def check() -> None:
        with pytest.raises(InfrastructureError) as failed:
            work()
        assert place in str(failed.value)
        assert "File too large" in str(failed.value) or "No space left" in str(failed.value)
        assert "free space" in str(failed.value)

    return check


def test_no_room_to_write_is_said_and_loses_nothing(local: ArtifactStore, big: Path) -> None:
    kept = local.put_json({"kept": True})
    work = _expect_no_room(lambda: local.add_directory(big, media_types.MODEL), local.url)
    assert _with_file_limit(CHUNK_BYTES + 1, work) == 0
    assert list(local.digests()) == [kept.digest]
    assert local.problems(kept.digest) == []
    assert {path.name for path in (Path(local.url) / "ingest").iterdir()} == {"store.lock", "index.lock"}
    _assert_every_blob_is_what_its_name_says(local)
    assert local.problems(local.add_directory(big, media_types.MODEL).digest) == []


def test_what_is_stored_already_needs_no_room(local: ArtifactStore, big: Path) -> None:
    local.add_directory(big, media_types.MODEL)
    assert _with_file_limit(CHUNK_BYTES, lambda: local.add_directory(big, media_types.MODEL)) == 0


def test_no_room_to_materialise_is_said_and_the_next_call_goes_on(
    local: ArtifactStore, big: Path, tmp_path: Path
) -> None:
    artifact = local.add_directory(big, media_types.MODEL)
    work = _expect_no_room(lambda: local.materialise(artifact.digest, tmp_path / "out"), ".out.")
    assert _with_file_limit(CHUNK_BYTES + 1, work) == 0
    assert not (tmp_path / "out").exists()
    assert same_files(local.materialise(artifact.digest, tmp_path / "out"), big)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_really_full_disk(small_disk: Path, big: Path, tmp_path: Path) -> None:
    store = ArtifactStore.open(small_disk / "store")
    kept = store.add_files({"a": big / "config.json"}, media_types.MODEL)
    with pytest.raises(InfrastructureError, match=r"No space left on device; nothing was lost: free space"):
        store.add_directory(big, media_types.MODEL)
    assert list(store.digests()) == [kept.digest]
    assert store.problems(kept.digest) == []
    store.add_files({"b": big / "config.json"}, media_types.MODEL)

    elsewhere = ArtifactStore.open(tmp_path / "store")
    artifact = elsewhere.add_directory(big, media_types.MODEL)
    with pytest.raises(InfrastructureError, match=r"No space left"):
        elsewhere.materialise(artifact.digest, small_disk / "out")
    assert not (small_disk / "out").exists()


def _as_nobody(work: Callable[[], object]) -> int:
    if os.getuid():
        return run(work)  # an ordinary user is bound by permissions anyway

    def unprivileged() -> None:
        os.setgid(65534)
        os.setuid(65534)
        work()

    return run(unprivileged)


def test_missing_permission_is_said(local: ArtifactStore, big: Path) -> None:
    (big / "config.json").chmod(0o000)
    for parent in [big, *big.parents]:
        if parent.stat().st_uid == os.getuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    place = big.parent / "open"
    place.mkdir(mode=0o777)
    place.chmod(0o777)

    def work() -> None:
        with pytest.raises(
            InfrastructureError, match=r"cannot read .*config.json: Permission denied; give this user perm"
        ):
            ArtifactStore.open(place / "store").add_files({"a": big / "config.json"}, media_types.MODEL)
        with pytest.raises(InfrastructureError, match=r"cannot make .*: Permission denied"):
            ArtifactStore.open(big / "store").put_json(1)

    assert _as_nobody(work) == 0

"""Directories made from artifacts: killed while they are made, made twice at once, changed or occupied before."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ledger.artifacts import Artifact, ArtifactStore, media_types
from ledger.artifacts.storage import CHUNK_BYTES
from ledger.errors import InputError, TamperFound
from tests.ledger.artifacts.disk import change, flip, same_files
from tests.ledger.artifacts.processes import CRASH_POINTS, KILLED, die_at_call, finish, killer, run, start


@pytest.mark.parametrize("chunks", [1, 3, 5])
def test_a_killed_materialise_is_continued(local: ArtifactStore, big: Path, tmp_path: Path, chunks: int) -> None:
    stored = local.add_directory(big, media_types.MODEL)
    out = tmp_path / "out"
    assert run(lambda: local.materialise(stored.digest, out, progress=killer(chunks * (CHUNK_BYTES - 5)))) == KILLED
    assert not out.exists()
    begun = [path.stat().st_ino for path in tmp_path.glob(".out.*.partial/*/*") if path.stat().st_size]
    assert begun
    assert local.materialise(stored.digest, out) == out
    assert same_files(out, big)
    assert set(begun) <= {path.stat().st_ino for path in out.rglob("*")}
    assert [path.name for path in tmp_path.glob(".out*")] == []


@pytest.mark.parametrize(("call", "after"), CRASH_POINTS)
def test_a_materialise_killed_at_any_system_call_is_continued(tmp_path: Path, call: str, after: bool) -> None:
    store = ArtifactStore.open(tmp_path / "store")
    files = {"a": b"1", "sub/b": b"2"}
    digest = store.add_files(files, media_types.REPORT).digest
    for number in range(1, 100):
        out = tmp_path / f"out-{number}"

        def work(out: Path = out, number: int = number) -> None:
            die_at_call(call, number, after=after)
            store.materialise(digest, out)

        code = run(work)
        if out.exists():
            assert {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()} == files
        store.materialise(digest, out)
        assert {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()} == files
        assert list(tmp_path.glob(f".out-{number}.lock")) == []
        if code == 0:
            break
    assert code == 0
    assert number > 2


def test_what_a_crash_left_is_not_trusted(local: ArtifactStore, big: Path, tmp_path: Path) -> None:
    stored = local.add_directory(big, media_types.MODEL)
    partial = tmp_path / f".out.{stored.digest.removeprefix('sha256:')[:12]}.partial"
    (partial / "tree/sub").mkdir(parents=True)
    (partial / "parts").mkdir()
    (partial / "parts/0").write_bytes(b"\0" * (CHUNK_BYTES + 1))
    (partial / "parts/99").write_bytes(b"stranger")
    (partial / "tree/b.safetensors").write_bytes(b"\0" * (2 * CHUNK_BYTES + 5))
    (partial / "tree/sub/stranger").write_bytes(b"stranger")
    (partial / "tree/config.json").symlink_to(tmp_path / "victim")
    (tmp_path / "victim").write_bytes(b"keep me")
    assert same_files(local.materialise(stored.digest, tmp_path / "out"), big)
    assert (tmp_path / "victim").read_bytes() == b"keep me"
    assert not (tmp_path / "out/config.json").is_symlink()
    assert not partial.exists()


def test_two_processes_may_materialise_at_once(local: ArtifactStore, big: Path, tmp_path: Path) -> None:
    stored = local.add_directory(big, media_types.MODEL)
    out = tmp_path / "deep/er/out"

    def work() -> None:
        local.materialise(stored.digest, out, progress=lambda count: time.sleep(0.01))

    pids = [start(work) for _ in range(3)]
    assert [finish(pid) for pid in pids] == [0, 0, 0]
    assert same_files(out, big)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_the_survivor_takes_over_from_a_killed_process(local: ArtifactStore, big: Path, tmp_path: Path) -> None:
    stored = local.add_directory(big, media_types.MODEL)
    out = tmp_path / "out"
    first = start(lambda: local.materialise(stored.digest, out, progress=killer(CHUNK_BYTES)))
    second = start(lambda: local.materialise(stored.digest, out))
    assert sorted([finish(first), finish(second)])[-1] == 0
    assert same_files(out, big)


def test_a_complete_directory_is_used_again(local: ArtifactStore, stored: Artifact, big: Path, tmp_path: Path) -> None:
    out = local.materialise(stored.digest, tmp_path / "out")
    before = {path: path.stat().st_ino for path in out.rglob("*")}
    assert local.materialise(stored.digest, out) == out
    assert {path: path.stat().st_ino for path in out.rglob("*")} == before
    assert all(path.stat().st_mode & 0o222 == 0 for path in before)


@pytest.mark.parametrize("how", ["changed", "missing", "not part of the artifact"])
def test_a_directory_that_was_changed_is_not_used(
    local: ArtifactStore, stored: Artifact, tmp_path: Path, how: str
) -> None:
    out = local.materialise(stored.digest, tmp_path / "out")
    name = "config.json"
    if how == "changed":
        change(out / name, flip)
    elif how == "missing":
        (out / name).unlink()
    else:
        name = "extra.json"
        (out / name).write_bytes(b"{}")
    with pytest.raises(
        TamperFound, match=f"{out} is not what {stored.digest} holds: {name} is {how}; remove the directory"
    ):
        local.materialise(stored.digest, out)


def test_a_directory_of_something_else_is_left_alone(local: ArtifactStore, stored: Artifact, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("…")
    with pytest.raises(InputError, match=r"holds other files, such as 'thesis.tex'"):
        local.materialise(stored.digest, out)
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("out")
    for place in ("file", "link"):
        with pytest.raises(InputError, match="is not a directory; choose another destination"):
            local.materialise(stored.digest, tmp_path / place)


def test_an_empty_directory_is_filled(local: ArtifactStore, stored: Artifact, big: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert same_files(local.materialise(stored.digest, tmp_path / "out"), big)


def test_a_copy_is_no_door_into_the_store(local: ArtifactStore, stored: Artifact, tmp_path: Path) -> None:
    out = local.materialise(stored.digest, tmp_path / "out")
    for path in out.iterdir():
        change(path, flip)
    assert local.problems(stored.digest) == []

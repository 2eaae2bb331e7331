"""Staging: the files of an artifact as a plain directory, verified, that appears whole or not at all.

    <parent>/.<name>.lock                    one process at a time for each destination
    <parent>/.<name>.<digest12>.partial/
        parts/<n>                            file n, so far
        tree/…                               finished files; renamed to <parent>/<name> when all are there

An interrupted staging is continued by the next one for the same destination and digest. Files are copied, never linked: a
program that writes to its copy cannot damage the store.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.artifacts import blobs
from ledger.artifacts.blobs import Problem
from ledger.artifacts.locks import locked
from ledger.artifacts.manifest import Descriptor, Manifest
from ledger.artifacts.storage import (
    CHUNK_BYTES,
    FileTick,
    Storage,
    Tick,
    hash_file,
    open_regular,
    read_into,
    storage_errors,
    sync_directory,
    write_all,
)
from ledger.artifacts.transfer import Progress, for_each
from ledger.artifacts.tree import regular_files
from ledger.digest import short
from ledger.errors import InputError, TamperFound

if TYPE_CHECKING:
    from hashlib import _Hash


def materialise(
    storage: Storage, digest: str, manifest: Manifest, destination: Path, progress: Progress | None = None
) -> Path:
    """See `ArtifactStore.materialise`."""
    destination = Path(os.path.abspath(destination))
    with storage_errors("make", destination.parent):
        destination.parent.mkdir(parents=True, exist_ok=True)
    with locked(destination.parent / f".{destination.name}.lock", remove=True):
        if _is_there(digest, manifest, destination, progress):
            return destination
        unfinished = destination.parent / f".{destination.name}.{short(digest)}.partial"
        tree = _prepare(unfinished, manifest)
        work = partial(_stage, storage, unfinished)
        for_each(work, list(enumerate(manifest.files.items())), progress)
        for path, _, _ in os.walk(tree):
            sync_directory(Path(path))
        with storage_errors("make", destination):
            os.rename(tree, destination)
        sync_directory(destination.parent)
        shutil.rmtree(unfinished, ignore_errors=True)  # the destination is complete; leftovers are only untidy
    return destination


def differences(files: Mapping[str, Path], manifest: Manifest, progress: Progress | None = None) -> list[Problem]:
    """How local files differ from an artifact: missing, added and changed ones, sorted by name; [] when they are the same."""
    found = [
        Problem(manifest.files[name].digest, name, "missing", name) for name in manifest.files if name not in files
    ]

    def check(name: str, tick: Tick) -> Problem | None:
        path, expected = files[name], manifest.files.get(name)
        digest, _ = hash_file(path, tick)
        if expected is None:
            return Problem(digest, name, "not part of the artifact", str(path))
        return None if digest == expected.digest else Problem(expected.digest, name, "changed", str(path))

    found += [problem for problem in for_each(check, list(files), progress) if problem]
    return sorted(found, key=lambda problem: problem.name)


def _is_there(digest: str, manifest: Manifest, destination: Path, progress: Progress | None) -> bool:
    """Whether the destination is the artifact already.

    Raises:
        TamperFound: it was, and a file was changed, added or removed.
        InputError: it is something else.
    """
    with storage_errors("look at", destination):
        exists = os.path.lexists(destination)
        if exists and (destination.is_symlink() or not destination.is_dir()):
            raise InputError(f"{destination} is not a directory; choose another destination")
    if not exists:
        return False
    files = regular_files(destination)
    if not files:
        return False
    if not files.keys() & manifest.files.keys():
        raise InputError(
            f"{destination} holds other files, such as {next(iter(files))!r}; choose an empty or new directory"
        )
    wrong = differences(files, manifest, progress)
    if wrong:
        raise TamperFound(
            f"{destination} is not what {digest} holds: {wrong[0].name} is {wrong[0].what}; "
            "remove the directory and run it again"
        )
    return True


def _prepare(unfinished: Path, manifest: Manifest) -> Path:
    """The directory for finished files, rid of everything that an earlier staging of this artifact would not have made."""
    if unfinished.is_symlink():
        raise InputError(f"{unfinished} is a link; remove it")
    tree, parts = unfinished / "tree", unfinished / "parts"
    with storage_errors("make", unfinished):
        for directory in (tree, parts):
            directory.mkdir(parents=True, exist_ok=True)
        for place, directories, names in os.walk(unfinished):
            for name in directories + names:
                path = Path(place, name)
                inside = path.relative_to(unfinished).as_posix()
                expected = path.parent == parts or inside.removeprefix("tree/") in manifest.files
                if path.is_symlink() or (not path.is_dir() and not (expected and path.is_file())):
                    path.unlink()
        for name in manifest.files:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
    return tree


def _stage(storage: Storage, unfinished: Path, item: tuple[int, tuple[str, Descriptor]], tick: Tick) -> None:
    number, (name, file) = item
    target, part = unfinished / "tree" / name, unfinished / "parts" / str(number)
    count = FileTick(tick)
    if target.exists():
        if hash_file(target, count) == (file.digest, file.size_bytes):
            _make_read_only(target)
            return
        with storage_errors("remove", target):
            target.unlink()
        count.restart()
    try:
        _copy(storage, file, part, count)
    except TamperFound:
        # The beginning may be what a crash of the machine left. If the blob itself is damaged, this raises again.
        with storage_errors("remove", part):
            part.unlink(missing_ok=True)
        count.restart()
        _copy(storage, file, part, count)
    with storage_errors("write", target):
        os.rename(part, target)
    _make_read_only(target)


def _make_read_only(target: Path) -> None:
    # After the rename: an unfinished part must stay writable for the process that continues it.
    with storage_errors("write", target):
        target.chmod(0o444)


def _copy(storage: Storage, file: Descriptor, part: Path, count: Tick) -> None:
    """Write what is missing of a blob to `part`; return when all of it was verified and is durable."""
    hasher = hashlib.sha256()
    with storage_errors("write", part):
        descriptor = os.open(part, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        done = 0
        if 0 < os.fstat(descriptor).st_size <= file.size_bytes:
            done = _hash_beginning(part, hasher, count)
        with storage_errors("write", part):
            os.ftruncate(descriptor, done)
            os.lseek(descriptor, done, os.SEEK_SET)
        for chunk in blobs.stream(storage, file.digest, file.size_bytes, offset=done, hasher=hasher):
            write_all(descriptor, chunk, part)
            count(len(chunk))
        with storage_errors("write", part):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hash_beginning(part: Path, hasher: _Hash, count: Tick) -> int:
    """Feed `hasher` what is there already; how many bytes that is."""
    done = 0
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with open_regular(part) as file:
        while length := read_into(file, buffer, part):
            hasher.update(buffer[:length])
            done += length
            count(length)
    return done

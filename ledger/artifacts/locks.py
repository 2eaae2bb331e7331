"""Advisory locks between processes on one machine (or one file system that carries `flock`).

The kernel releases them when the holder dies, so nobody ever waits for a dead process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ledger.artifacts.storage import storage_errors


@contextmanager
def locked(path: Path, *, shared: bool = False, remove: bool = False) -> Iterator[None]:
    """Hold the lock file `path`, waiting for it as long as it takes.

    `remove` deletes the file at the end, so that nothing is left beside a finished directory.

    Raises:
        InfrastructureError: the lock file cannot be made.
    """
    with storage_errors("lock", path):
        descriptor = _acquire(path, shared)
    try:
        yield
    finally:
        if remove:
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, shared: bool) -> int:
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            if is_linked(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the holder before us removed it: lock the one that is there now


def try_lock(descriptor: int) -> bool:
    """Whether the exclusive lock on an open file could be had without waiting."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_linked(descriptor: int, path: Path) -> bool:
    """Whether `path` still names the open file."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

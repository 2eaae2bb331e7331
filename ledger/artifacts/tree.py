"""The files of a directory, by the names that they get in an artifact."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ledger.artifacts.storage import storage_errors
from ledger.errors import InputError


def regular_files(directory: Path) -> dict[str, Path]:
    """Relative POSIX name → path of every file under `directory`, sorted by name; empty directories are left out.

    A symbolic link that stays inside the directory counts as what it points to.

    Raises:
        InputError: not a directory, a link that leads outside, in a circle or nowhere, or a pipe, socket or device.
        InfrastructureError: a part of it cannot be listed.
    """
    with storage_errors("read", directory):
        if not directory.is_dir():
            what = "is not a directory" if directory.exists() else "does not exist"
            raise InputError(f"{directory} {what}; give the path of a directory")
        root = directory.resolve()
    return dict(sorted(_walk(root, root, "", (root,))))


def _walk(root: Path, here: Path, prefix: str, above: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    """`above` holds the real directories on the way, so that a link back to one of them is seen."""
    with storage_errors("list", here):
        entries = sorted(os.listdir(here))
    for entry in entries:
        path, name = here / entry, prefix + entry
        with storage_errors("look at", path):
            mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            path = _target(root, path)
            with storage_errors("look at", path):
                mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            if path in above:
                raise InputError(f"{here / entry} is a link to a directory that it is in; remove the link")
            yield from _walk(root, path, name + "/", (*above, path))
        elif stat.S_ISREG(mode):
            yield name, path
        else:
            raise InputError(f"{path} is a pipe, socket or device; only regular files can be stored, so remove it")


def _target(root: Path, link: Path) -> Path:
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: a circle of links
        raise InputError(f"{link} is a link that leads nowhere; remove it") from None
    if not target.is_relative_to(root):
        raise InputError(
            f"{link} is a link to {target}, outside of {root}; copy the directory with `cp -rL` and use the copy"
        )
    return target

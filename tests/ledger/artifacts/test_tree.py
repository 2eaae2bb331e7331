"""Which files of a directory are stored: links that stay inside are followed, everything that could surprise is refused."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ledger.artifacts import ArtifactStore, media_types
from ledger.artifacts.tree import regular_files
from ledger.errors import InputError


def test_names_are_relative_posix_paths_in_order(tmp_path: Path) -> None:
    for name in ("b/c.txt", "a.txt", "b/a/x", ".hidden"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "empty").mkdir()
    assert list(regular_files(tmp_path)) == [".hidden", "a.txt", "b/a/x", "b/c.txt"]


def test_a_link_that_stays_inside_counts_as_its_target(local: ArtifactStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "real").mkdir(parents=True)
    (source / "real/file").write_bytes(b"data")
    (source / "link").symlink_to("real/file")
    (source / "absolute").symlink_to(source / "real/file")
    (source / "directory").symlink_to("real")
    artifact = local.add_directory(source, media_types.DATASET)
    assert list(artifact.manifest.files) == ["absolute", "directory/file", "link", "real/file"]
    assert local.read(artifact.digest, "directory/file") == b"data"


def test_the_directory_itself_may_be_reached_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("real")
    assert list(regular_files(tmp_path / "link")) == ["file"]


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "real/../../outside", "/etc", ".."])
def test_a_link_that_leads_outside_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").write_text("secret")
    (tmp_path / "source/real").mkdir(parents=True)
    (tmp_path / "source/link").symlink_to(target)
    with pytest.raises(InputError, match=r"source/link is a link to .*, outside of"):
        regular_files(tmp_path / "source")


def test_a_link_to_a_sibling_with_the_same_prefix_is_outside(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source-secret").write_text("secret")
    (tmp_path / "source/link").symlink_to("../source-secret")
    with pytest.raises(InputError, match="outside of"):
        regular_files(tmp_path / "source")


@pytest.mark.parametrize(
    ("link", "target", "reason"),
    [
        ("a", "nowhere", "leads nowhere"),
        ("a", "a", "leads nowhere"),
        ("sub/up", "..", "directory that it is in"),
        ("sub/here", ".", "directory that it is in"),
    ],
)
def test_a_link_in_a_circle_or_to_nothing_is_refused(tmp_path: Path, link: str, target: str, reason: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / link).symlink_to(target)
    with pytest.raises(InputError, match=reason):
        regular_files(tmp_path)


def test_links_that_lead_round_through_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a/b").symlink_to("../b")
    (tmp_path / "b/a").symlink_to("../a")
    with pytest.raises(InputError, match="directory that it is in"):
        regular_files(tmp_path)


def test_pipes_and_sockets_are_refused_without_waiting(tmp_path: Path, local: ArtifactStore) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is a pipe, socket or device"):
        regular_files(tmp_path)
    with pytest.raises(InputError, match="pipe is not a regular file"):
        local.add_files({"pipe": tmp_path / "pipe"}, media_types.DATASET)
    (tmp_path / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "socket"))
        with pytest.raises(InputError, match="socket is a pipe, socket or device"):
            regular_files(tmp_path)
        with pytest.raises(InputError, match="socket is not a regular file"):
            local.add_files({"socket": tmp_path / "socket"}, media_types.DATASET)
    with pytest.raises(InputError, match="null is not a regular file"):
        local.add_files({"null": Path("/dev/null")}, media_types.DATASET)


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path, local: ArtifactStore) -> None:
    with open(os.fsencode(tmp_path) + b"/bad\xff", "wb"):
        pass
    with pytest.raises(InputError, match="is not valid UTF-8"):
        local.add_directory(tmp_path, media_types.DATASET)


def test_a_file_is_not_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file is not a directory"):
        regular_files(tmp_path / "file")

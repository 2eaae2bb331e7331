"""Which code and packages a run pins: every change of the code is another revision, and nothing else is."""

from __future__ import annotations

import os
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from executors import environment
from executors.environment import code_revision, environment_lock, own_code
from ledger.canonical import canonical_bytes
from ledger.digest import sha256_digest
from ledger.errors import InfrastructureError, InputError

NOTHING = sha256_digest(b"")


def git(directory: Path, *arguments: str) -> str:
    command = ["git", "-C", str(directory), "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "executors").mkdir(parents=True)
    (root / "executors" / "base.py").write_text("x = 1\n")
    (root / ".gitignore").write_text("*.log\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "first")
    return root


def test_a_clean_commit_differs_by_no_bytes(repository: Path) -> None:
    revision = code_revision(repository)
    assert revision.commit == git(repository, "rev-parse", "HEAD")
    assert (revision.diff, revision.dirty) == (NOTHING, False)


def test_every_way_to_change_code_is_another_revision_and_undone_the_first(repository: Path) -> None:
    source = repository / "executors" / "base.py"
    seen = {code_revision(repository).diff}

    source.write_text("x = 2\n")
    seen.add(code_revision(repository).diff)
    git(repository, "add", "-A")
    assert code_revision(repository).diff in seen  # staged or not is no difference
    (repository / "new file\n.py").write_text("y = 1\n")
    seen.add(code_revision(repository).diff)
    (repository / "new file\n.py").write_text("y = 2\n")
    seen.add(code_revision(repository).diff)
    assert code_revision(repository).dirty
    assert len(seen) == 4

    (repository / "new file\n.py").unlink()
    git(repository, "reset", "-q", "--hard")
    (repository / "ignored.log").write_text("noise")
    source.touch()
    assert code_revision(repository).diff == NOTHING


def test_a_binary_change_counts(repository: Path) -> None:
    (repository / "data.bin").write_bytes(b"\0\1")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "binary")
    (repository / "data.bin").write_bytes(b"\0\2")
    first = code_revision(repository).diff
    (repository / "data.bin").write_bytes(b"\0\3")
    assert first != code_revision(repository).diff != NOTHING


def test_a_git_configuration_of_the_user_changes_nothing(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "executors" / "base.py").write_text("x = 2\n")
    plain = code_revision(repository)
    git(repository, "config", "color.ui", "always")
    git(repository, "config", "diff.external", "/bin/false")
    git(repository, "config", "diff.noprefix", "true")
    git(repository, "config", "diff.context", "0")
    git(repository, "config", "diff.algorithm", "histogram")
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    assert code_revision(repository) == plain


def test_a_directory_inside_of_the_repository_sees_the_whole_of_it(repository: Path) -> None:
    (repository / "pyproject.toml").write_text("[project]\n")
    assert code_revision(repository / "executors") == code_revision(repository)


def test_packages_installed_inside_of_a_foreign_repository_are_a_tree(repository: Path) -> None:
    (repository / ".gitignore").write_text(".venv\n")
    site = repository / ".venv" / "site-packages"
    (site / "ledger").mkdir(parents=True)
    (site / "ledger" / "log.py").write_text("x = 1\n")
    (site / "other").mkdir()
    first = code_revision(site)
    assert (first.commit, first.dirty) == ("tree", False)
    (site / "other" / "x.py").write_text("of no concern")
    (site / "ledger" / "log.pyc").write_bytes(b"neither")
    assert code_revision(site) == first
    (site / "ledger" / "log.py").write_text("x = 2\n")
    assert code_revision(site).diff != first.diff


def test_without_git_the_sources_say_what_runs(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    assert code_revision(repository).commit == "tree"


def test_a_repository_that_git_cannot_read_is_an_error_not_a_tree(repository: Path) -> None:
    (repository / ".git" / "index").write_bytes(b"damaged")
    with pytest.raises(InfrastructureError, match=r"the code revision of .* is unknown: git ls-files: "):
        code_revision(repository)


def test_a_repository_without_a_commit_is_a_tree(repository: Path) -> None:
    git(repository, "update-ref", "-d", "HEAD")
    assert code_revision(repository).commit == "tree"


def test_a_directory_without_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds neither a git repository nor any of the packages ledger, executors"):
        code_revision(tmp_path)


def test_this_very_code_has_a_revision() -> None:
    revision = code_revision(own_code())
    assert re.fullmatch(r"[0-9a-f]{40}|tree", revision.commit)


def test_the_environment_lock_names_what_is_installed_and_has_canonical_bytes() -> None:
    lock = environment_lock()
    assert f"pydantic=={version('pydantic')}" in lock["packages"]
    assert lock["packages"] == sorted(set(lock["packages"]))
    assert canonical_bytes(lock) == canonical_bytes(environment_lock())


def test_distribution_names_are_normalised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Distribution:
        def __init__(self, name: str | None, version: str) -> None:
            self.name, self.version = name, version

    found = [Distribution("Foo.Bar", "2"), Distribution("foo_bar", "1"), Distribution(None, "9")]
    monkeypatch.setattr(environment, "distributions", lambda: found)
    environment._installed.cache_clear()
    try:
        assert environment_lock()["packages"] == ["foo-bar==2"]
    finally:
        environment._installed.cache_clear()

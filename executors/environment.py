"""Which code and which packages a run uses: two facts that its specification pins."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from shutil import which
from typing import Any

from ledger.canonical import canonical_bytes
from ledger.digest import sha256_digest
from ledger.errors import InfrastructureError, InputError
from ledger.events import CodeRevision

ENVIRONMENT_TYPE = "application/vnd.posttrain.environment.v1+json"
PACKAGES = ("ledger", "executors", "verifiers", "assets")
SOURCE_SUFFIXES = frozenset({".py", ".yaml", ".toml"})
GIT_TIMEOUT_S = 60.0

PLAIN = (
    "core.quotePath=true", "core.abbrev=40", "diff.indentHeuristic=true", "diff.mnemonicPrefix=false",
    "diff.suppressBlankEmpty=false", "diff.relative=false",
)  # fmt: skip
DIFF = (
    "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "--full-index", "--no-renames", "--unified=3",
    "--inter-hunk-context=0", "--diff-algorithm=myers", "--src-prefix=a/", "--dst-prefix=b/", "-O/dev/null",
    "--ignore-submodules=none", "--submodule=short",
)  # fmt: skip
"""`git diff` in one form, whatever the user's configuration prefers: its bytes are hashed."""


def own_code() -> Path:
    """The directory that this project's packages were imported from."""
    return Path(__file__).resolve().parents[1]


def code_revision(directory: Path) -> CodeRevision:
    """The code in `directory`: its git commit and the digest of everything that differs from it.

    The difference is `git diff HEAD` and every untracked file that git does not ignore, by name and digest. Where the
    packages are not under version control (an installed distribution, even one inside of somebody else's repository) the
    commit is `tree` and `diff` digests their sources.

    Raises:
        InfrastructureError: there is a repository and git cannot read it.
        InputError: neither a repository nor these packages.
    """
    root = _repository(directory)
    if root is None:
        return CodeRevision(commit="tree", diff=_tree_digest(directory), dirty=False)
    commit = _git(root, "rev-parse", "--verify", "HEAD").decode("ascii").strip()
    change = _git(root, "diff", *DIFF, "HEAD")
    untracked = sorted(filter(None, _git(root, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")))
    listed = b"".join(name + b"\0" + _file_digest(root / os.fsdecode(name)) + b"\n" for name in untracked)
    return CodeRevision(commit=commit, diff=sha256_digest(change + listed), dirty=bool(change or listed))


def environment_lock() -> dict[str, Any]:
    """Interpreter, platform and every installed distribution as `name==version`, sorted.

    Stored as an artifact, its digest is the `environment` of a run.
    """
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "packages": list(_installed()),
    }


@cache
def _installed() -> tuple[str, ...]:
    """Of several copies on the path the first one counts, as for import."""
    first: dict[str, str] = {}
    for distribution in distributions():
        name = distribution.name
        if name:  # a leftover directory without metadata has none
            first.setdefault(name.lower().replace("_", "-").replace(".", "-"), distribution.version)
    return tuple(sorted(f"{name}=={version}" for name, version in first.items()))


def _repository(directory: Path) -> Path | None:
    """The root of the repository that tracks `directory`; `None` when there is none with a commit."""
    found = next((path for path in (directory, *directory.parents) if (path / ".git").exists()), None)
    if found is None or which("git") is None:  # without git the sources themselves still say what runs
        return None
    tracked = _git(directory, "ls-files", "-z", "--", ".")
    has_commit = bool(tracked) and bool(_git(directory, "rev-list", "--max-count=1", "--all"))
    return Path(os.fsdecode(_git(directory, "rev-parse", "--show-toplevel").rstrip(b"\n"))) if has_commit else None


def _git(directory: Path, *arguments: str) -> bytes:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):  # set inside of git hooks, for another directory
        environment.pop(name, None)
    settings = [word for setting in PLAIN for word in ("-c", setting)]
    command = ["git", "-C", str(directory), *settings, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=GIT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise InfrastructureError(
            f"git {arguments[0]} in {directory} did not answer in {GIT_TIMEOUT_S:.0f} s"
        ) from None
    if done.returncode != 0:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[0]
        raise InfrastructureError(f"the code revision of {directory} is unknown: git {arguments[0]}: {reason}")
    return done.stdout


def _tree_digest(directory: Path) -> str:
    names = [
        path.relative_to(directory).as_posix()
        for package in PACKAGES
        for path in (directory / package).rglob("*")
        if path.suffix in SOURCE_SUFFIXES and path.is_file()
    ]
    if not names:
        raise InputError(f"{directory} holds neither a git repository nor any of the packages {', '.join(PACKAGES)}")
    listed = {name: "sha256:" + _file_digest(directory / name).decode() for name in sorted(names)}
    return sha256_digest(canonical_bytes(listed))


def _file_digest(path: Path) -> bytes:
    """Hex digits of the content; of the target for a link, which is what git would store."""
    hasher = hashlib.sha256()
    if path.is_symlink():
        hasher.update(os.fsencode(os.readlink(path)))
        return hasher.hexdigest().encode()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                hasher.update(chunk)
    except OSError as error:
        raise InfrastructureError(f"{path}: cannot be read for the code revision: {error.strerror}") from error
    return hasher.hexdigest().encode()

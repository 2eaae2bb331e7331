"""One home directory: the ledger's file, the artifacts, the keys and the runs; and the facade that opens it."""

from __future__ import annotations

import getpass
import os
import platform
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.errors import InfrastructureError, InputError
from ledger.events import Event, Payload
from ledger.log import Log
from ledger.store.sqlite import SqliteStore
from ledger.tree_head import SigningKey, VerifyingKey

if TYPE_CHECKING:
    from ledger.artifacts import ArtifactStore

KEY_META = "verifying_key"


@dataclass(frozen=True)
class Ledger:
    """An opened home. `Ledger.open()` is where every command begins."""

    home: Path
    log: Log
    actor: str

    @classmethod
    def open(cls, home: Path | None = None, *, actor: str | None = None, create: bool = False) -> Ledger:
        """Open `home` (default: `POSTTRAIN_HOME`, else `./.posttrain`), making it when `create` is set.

        Making an existing home again changes nothing.

        Raises:
            InputError: there is no ledger, or its key is missing or of another log.
            NewerLedger: a later release wrote it.
            InfrastructureError: it cannot be read or written.
        """
        place = (home or default_home()).resolve()
        if os.environ.get("POSTTRAIN_LEDGER"):
            raise InputError("POSTTRAIN_LEDGER is set, but this release keeps its ledger in SQLite only; unset it")
        if create:
            _make(place)
        store = SqliteStore(place / "ledger.db", create=create)
        who = actor or default_actor()
        return cls(place, Log(store, _key(place, store, create), who), who)

    @cached_property
    def artifacts(self) -> ArtifactStore:
        """The artifact store: `POSTTRAIN_ARTIFACTS` when set, else `artifacts/` in the home."""
        from ledger.artifacts import ArtifactStore  # fsspec is loaded by who needs bytes

        return ArtifactStore.open(os.environ.get("POSTTRAIN_ARTIFACTS") or self.home / "artifacts")

    def record(
        self, payload: Payload, *, expected_version: int | None = None, idempotency_key: str | None = None
    ) -> Event:
        """Append one event; see `Log.append`."""
        return self.log.append(payload, expected_version=expected_version, idempotency_key=idempotency_key)

    def verifying_key(self) -> VerifyingKey:
        """The public key of this log, as it was when the log was made."""
        with self.log.store.reader() as reader:
            text = reader.meta(KEY_META)
        return VerifyingKey.parse(text or "")


def default_home() -> Path:
    return Path(os.environ.get("POSTTRAIN_HOME") or ".posttrain")


def default_actor() -> str:
    """`POSTTRAIN_ACTOR`, else the account's name at this host."""
    named = os.environ.get("POSTTRAIN_ACTOR")
    if named:
        return named
    try:
        return f"{getpass.getuser()}@{platform.node()}"
    except (KeyError, OSError):  # an account without a name
        return f"uid-{os.getuid()}@{platform.node()}"


def _make(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InfrastructureError(f"cannot make {home}: {error.strerror}") from error


def _key(home: Path, store: SqliteStore, create: bool) -> SigningKey:
    path = home / "keys" / "log.key"
    with store.reader() as reader:
        recorded = reader.meta(KEY_META)
    if recorded is None and create:
        recorded = _first_key(path, store)
    key = SigningKey.load(path)
    if str(key.verifying_key()) != recorded:
        raise InputError(f"{path} is not the key of this ledger ({recorded}); restore the right one")
    return key


def _first_key(path: Path, store: SqliteStore) -> str:
    """Give a new ledger its key. The writer lock makes it happen once among processes that start together."""
    with store.writer() as writer:
        recorded = writer.meta(KEY_META)
        if recorded is None:
            if not path.exists():
                SigningKey.generate().save(path)
            recorded = str(SigningKey.load(path).verifying_key())
            writer.set_meta(KEY_META, recorded)
    return recorded

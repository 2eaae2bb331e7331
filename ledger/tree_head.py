"""Signed tree heads: C2SP checkpoint notes (tlog-checkpoint, signed-note) with Ed25519 signatures.

posttrain/3f1c…           origin
42                        number of events
q1w2…=                    base64 of the root

— posttrain/3f1c… base64(key id ‖ signature)
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ledger.errors import InfrastructureError, InputError, TamperFound
from ledger.merkle import HASH_BYTES

_ED25519 = b"\x01"  # signed-note algorithm byte
_DASH = "\u2014"


@dataclass(frozen=True, slots=True)
class TreeHead:
    """The size and root of the log at one moment, and the note that carries the signature."""

    origin: str
    size: int
    root: bytes  # 32 bytes
    note: str


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """The public half: a key name (the log's origin) and 32 bytes."""

    name: str
    public: bytes

    @property
    def key_id(self) -> bytes:
        """signed-note: the first 4 bytes of SHA-256(name ‖ LF ‖ algorithm ‖ key)."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{base64.b64encode(_ED25519 + self.public).decode()}"

    @classmethod
    def parse(cls, text: str) -> VerifyingKey:
        """The inverse of `str`.

        Raises:
            InputError: not a signed-note Ed25519 verifier key, or its id does not fit its bytes.
        """
        try:
            name, key_id, encoded = text.strip().split("+", 2)
            raw = base64.b64decode(encoded, validate=True)
        except (ValueError, binascii.Error):
            raise InputError(f"{text.strip()[:80]!r} is not a signed-note verifier key (name+id+base64)") from None
        key = cls(name, raw[1:])
        if not name or raw[:1] != _ED25519 or len(raw) != 33 or key.key_id.hex() != key_id:
            raise InputError(f"{text.strip()[:80]!r} is not an Ed25519 verifier key, or its id does not fit its bytes")
        return key


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The log's private key. Kept in a file outside the ledger, mode 0600."""

    name: str
    private: Ed25519PrivateKey

    @classmethod
    def generate(cls) -> SigningKey:
        """A new key under a new random origin."""
        return cls(f"posttrain/{secrets.token_hex(8)}", Ed25519PrivateKey.generate())

    def verifying_key(self) -> VerifyingKey:
        return VerifyingKey(self.name, self.private.public_key().public_bytes_raw())

    def sign(self, size: int, root: bytes) -> TreeHead:
        """The signed head of a tree."""
        text = f"{self.name}\n{size}\n{base64.b64encode(root).decode()}\n"
        signature = self.verifying_key().key_id + self.private.sign(text.encode())
        note = f"{text}\n{_DASH} {self.name} {base64.b64encode(signature).decode()}\n"
        return TreeHead(self.name, size, root, note)

    def save(self, path: Path) -> None:
        """Write the key, readable by its owner only, durable before return.

        Raises:
            InfrastructureError: the file exists or cannot be written.
        """
        text = f"{self.name}\n{self.private.private_bytes_raw().hex()}\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_whole(path, text)
        except OSError as error:
            raise InfrastructureError(f"cannot write the log key {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """Read a key that `save` wrote.

        Raises:
            InputError: missing or malformed.
        """
        try:
            name, seed = path.read_text().split("\n")[:2]
            return cls(name, Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed)))
        except FileNotFoundError:
            raise InputError(
                f"the log's signing key {path} is missing; restore it, nothing can be appended without it"
            ) from None
        except (OSError, ValueError) as error:
            raise InputError(f"the log's signing key {path} cannot be read: {error}") from None


def _write_whole(path: Path, text: str) -> None:
    """The file appears under its name whole and durable, or not at all; one that is there is not replaced."""
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(unfinished, path)
    finally:
        unfinished.unlink()
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def open_note(note: str, key: VerifyingKey) -> TreeHead:
    """The tree head in a note whose signature by `key` holds.

    Raises:
        TamperFound: malformed, another origin, or no valid signature by this key.
    """
    body, separator, signatures = note.partition("\n\n")
    text = body + "\n"
    lines = text.split("\n")
    try:
        origin, size, root = lines[0], int(lines[1]), base64.b64decode(lines[2], validate=True)
    except (IndexError, ValueError, binascii.Error):
        raise TamperFound(f"not a tree head: {note[:60]!r}") from None
    if not separator or origin != key.name or len(root) != HASH_BYTES or str(size) != lines[1] or size < 0:
        raise TamperFound(
            f"tree head of size {lines[1]!r} is malformed or of another log ({origin!r}, not {key.name!r})"
        )
    if not any(_signed_by(line, text, key) for line in signatures.splitlines()):
        raise TamperFound(f"tree head of size {size} has no valid signature by {key.name}")
    return TreeHead(origin, size, root, note)


def _signed_by(line: str, text: str, key: VerifyingKey) -> bool:
    dash, _, rest = line.partition(" ")
    name, _, encoded = rest.partition(" ")
    if dash != _DASH or name != key.name:
        return False
    try:
        raw = base64.b64decode(encoded, validate=True)
        if raw[:4] != key.key_id:
            return False
        Ed25519PublicKey.from_public_bytes(key.public).verify(raw[4:], text.encode())
    except (binascii.Error, ValueError, InvalidSignature):
        return False
    return True

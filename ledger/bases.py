"""Base models: a Hugging Face directory is checked, stored and pinned under a name; its digest is its identity from then on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from ledger.artifacts import Artifact, Problem
from ledger.artifacts.media_types import MODEL
from ledger.artifacts.staging import differences
from ledger.artifacts.storage import open_regular, storage_errors
from ledger.artifacts.store import Source
from ledger.artifacts.transfer import Progress
from ledger.artifacts.tree import regular_files
from ledger.artifacts.weights import read_header
from ledger.digest import parse_digest, sha256_digest
from ledger.errors import InputError, NotFound, StaleVersion, TamperFound
from ledger.events import BaseRevisionPinned, Event
from ledger.home import Ledger
from ledger.names import parse_name

MAX_JSON_BYTES = 128 << 20  # tokenizers of 250,000 tokens have 30 MB
MAX_ATTEMPTS = 5

REMOTE_CODE_KEYS = ("auto_map", "custom_pipelines")
"""Keys that make a loader import Python code that came with the model."""

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz", ".h5", ".msgpack")
# What may be in a base is listed, not what may not: everything else might be run or unpickled by somebody.
_ALLOWED = (
    ".safetensors", ".json", ".jinja", ".txt", ".model", ".tiktoken", ".vocab", ".merges", ".md", ".yaml", ".yml",
    ".png", ".jpg", ".jpeg", ".svg", ".gif", ".webp", ".pdf",
)  # fmt: skip
_DOCUMENTS = ("license", "licence", "notice", "readme", "copying", "use_policy")


@dataclass(frozen=True, slots=True)
class Pinned:
    """The event that pins a base; `reused` when it had been recorded before."""

    event: Event
    reused: bool


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """A Hugging Face directory that passed the checks.

    `files` holds paths, and the bytes themselves of what was parsed, so that what is stored is what was checked.
    """

    files: dict[str, Source]
    parameters: int  # as stored: tied weights once, quantised ones as they are packed
    chat_template: str | None  # the template's text


def pin_base(
    ledger: Ledger,
    name: str,
    path: Path,
    *,
    source: str | None = None,
    licence: str | None = None,
    upstream_revision: str | None = None,
    expect: str | None = None,
    progress: Progress | None = None,
) -> Pinned:
    """Check and store the model directory `path` and record it as the newest revision of the base `name`.

    The same bytes as the newest revision record nothing. Other bytes become a new revision, unless `expect` says which digest
    they must have.

    Args:
        source: where the directory came from; its path when `None`.
        expect: the digest that the base must have.
        progress: told the bytes that were handled since its last call.

    Raises:
        InputError: not a name, or a directory that `inspect_model` refuses.
        TamperFound: it has not the digest `expect`; names the file that changed.
    """
    parse_name("base", name)
    path = Path(path)
    origin = _without_credentials(source if source is not None else str(path.absolute()))
    model = inspect_model(path)
    if expect is not None:
        _check_expected(ledger, model, path, parse_digest(expect))
    artifact = ledger.artifacts.add_files(model.files, MODEL, progress=progress)
    if expect is not None and artifact.digest != expect:
        raise TamperFound(f"{path} changed while it was being stored; wait until nothing writes to it and run it again")
    return _record(ledger, _payload(name, model, artifact, origin, licence, upstream_revision))


def verify_base(
    ledger: Ledger, name: str, path: Path | None = None, *, progress: Progress | None = None
) -> list[Problem]:
    """What is wrong with the newest revision of a base: its stored bytes, and the files at `path` against it when given.

    Raises:
        NotFound: no base has this name.
        InputError: `path` is not a directory that can be stored.
    """
    digest = pinned_base(ledger, name).base
    found = ledger.artifacts.problems(digest, progress=progress)
    if path is not None and not any(problem.name == "manifest" for problem in found):
        found += _changes(ledger, _visible(regular_files(Path(path))), Path(path), digest, progress)
    return found


def pinned_base(ledger: Ledger, name: str) -> BaseRevisionPinned:
    """The newest revision of a base.

    Raises:
        NotFound: no base has this name.
    """
    last = _last(ledger, name)
    if last is None:
        known = ", ".join(event.stream.removeprefix("base/") for event in list_bases(ledger))
        raise NotFound(f"no base is called {name!r}; there is {known or 'none yet'}: pin one with `posttrain base pin`")
    return _pinned(last)


def list_bases(ledger: Ledger) -> list[Event]:
    """The newest `BaseRevisionPinned` event of every base, by name."""
    events = (ledger.log.last(stream, BaseRevisionPinned.type_name()) for stream in sorted(ledger.log.streams("base/")))
    return [event for event in events if event is not None]


def inspect_model(path: Path) -> ModelDirectory:
    """Check a Hugging Face directory without loading anything. Entries whose name begins with `.` do not belong to it.

    Raises:
        InputError: it does not exist; has no config.json, tokenizer.json or weights; holds a pickle or another file that is
            neither weights, JSON, a vocabulary nor documentation; asks for remote code; or a weight file or the index of
            its shards is unsound. The message names the file and the key.
    """
    files = _visible(regular_files(path))
    for name in files:
        _check_allowed(path, name)
    for needed in ("config.json", "tokenizer.json"):
        if needed not in files:
            raise InputError(f"{path} has no {needed}; give a Hugging Face model directory")
    weights = [name for name in files if name.endswith(".safetensors")]
    if not weights:
        raise InputError(f"{path} has no .safetensors file; convert the weights to safetensors")
    parsed = {name: _bounded(file) for name, file in files.items() if _is_parsed(name)}
    values = {name: _parse(path / name, data) for name, data in parsed.items()}
    for name, value in values.items():
        if name.endswith("config.json"):
            _refuse_remote_code(path / name, value)
    tensors = {name: read_header(files[name]) for name in weights}
    for name, value in values.items():
        if name.endswith(".safetensors.index.json"):
            _check_index(path, name, value, {weight: set(header) for weight, header in tensors.items()})
    template = _bounded(files["chat_template.jinja"]) if "chat_template.jinja" in files else None
    if template is not None:
        parsed["chat_template.jinja"] = template
    parameters = sum(tensor.elements for header in tensors.values() for tensor in header.values())
    return ModelDirectory({**files, **parsed}, parameters, _chat_template(path, template, values))


def _visible(files: Mapping[str, Path]) -> dict[str, Path]:
    """Without download caches and version control, which say nothing about the model."""
    return {name: file for name, file in files.items() if not any(part.startswith(".") for part in name.split("/"))}


def _check_allowed(path: Path, name: str) -> None:
    file = PurePosixPath(name.lower())
    if file.suffix in _PICKLES:
        raise InputError(
            f"{path / name} may hold a pickle, which runs code when it is loaded; convert the weights to safetensors and "
            "remove it"
        )
    if file.suffix not in _ALLOWED and file.stem not in _DOCUMENTS:
        raise InputError(
            f"{path / name} is not a part of a base (safetensors, JSON, vocabularies and documentation are); remove it"
        )


def _is_parsed(name: str) -> bool:
    return name == "tokenizer.json" or name.endswith(("config.json", ".safetensors.index.json"))


def _bounded(file: Path) -> bytes:
    with open_regular(file) as opened, storage_errors("read", file):
        data = b""
        while len(data) <= MAX_JSON_BYTES and (chunk := opened.read(MAX_JSON_BYTES + 1 - len(data))):
            data += chunk
    if len(data) > MAX_JSON_BYTES:
        raise InputError(f"{file} has more than {MAX_JSON_BYTES} bytes, too many for a file of its kind")
    return data


def _parse(place: Path, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is not JSON: {error}; get the file again") from None
    if not isinstance(value, dict):
        raise InputError(f"{place} is not a JSON object; get the file again")
    return value


def _refuse_remote_code(place: Path, value: Any) -> None:
    for key in _keys(value):
        if key.rpartition(".")[2] in REMOTE_CODE_KEYS:
            raise InputError(
                f"{place} has the key {key}, which makes a loader run code that came with the model; use a revision that the "
                "library knows by itself, without that key"
            )


def _keys(value: Any) -> Iterator[str]:
    """Dotted paths of all keys. Depth is bounded: the JSON parser refused what is deeper than its recursion."""
    open_values = [("", value)]
    while open_values:
        prefix, current = open_values.pop()
        if isinstance(current, dict):
            for key, item in current.items():
                yield prefix + key
                open_values.append((f"{prefix}{key}.", item))
        elif isinstance(current, list):
            open_values += [(prefix, item) for item in current]


def _check_index(path: Path, name: str, index: dict[str, Any], tensors: Mapping[str, set[str]]) -> None:
    """Every tensor that the index of shards lists is in the shard that it names."""
    place = path / name
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        raise InputError(f"{place} has no object weight_map; get the file again")
    for tensor, shard in weight_map.items():
        held = tensors.get(str(PurePosixPath(name).parent / shard)) if isinstance(shard, str) else None
        if held is None:
            raise InputError(f"{place}: weight_map.{tensor} names {shard!r}, which is not there; get the file again")
        if tensor not in held:
            raise InputError(
                f"{place}: weight_map.{tensor} names {shard!r}, which has no such tensor; get the file again"
            )


def _chat_template(path: Path, template: bytes | None, values: Mapping[str, dict[str, Any]]) -> str | None:
    """The template's text: the file's, else the tokenizer configuration's; of several, the one called `default`."""
    if template is not None:
        try:
            return template.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{path / 'chat_template.jinja'} is not UTF-8: {error}; get the file again") from None
    found = values.get("tokenizer_config.json", {}).get("chat_template")
    if isinstance(found, list):
        named = [item for item in found if isinstance(item, dict) and item.get("name") == "default"]
        found = named[0].get("template") if named else None
    return found if isinstance(found, str) else None


def _without_credentials(source: str) -> str:
    """`source` unchanged; the log is for ever, so a URL with a password or token in it must not get there.

    Raises:
        InputError: it holds credentials.
    """
    parts = urlsplit(source) if "://" in source else None
    if parts is not None and (parts.query or "@" in parts.netloc):
        raise InputError(
            "the source holds a user, password or query; give the plain URL, because the ledger keeps it for ever"
        )
    return source


def _check_expected(ledger: Ledger, model: ModelDirectory, path: Path, expect: str) -> None:
    """Refuse other bytes before they are stored, and say which file they are in."""
    actual = ledger.artifacts.describe(model.files, MODEL)
    if actual.digest == expect:
        return
    what = f"{path} has the digest {actual.digest}, not {expect}"
    try:
        pinned = ledger.artifacts.manifest(expect).files
    except NotFound:
        raise TamperFound(f"{what}, whose files this store does not hold; get the directory again") from None
    here = actual.manifest.files
    for name in sorted(pinned.keys() | here.keys()):
        if name not in here:
            raise TamperFound(f"{what}: {name} is missing; get the file again")
        if name not in pinned:
            raise TamperFound(f"{what}: {name} was added; remove it")
        if here[name].digest != pinned[name].digest:
            raise TamperFound(f"{what}: {name} changed since it was pinned; get the file again")
    raise TamperFound(f"{what}, although the files are the same; it is not the digest of a base")


def _changes(
    ledger: Ledger, files: dict[str, Path], path: Path, digest: str, progress: Progress | None
) -> list[Problem]:
    """How the files at `path` differ from the pinned ones, in words that tell them from stored ones."""
    words = {"missing": "missing", "changed": "changed since it was pinned"}
    return [
        Problem(
            problem.blob,
            problem.name,
            words.get(problem.what, "not there when it was pinned"),
            str(path / problem.name),
        )
        for problem in differences(files, ledger.artifacts.manifest(digest), progress)
    ]


def _payload(
    name: str, model: ModelDirectory, artifact: Artifact, source: str, licence: str | None, upstream: str | None
) -> BaseRevisionPinned:
    # A template from JSON may hold a lone surrogate, which has no UTF-8 form; it still has an identity.
    template = None if model.chat_template is None else model.chat_template.encode("utf-8", "surrogatepass")
    try:
        return BaseRevisionPinned(
            name=name,
            base=artifact.digest,
            source=source,
            upstream_revision=upstream,
            licence=licence,
            size_bytes=artifact.size_bytes,
            files=len(artifact.manifest.files),
            parameters=model.parameters,
            tokenizer=artifact.manifest.files["tokenizer.json"].digest,
            chat_template=None if template is None else sha256_digest(template),
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"base {name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _record(ledger: Ledger, payload: BaseRevisionPinned) -> Pinned:
    """Record the revision unless it is the newest already. Of several processes that pin the same bytes, one records."""
    for _ in range(MAX_ATTEMPTS):
        last = _last(ledger, payload.name)
        if last is not None and _pinned(last).base == payload.base:
            return Pinned(last, reused=True)
        try:
            return Pinned(ledger.record(payload, expected_version=last.version if last else 0), reused=False)
        except StaleVersion:
            continue  # somebody pinned meanwhile: look again
    raise StaleVersion(f"others keep pinning the base {payload.name}; run it again when they are done")


def _last(ledger: Ledger, name: str) -> Event | None:
    return ledger.log.last(f"base/{name}", BaseRevisionPinned.type_name())


def _pinned(event: Event) -> BaseRevisionPinned:
    if not isinstance(event.payload, BaseRevisionPinned):
        raise AssertionError(f"event {event.position} in {event.stream} is a {event.type}")
    return event.payload

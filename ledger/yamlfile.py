"""YAML files that people write: read once, bounded, and every mistake named with its line.

`load_yaml(path, model)` goes text → node tree → plain data → Pydantic model. The tree is kept until the model accepted
the data, so a value that Pydantic refuses is reported at the line of its key:

    stage.yaml:7: config.stepz: unknown key (did you mean 'steps'?)

The dialect is the JSON-like core of YAML 1.2: `yes`, `on`, `1:30` and dates are text, `3e-4` is a number. Anchors,
aliases, explicit tags, repeated keys, keys that are not text, and more than one document are refused: a configuration
file needs none of them, and aliases are how a small file becomes a big one.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from ledger.errors import InfrastructureError, InputError

MAX_BYTES = 1_000_000
MAX_DEPTH = 32
MAX_PROBLEMS = 5

M = TypeVar("M", bound=BaseModel)


def load_yaml(path: Path, model: type[M]) -> M:
    """The file at `path` as a `model`. Fractions reach the model as written, up to the 17 digits of a double.

    Raises:
        InputError: missing, a directory, not UTF-8, empty, larger than 1 MB, nested deeper than 32, not valid YAML, or
            not a valid `model`. One line, at most five problems, each `FILE:LINE: KEY: what is wrong`.
        InfrastructureError: the file is there and could not be read.
    """
    shown = _printable(str(path))
    root = _compose(_read_text(path, shown), shown)
    try:
        data = _Builder(shown).value(root, ())
        return model.model_validate_json(json.dumps(data))  # JSON mode: a list fits a tuple even in a strict model
    except ValidationError as error:
        raise InputError(_describe(error, root, model, shown)) from None


def _read_text(path: Path, shown: str) -> str:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"{shown}: is a directory; name the YAML file in it")
        if not stat.S_ISREG(mode):  # reading a pipe or a device might never end
            raise InputError(f"{shown}: is not a regular file")
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{shown}: no such file") from None
    except ValueError:  # a NUL in the name
        raise InputError(f"{shown}: is not a file name") from None
    except PermissionError:
        raise InputError(f"{shown}: permission denied") from None
    except OSError as error:
        raise InfrastructureError(f"{shown}: cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise InputError(f"{shown}: larger than {MAX_BYTES} bytes; bulk data belongs into a file of its own")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{shown}:{line}: byte {raw[error.start]:#04x} is not UTF-8; save the file as UTF-8") from None


# --- text to node tree


class _CoreResolver(BaseResolver):
    """The YAML 1.2 core schema (https://yaml.org/spec/1.2.2/ §10.3.2): only what JSON has, nothing guessed."""


for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", list("-+0123456789")),
    ("float", r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)$", list("-+.0123456789")),
    ("float", r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", list("-+.")),
):
    _CoreResolver.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


class _Loader(Reader, Scanner, Parser, Composer, _CoreResolver):
    def __init__(self, text: str, shown: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        _CoreResolver.__init__(self)
        self._shown = shown
        self._depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave it out
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise InputError(f"{self._shown}:{line}: alias '*{event.anchor}' is not supported; write the value out")
        if event.anchor is not None:
            raise InputError(f"{self._shown}:{line}: anchor '&{event.anchor}' is not supported; write the value out")
        if event.tag is not None and event.tag != "!":
            raise InputError(f"{self._shown}:{line}: tag {_quote(event.tag)} is not supported; write plain data")
        if self._depth >= MAX_DEPTH:
            raise InputError(f"{self._shown}:{line}: nested deeper than {MAX_DEPTH}")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _compose(text: str, shown: str) -> MappingNode:
    try:
        root = _Loader(text, shown).get_single_node()
    except yaml.MarkedYAMLError as error:
        raise InputError(_syntax(error, shown)) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = f"U+{ord(text[error.position]):04X}"
        raise InputError(f"{shown}:{line}: character {character} is not allowed in YAML") from None
    if root is None or (isinstance(root, ScalarNode) and not root.value and root.style is None):
        raise InputError(f"{shown}: is empty")
    if not isinstance(root, MappingNode):
        kind = "a list" if isinstance(root, SequenceNode) else "a single value"
        raise InputError(f"{shown}:{root.start_mark.line + 1}: expected 'key: value' lines at the top, found {kind}")
    return root


def _syntax(error: yaml.MarkedYAMLError, shown: str) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{shown}:{mark.line + 1}:{mark.column + 1}" if mark else shown
    problem = _printable(error.problem or error.context or "malformed")
    if "'\\t'" in problem:
        problem += " (indent with spaces, not tabs)"
    if "expected a single document" in (error.context or ""):
        problem = "a second document begins here; one file holds one document"
    return f"{place}: not valid YAML: {problem}"


# --- node tree to plain data


class _Builder:
    """Builds the data and refuses what would be lost or guessed on the way."""

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def value(self, node: Node, path: tuple[str | int, ...]) -> Any:
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: MappingNode, path: tuple[str | int, ...]) -> dict[str, Any]:
        built: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                raise self._problem(line, path, "a key must be text, not a list or a mapping")
            key = key_node.value
            if not key_node.tag.endswith(":str"):
                raise self._problem(line, (*path, key), f"a key must be text; quote it: '{_printable(key)}'")
            self._check_text(key, line, path)
            if key in built:
                raise self._problem(line, (*path, key), f"key repeated; it is already on line {lines[key]}")
            lines[key] = line
            built[key] = self.value(value_node, (*path, key))
        return built

    def _scalar(self, node: Node, path: tuple[str | int, ...]) -> Any:
        text: str = node.value
        line = node.start_mark.line + 1
        kind = node.tag.rpartition(":")[2]
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if kind == "int":
            return self._integer(text, line, path)
        if kind == "float":
            number = self._float(text)
            if not math.isfinite(number):
                raise self._problem(line, path, f"{_quote(text)} is not a finite number")
            return number
        self._check_text(text, line, path)
        return text

    @staticmethod
    def _float(text: str) -> float:
        try:
            return float(text)
        except ValueError:  # `.inf` and `.nan`, the two spellings that are YAML's own
            return math.nan

    def _integer(self, text: str, line: int, path: tuple[str | int, ...]) -> int:
        if len(text) > 100:  # far beyond anything meant, and int() of a long text is slow
            raise self._problem(line, path, f"an integer of {len(text)} digits; quote it if it is text")
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)

    def _check_text(self, text: str, line: int, path: tuple[str | int, ...]) -> None:
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise self._problem(line, path, "a lone surrogate is not text")

    def _problem(self, line: int, path: tuple[str | int, ...], what: str) -> InputError:
        place = f"{_dotted(path)}: " if path else ""
        return InputError(f"{self._shown}:{line}: {place}{what}")


# --- what Pydantic refused, at its line


def _describe(error: ValidationError, root: MappingNode, model: type[BaseModel], shown: str) -> str:
    found: list[tuple[int, str]] = []
    for detail in error.errors(include_url=False, include_context=True):
        problem = _locate(detail, root, model)
        if problem not in found:
            found.append(problem)
    found.sort(key=lambda problem: problem[0])
    lines = [f"{shown}:{line}: {text}" for line, text in found[:MAX_PROBLEMS]]
    if len(found) > MAX_PROBLEMS:
        lines.append(f"and {len(found) - MAX_PROBLEMS} more problems")
    return "; ".join(lines)


def _locate(detail: ErrorDetails, root: MappingNode, model: type[BaseModel]) -> tuple[int, str]:
    """The line (from 1) of the key at fault and the text `KEY: what is wrong`."""
    path: list[str | int] = []
    node: Node = root
    line = root.start_mark.line + 1
    for part in detail["loc"]:
        step = _child(node, part)
        if step is None:  # the tag of a union's branch, or a key that is missing
            continue
        line, node = step
        path.append(part)
    kind = detail["type"]
    last = detail["loc"][-1] if detail["loc"] else ""
    if kind == "missing":
        path.append(last)
        return line, f"{_dotted(path)}: required key is missing"
    if kind == "extra_forbidden":
        return line, f"{_dotted(path)}: unknown key{_suggestion(str(last), _known_keys(model, path[:-1]))}"
    message = _printable(detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, "))
    if kind not in ("value_error", "assertion_error"):
        message = message[:1].lower() + message[1:]
        if not isinstance(detail["input"], dict | list):
            message += f", not {_quote(detail['input'])}"
    return line, f"{_dotted(path)}: {message}" if path else message


def _child(node: Node, part: str | int) -> tuple[int, Node] | None:
    if isinstance(node, MappingNode):
        for key_node, value_node in node.value:
            if key_node.value == part:
                return key_node.start_mark.line + 1, value_node
    elif isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
        item: Node = node.value[part]
        return item.start_mark.line + 1, item
    return None


def _known_keys(model: type[BaseModel], path: list[str | int]) -> list[str]:
    """The keys that the models at `path` accept, over all branches of a union."""
    models = [model]
    for part in path:
        if isinstance(part, int):
            continue  # the models inside of a list were collected with the list
        models = [
            inner
            for outer in models
            for name, field in outer.model_fields.items()
            if part in (name, field.alias)
            for inner in _models_in(field.annotation)
        ]
    return sorted({field.alias or name for found in models for name, field in found.model_fields.items()})


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _suggestion(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key[:200], known, n=1)
    if close:
        return f" (did you mean {close[0]!r}?)"
    if known:
        return f" (known keys: {', '.join(known[:20])}{', …' if len(known) > 20 else ''})"
    return ""


def _dotted(path: tuple[str | int, ...] | list[str | int]) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + _printable(part)
    return text


def _quote(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def _printable(text: str) -> str:
    """`text` on one line: control characters, and what a terminal might obey, escaped."""
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return shown if len(shown) <= 300 else shown[:297] + "…"

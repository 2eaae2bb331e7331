"""Names from outside become paths: what is refused, and what is not."""

from __future__ import annotations

import pytest

from ledger.artifacts.names import check_name, check_names
from ledger.errors import InputError

HOSTILE = {
    "": "is empty",
    "/etc/passwd": "is absolute",
    "//host/share": "is absolute",
    "..": "`.` or `..`",
    "../outside": "`.` or `..`",
    "a/../../outside": "`.` or `..`",
    "./a": "`.` or `..`",
    "a/./b": "`.` or `..`",
    "a/.": "`.` or `..`",
    "a//b": "empty part",
    "a/": "empty part",
    "a\\b": "backslash",
    "..\\..\\outside": "backslash",
    "a\x00b": "U+0000",
    "a\nb": "U+000A",
    "a\x7fb": "U+007F",
    "a\x85b": "U+0085",
    "txt.\u202egpj": "U+202E",
    "a\u200bb": "U+200B",
    "a\u2028b": "U+2028",
    "a\ud800b": "not valid UTF-8",
    "caf\u0065\u0301": "normal form C",
    "a" * 256: "longer than",
    "/".join(["abcdefgh"] * 128): "longer than",
}


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InputError) as refused:
        check_name(name)
    assert HOSTILE[name] in str(refused.value)
    assert repr(name) in str(refused.value)


@pytest.mark.parametrize(
    "name", ["a", "a/b/c.json", ".hidden", "...", "a..b", "café", "日本語/モデル", "a b", "-rf", "C:x", "a" * 255]
)
def test_an_ordinary_name_is_accepted(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["a", "b", "a"], "is there twice"),
        (["Config.json", "config.json"], "only in case"),
        (["straße", "STRASSE"], "only in case"),
        (["dir/A", "DIR/a"], "only in case"),
        (["a", "a/b"], "is the directory of"),
        (["a/b/c", "a/b"], "is the directory of"),
        (["A", "a/b"], "is the directory of"),
    ],
)
def test_names_that_would_meet_on_some_machine_are_refused(names: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        check_names(names)


def test_names_that_only_look_alike_are_accepted() -> None:
    check_names(["a", "ab/c", "a.b/c", "b/a", "a-b"])

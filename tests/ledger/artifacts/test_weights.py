"""A safetensors header is read from a file that anybody may have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ledger.artifacts.weights import MAX_HEADER_BYTES, Tensor, read_header
from ledger.errors import InputError


def _file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def _tensor(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_sound_header_is_read(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": _tensor("BF16", [2, 3], [8, 20]),
        "a": _tensor("F32", [2], [0, 8]),
        "scalar": _tensor("U8", [], [20, 21]),
        "none": _tensor("F64", [0, 2**40], [21, 21]),
        "packed": _tensor("F4", [2, 2], [21, 23]),
    }
    tensors = read_header(_file(tmp_path / "x.safetensors", header, bytes(23)))
    assert tensors["b"] == Tensor("BF16", (2, 3))
    assert {name: tensor.elements for name, tensor in tensors.items()} == {
        "b": 6,
        "a": 2,
        "scalar": 1,
        "none": 0,
        "packed": 4,
    }


def test_it_agrees_with_the_library_that_writes_them(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    arrays = {"w": numpy.ones((3, 4), numpy.float16), "b": numpy.zeros(4, numpy.float32), "e": numpy.zeros((0, 2))}
    save_file(arrays, tmp_path / "x.safetensors", metadata={"format": "np"})
    assert read_header(tmp_path / "x.safetensors") == {
        "w": Tensor("F16", (3, 4)),
        "b": Tensor("F32", (4,)),
        "e": Tensor("F64", (0, 2)),
    }


HOSTILE: dict[str, tuple[Any, str]] = {
    "not json": (b"{nope", "is not JSON"),
    "a list": (b"[]", "does not begin with {"),
    "leading space": (b' {"a":1}', "does not begin with {"),
    "deep": (b'{"a":' + b"[" * 200_000, "is not JSON"),
    "not utf-8": (b'{"\xff":1}', "is not JSON"),
    "a pickle": (b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00.", "does not begin with {"),
    "twice": (b'{"a":1,"a":2}', "twice"),
    "metadata": ({"__metadata__": {"a": 1}}, "__metadata__"),
    "metadata list": ({"__metadata__": []}, "__metadata__"),
    "fields": ({"a": {"dtype": "F32", "shape": [2]}}, "other fields"),
    "extra field": ({"a": {**_tensor(), "code": "x"}}, "other fields"),
    "dtype": ({"a": _tensor(dtype="O")}, "unknown type"),
    "dtype list": ({"a": _tensor(dtype=["F32"])}, "unknown type"),
    "negative": ({"a": _tensor(shape=[-2])}, "shape"),
    "float": ({"a": _tensor(shape=[2.0])}, "shape"),
    "bool": ({"a": _tensor(shape=[True, 2])}, "shape"),
    "huge": ({"a": _tensor(shape=[2**62, 2**62])}, "larger than the file"),
    "huge in many dimensions": ({"a": _tensor(shape=[2**53] * 64)}, "larger than the file"),
    "many dimensions": ({"a": _tensor(shape=[1] * 1000 + [2])}, "shape"),
    "wrong shape": ({"a": _tensor(shape=[3])}, "do not fit|larger"),
    "small shape": ({"a": _tensor(shape=[1])}, "do not fit"),
    "offsets": ({"a": _tensor(offsets=[0])}, "data_offsets"),
    "offsets negative": ({"a": _tensor(offsets=[-8, 0])}, "data_offsets"),
    "offsets reversed": ({"a": _tensor(offsets=[8, 0])}, "do not fit"),
    "hole": ({"a": _tensor(shape=[1], offsets=[4, 8])}, "begins at 4, where 0 was due"),
    "overlap": ({"a": _tensor(), "b": _tensor(shape=[1], offsets=[0, 4])}, "was due"),
    "beyond": ({"a": _tensor(shape=[2], offsets=[8, 16])}, "was due|end at"),
    "short": ({"a": _tensor(shape=[1], offsets=[0, 4])}, "tensors end at 4, its data at 8"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_header_is_refused(tmp_path: Path, kind: str) -> None:
    header, reason = HOSTILE[kind]
    path = _file(tmp_path / "x.safetensors", header, bytes(8))
    with pytest.raises(InputError, match=reason) as refused:
        read_header(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "ends after 0 of 8 bytes"),
        (b"\x01\x00", "ends after 2 of 8 bytes"),
        ((100).to_bytes(8, "little") + b"{}", "would have 100 bytes, but the file has only 10"),
        ((2**64 - 1).to_bytes(8, "little") + b"{}", "would have 18446744073709551615 bytes, more than"),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", "more than 100000000"),
        (b"version https://git-lfs.github.com/spec/v1\n", "more than 100000000"),
    ],
)
def test_a_length_that_does_not_fit_is_refused_before_it_is_read(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(InputError, match=reason):
        read_header(tmp_path / "x.safetensors")

"""The weights digest: what it covers, and that a hostile directory is refused."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from executors.serving.weights import directory_digest, main_dtype, tensor_specs
from ledger.canonical import canonical_bytes
from ledger.errors import InputError


def write(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> Path:
    """A safetensors file, written by hand."""
    header: dict[str, Any] = {}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


A = ("F32", [2], b"12345678")
B = ("BF16", [1, 3], b"abcdef")


def test_the_digest_is_the_one_that_is_documented(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"b": B, "a": A})
    rows = [
        {"name": "a", "dtype": "F32", "shape": [2], "content": "sha256:" + hashlib.sha256(b"12345678").hexdigest()},
        {"name": "b", "dtype": "BF16", "shape": [1, 3], "content": "sha256:" + hashlib.sha256(b"abcdef").hexdigest()},
    ]
    expected = "sha256:" + hashlib.sha256(canonical_bytes(rows)).hexdigest()
    assert directory_digest(tmp_path) == expected


def test_order_and_sharding_do_not_matter(tmp_path: Path) -> None:
    write(tmp_path / "one" / "model.safetensors", {"a": A, "b": B})
    write(tmp_path / "two" / "model.safetensors", {"b": B, "a": A})
    write(tmp_path / "three" / "model-1.safetensors", {"b": B})
    write(tmp_path / "three" / "model-2.safetensors", {"a": A})
    index = {"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors"}}
    (tmp_path / "three" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert len({directory_digest(tmp_path / name) for name in ("one", "two", "three")}) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"a": ("F32", [2], b"12345679"), "b": B},
        {"c": A, "b": B},
        {"a": ("I32", [2], b"12345678"), "b": B},
        {"a": ("F32", [2, 1], b"12345678"), "b": B},
        {"a": A},
    ],
    ids=["a bit", "a name", "a type", "a shape", "a tensor less"],
)
def test_every_difference_shows(tmp_path: Path, changed: dict[str, tuple[str, list[int], bytes]]) -> None:
    write(tmp_path / "one" / "model.safetensors", {"a": A, "b": B})
    write(tmp_path / "two" / "model.safetensors", changed)
    assert directory_digest(tmp_path / "one") != directory_digest(tmp_path / "two")


def test_the_main_type_has_the_most_bytes(tmp_path: Path) -> None:
    write(
        tmp_path / "model.safetensors", {"a": A, "b": ("BF16", [8], b"0123456789abcdef"), "i": ("I64", [4], b"x" * 32)}
    )
    assert main_dtype(tensor_specs(tmp_path)) == "BF16"
    assert main_dtype([]) is None


@pytest.mark.parametrize("name", ["../model-1.safetensors", ".hidden.safetensors", "x/y.safetensors", "model.bin"])
def test_a_shard_outside_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path / "model-1.safetensors", {"a": A})
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(InputError, match="is not the name of a safetensors file"):
        directory_digest(inner)


def test_a_name_in_two_shards_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "model-1.safetensors", {"a": A})
    write(tmp_path / "model-2.safetensors", {"a": A})
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"tensor 'a' is also in model-1\.safetensors"):
        directory_digest(tmp_path)


def test_a_cut_off_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.safetensors", {"a": A, "b": B})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError):
        directory_digest(tmp_path)


def test_other_weight_formats_are_no_weights(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(InputError, match=r"only safetensors weights are served"):
        directory_digest(tmp_path)

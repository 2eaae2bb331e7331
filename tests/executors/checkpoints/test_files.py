"""Files that are hashed while they are written, and what a checkpoint directory must say of itself."""

from __future__ import annotations

import hashlib
import json
import random
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from executors.base import CHECKPOINT_INDEX
from executors.checkpoints import layout, random_state
from executors.checkpoints.files import DurableFile, TensorEntry, file_order, write_bytes, write_json, write_tensors
from executors.checkpoints.shards import read_shards, write_shard
from ledger.artifacts.weights import read_header
from ledger.errors import InfrastructureError, InputError

CPU = torch.device("cpu")
TENSORS = {
    "wide": torch.arange(6, dtype=torch.float64).reshape(2, 3),
    "bf16": torch.linspace(-1, 1, 7, dtype=torch.bfloat16),
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 4),
    "turned": torch.arange(6, dtype=torch.float32).reshape(2, 3).t(),  # not contiguous
    "flags": torch.tensor([True, False, True]),
}


def test_a_tensor_file_is_what_the_reference_reader_reads(tmp_path: Path) -> None:
    entries = file_order(TensorEntry.of(name, tensor) for name, tensor in TENSORS.items())
    path = tmp_path / "x.safetensors"
    record = write_tensors(path, entries, (TENSORS[entry.name] for entry in entries), "model", {"format": "pt"})
    assert (record.sha256, record.size_bytes) == (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)
    loaded = load_file(path)
    assert loaded.keys() == TENSORS.keys() == read_header(path).keys()
    for name, tensor in TENSORS.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)


def test_large_writes_are_hashed_in_order(tmp_path: Path) -> None:
    data = random.Random(0).randbytes(20 << 20)  # more than two chunks
    record = write_bytes(tmp_path / "x", data, "optimizer")
    assert record.sha256 == hashlib.sha256(data).hexdigest()
    assert (tmp_path / "x").read_bytes() == data


def test_nothing_is_written_over(tmp_path: Path) -> None:
    write_json(tmp_path / "x", {"step": 1}, "trainer")
    with pytest.raises(InfrastructureError, match="File exists"):
        write_json(tmp_path / "x", {"step": 2}, "trainer")
    assert json.loads((tmp_path / "x").read_text()) == {"step": 1}


def test_a_full_disk_is_an_infrastructure_failure(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with (
            pytest.raises(InfrastructureError, match="cannot be written"),
            DurableFile(tmp_path / "x", "model") as file,
        ):
            file.write(bytes(200_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_generators_go_on_where_they_stood() -> None:
    random_state.seed_everything(11)
    state = json.loads(json.dumps(random_state.capture(CPU)))
    draws = (random.random(), float(np.random.rand()), float(np.random.randn()), torch.rand(3).tolist())
    random_state.restore(state, CPU)
    assert (random.random(), float(np.random.rand()), float(np.random.randn()), torch.rand(3).tolist()) == draws


@pytest.mark.parametrize(
    "change",
    [
        {"python": {"version": 3, "words": [1, 2], "gauss": None}},
        {"numpy": {"kind": "MT19937", "keys": [1], "position": 0, "has_gauss": 0, "cached": 0.0}},
        {"torch": "!!"},
        {"torch": "AAAA"},
        {"cuda": 1},
        {"numpy": None},
    ],
)
def test_a_malformed_generator_state_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="random state is malformed"):
        random_state.restore({**random_state.capture(CPU), **change}, CPU)


def test_generators_of_other_devices_are_refused() -> None:
    state = random_state.capture(CPU)
    with pytest.raises(InputError, match="another kind of device than cpu"):
        random_state.restore({**state, "cuda": state["torch"]}, CPU)


def checkpoint(directory: Path, **change: Any) -> Path:
    """A directory with one file and an index of it."""
    (directory / "shards").mkdir(parents=True)
    (directory / "shards" / "a.json").write_text("{}")
    index = layout.Index(4, "exact", 2, 32, {"shards/a.json": 2}).document()
    (directory / CHECKPOINT_INDEX).write_text(json.dumps({**index, **change}))
    return directory


def test_an_index_is_read_back(tmp_path: Path) -> None:
    index = layout.Index.read(checkpoint(tmp_path / "c"))
    assert index == layout.Index(4, "exact", 2, 32, {"shards/a.json": 2})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "pickle-1"}, "format 'pickle-1'"),
        ({"step": -1}, "not counts"),
        ({"world_size": 0}, "not counts"),
        ({"samples_seen": "32"}, "not counts"),
        ({"files": []}, "files is not an object"),
        ({"files": {"shards/a.json": 3}}, "has 2 bytes, 3 were written"),
        ({"files": {"shards/b.json": 2}}, "has no file shards/b.json"),
        ({"files": {"../outside": 2}}, "no name of a file"),
        ({"files": {"/etc/passwd": 2}}, "no name of a file"),
        ({"files": {"shards/../../x": 2}}, "no name of a file"),
        ({"files": {"shards": 2}}, "has no file shards"),
    ],
)
def test_a_malformed_index_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        layout.Index.read(checkpoint(tmp_path / "c", **change))


def test_a_link_is_no_file_of_a_checkpoint(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path / "c")
    (tmp_path / "elsewhere").write_text("{}")
    (directory / "shards" / "a.json").unlink()
    (directory / "shards" / "a.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="has no file"):
        layout.Index.read(directory)


def test_a_huge_or_deep_document_is_refused(tmp_path: Path) -> None:
    (tmp_path / "huge.json").write_text('{"a": "' + "x" * 1000 + '"}')
    with pytest.raises(InputError, match="larger than 500 bytes"):
        layout.read_json(tmp_path / "huge.json", 500)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="not JSON"):
        layout.read_json(tmp_path / "deep.json")


def write_shards(directory: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """What rank 0 of 1 writes."""
    (directory / "shards").mkdir(parents=True)
    _, pieces = write_shard(directory, 0, "model", tensors)
    plan = layout.plan_document({"model": pieces})
    write_json(directory / layout.shard_plan_name(0), plan, "trainer")
    return directory


def read(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    read_shards(directory, "model", tensors, rank=0, size=1, written_by=1)


def test_shards_are_read_back(tmp_path: Path) -> None:
    written = {"a": torch.arange(6.0).reshape(3, 2), "b": torch.tensor(2.0)}
    directory = write_shards(tmp_path, written)
    empty = {"a": torch.zeros(3, 2), "b": torch.zeros(())}
    read(directory, empty)
    assert torch.equal(empty["a"], written["a"])
    assert float(empty["b"]) == 2.0


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"a": torch.zeros(3, 2), "c": torch.zeros(())}, "not those of this run, for instance b"),
        ({"a": torch.zeros(2, 3), "b": torch.zeros(())}, r"a is F32 \[3, 2\]; this run has F32 \[2, 3\]"),
        ({"a": torch.zeros(3, 2, dtype=torch.bfloat16), "b": torch.zeros(())}, "this run has BF16"),
    ],
)
def test_shards_of_another_model_are_refused(tmp_path: Path, tensors: dict[str, torch.Tensor], words: str) -> None:
    directory = write_shards(tmp_path, {"a": torch.arange(6.0).reshape(3, 2), "b": torch.tensor(2.0)})
    with pytest.raises(InputError, match=words):
        read(directory, tensors)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"a": {"shape": [3, 2], "offset": "0"}}, "has shape"),
        ({"a": {"shape": [-3, 2], "offset": None}}, "has shape"),
        ({"a": {"shape": [4, 2], "offset": None}}, "this run has"),
        ({"a": {"shape": [3, 2], "offset": 1}}, "rows beyond the tensor's end"),
        ({"a": {"shape": [3, 2], "offset": 0}}, "sharded in the checkpoint or in this run"),
        ({"a": 1}, "has shape"),
        ({}, "not those of this run"),
    ],
)
def test_a_lying_shard_plan_is_refused(tmp_path: Path, plan: dict[str, Any], words: str) -> None:
    directory = write_shards(tmp_path, {"a": torch.arange(6.0).reshape(3, 2)})
    (directory / layout.shard_plan_name(0)).write_text(json.dumps({"model": plan}))
    with pytest.raises(InputError, match=words):
        read(directory, {"a": torch.zeros(3, 2)})


def test_a_hostile_header_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    directory = write_shards(tmp_path, {"a": torch.arange(6.0).reshape(3, 2)})
    path = directory / layout.shard_name(0, "model")
    data = path.read_bytes()
    for spoilt in (b"\xff" * 8 + data[8:], data[:-4], data[:8] + b"[" + data[9:], b""):
        path.write_bytes(spoilt)
        with pytest.raises(InputError, match="not a sound safetensors file"):
            read(directory, {"a": torch.zeros(3, 2)})

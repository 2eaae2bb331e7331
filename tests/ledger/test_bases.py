"""Pinning a base: what is checked, what is recorded, and what a changed file leads to."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger.bases import inspect_model, list_bases, pin_base, pinned_base, verify_base
from ledger.digest import sha256_digest
from ledger.errors import InputError, NotFound, TamperFound
from ledger.events import BaseRevisionPinned
from ledger.fsck import fsck
from ledger.home import Ledger
from tests.ledger.artifacts.processes import finish, start

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def _weights(path: Path, tensors: dict[str, list[int]], seed: int = 0) -> None:
    """A safetensors file of bf16 tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes((seed + i) % 256 for i in range(end)))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    _weights(path / "model.safetensors", {"embed": [19, 8], "norm": [8]})
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    (path / "generation_config.json").write_text("{}")
    (path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {"vocab": {"auto_map": 1}}}))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(tmp_path / ".posttrain", create=True)


def test_a_base_is_stored_and_recorded(ledger: Ledger, model: Path, tmp_path: Path) -> None:
    pinned = pin_base(ledger, "tiny", model, licence="Apache-2.0", upstream_revision="abc")
    assert not pinned.reused
    payload = pinned.event.payload
    assert isinstance(payload, BaseRevisionPinned)
    assert payload == pinned_base(ledger, "tiny")
    assert (payload.name, payload.source, payload.licence, payload.upstream_revision) == (
        "tiny",
        str(model),
        "Apache-2.0",
        "abc",
    )
    assert payload.parameters == 19 * 8 + 8
    assert payload.files == 5
    assert payload.size_bytes == sum(path.stat().st_size for path in model.iterdir())
    assert payload.tokenizer == sha256_digest((model / "tokenizer.json").read_bytes())
    assert payload.chat_template == sha256_digest(TEMPLATE.encode())
    assert verify_base(ledger, "tiny", model) == []
    assert fsck(ledger) == []
    out = ledger.artifacts.materialise(payload.base, tmp_path / "out")
    assert {p.name: p.read_bytes() for p in out.iterdir()} == {p.name: p.read_bytes() for p in model.iterdir()}


def test_the_same_bytes_record_nothing(ledger: Ledger, model: Path, tmp_path: Path) -> None:
    first = pin_base(ledger, "tiny", model)
    shutil.copytree(model, tmp_path / "copy")
    again = pin_base(ledger, "tiny", tmp_path / "copy", source="elsewhere", licence="MIT")
    assert again.reused
    assert again.event == first.event
    assert ledger.log.size() == 1


def test_other_bytes_are_a_new_revision(ledger: Ledger, model: Path) -> None:
    first = pin_base(ledger, "tiny", model)
    _weights(model / "model.safetensors", {"embed": [19, 8], "norm": [8]}, seed=1)
    second = pin_base(ledger, "tiny", model)
    assert not second.reused
    assert second.event.version == 2
    assert pinned_base(ledger, "tiny").base != first.event.payload.to_json()["base"]
    assert fsck(ledger) == []


def test_another_name_for_the_same_bytes_has_the_same_digest(ledger: Ledger, model: Path) -> None:
    pin_base(ledger, "one", model)
    assert not pin_base(ledger, "two", model).reused
    assert pinned_base(ledger, "one").base == pinned_base(ledger, "two").base
    assert [event.stream for event in list_bases(ledger)] == ["base/one", "base/two"]


def test_processes_that_pin_at_once_record_once(ledger: Ledger, model: Path) -> None:
    home = ledger.home
    pids = [start(lambda: pin_base(Ledger.open(home), "tiny", model)) for _ in range(4)]
    assert [finish(pid) for pid in pids] == [0, 0, 0, 0]
    assert Ledger.open(home).log.size() == 1


# A changed file


def _swap_weights(model: Path) -> str:
    _weights(model / "model.safetensors", {"embed": [19, 8], "norm": [8]}, seed=1)
    return "model.safetensors changed"


def _remove(model: Path) -> str:
    (model / "generation_config.json").unlink()
    return "generation_config.json is missing"


def _add(model: Path) -> str:
    (model / "vocab.txt").write_text("a")
    return "vocab.txt was added"


@pytest.mark.parametrize("change", [_swap_weights, _remove, _add])
def test_an_expected_digest_refuses_other_bytes_and_names_the_file(
    ledger: Ledger, model: Path, change: Callable[[Path], str]
) -> None:
    pin_base(ledger, "tiny", model)
    digest = pinned_base(ledger, "tiny").base
    assert pin_base(ledger, "tiny", model, expect=digest).reused
    blobs = len(list((ledger.home / "artifacts/blobs/sha256").iterdir()))
    reason = change(model)
    with pytest.raises(TamperFound, match=reason) as refused:
        pin_base(ledger, "tiny", model, expect=digest)
    assert digest in str(refused.value)
    assert ledger.log.size() == 1
    assert len(list((ledger.home / "artifacts/blobs/sha256").iterdir())) == blobs


def test_an_expected_digest_works_in_an_empty_store(ledger: Ledger, model: Path) -> None:
    with pytest.raises(TamperFound, match="whose files this store does not hold"):
        pin_base(ledger, "tiny", model, expect="sha256:" + "0" * 64)
    with pytest.raises(InputError, match="is not a digest"):
        pin_base(ledger, "tiny", model, expect="latest")
    assert ledger.log.size() == 0


def test_verify_tells_stored_damage_from_a_changed_directory(ledger: Ledger, model: Path) -> None:
    pin_base(ledger, "tiny", model)
    _swap_weights(model)
    _remove(model)
    _add(model)
    found = verify_base(ledger, "tiny", model)
    assert [(problem.name, problem.what, problem.path) for problem in found] == [
        ("generation_config.json", "missing", str(model / "generation_config.json")),
        ("model.safetensors", "changed since it was pinned", str(model / "model.safetensors")),
        ("vocab.txt", "not there when it was pinned", str(model / "vocab.txt")),
    ]
    assert verify_base(ledger, "tiny") == []

    digest = ledger.artifacts.manifest(pinned_base(ledger, "tiny").base).files["model.safetensors"].digest
    blob = ledger.home / "artifacts/blobs/sha256" / digest.removeprefix("sha256:")
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(data)
    (problem,) = verify_base(ledger, "tiny")
    assert (problem.blob, problem.name, problem.path) == (digest, "model.safetensors", str(blob))
    assert [finding.position for finding in fsck(ledger)] == [1]


def test_pinning_again_restores_lost_bytes(ledger: Ledger, model: Path) -> None:
    base = pin_base(ledger, "tiny", model)
    ledger.artifacts.erase(pinned_base(ledger, "tiny").base)
    assert [problem.name for problem in verify_base(ledger, "tiny", model)] == ["manifest"]
    again = pin_base(ledger, "tiny", model)
    assert again.reused
    assert again.event == base.event
    assert verify_base(ledger, "tiny", model) == []


# What is refused


def _edit(model: Path, name: str, **changes: Any) -> None:
    path = model / name
    value = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**value, **changes}))


def _index(model: Path, weight_map: Any) -> None:
    _edit(model, "model.safetensors.index.json", weight_map=weight_map)


def _rename(model: Path, old: str, new: str) -> None:
    (model / old).rename(model / new)


AUTO_MAP = {"AutoModelForCausalLM": "modeling.Evil"}
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda m: (m / "config.json").unlink(), "has no config.json"),
    "no tokenizer": (lambda m: (m / "tokenizer.json").unlink(), "has no tokenizer.json"),
    "no weights": (lambda m: (m / "model.safetensors").unlink(), "has no .safetensors file"),
    "pickled weights": (
        lambda m: (m / "pytorch_model.bin").write_bytes(b"\x80"),
        r"pytorch_model\.bin may hold a pickle, .* convert the weights to safetensors",
    ),
    "pt": (lambda m: (m / "x.pt").write_bytes(b""), r"x\.pt may hold a pickle"),
    "pth in a directory": (
        lambda m: ((m / "original").mkdir(), (m / "original/consolidated.00.PTH").write_bytes(b"")),
        r"original/consolidated\.00\.PTH may hold a pickle",
    ),
    "pkl": (lambda m: (m / "x.pkl").write_bytes(b""), r"x\.pkl may hold a pickle"),
    "ckpt": (lambda m: (m / "x.ckpt").write_bytes(b""), r"x\.ckpt may hold a pickle"),
    "code": (lambda m: (m / "modeling.py").write_text("import os"), r"modeling\.py is not a part of a base"),
    "no suffix": (lambda m: (m / "weights").write_bytes(b""), r"weights is not a part of a base"),
    "auto_map": (lambda m: _edit(m, "config.json", auto_map=AUTO_MAP), r"config\.json has the key auto_map, "),
    "auto_map in the tokenizer": (
        lambda m: _edit(m, "tokenizer_config.json", auto_map={"AutoTokenizer": ["x.T", None]}),
        r"tokenizer_config\.json has the key auto_map, ",
    ),
    "auto_map below": (
        lambda m: _edit(m, "config.json", parts=[{"text_config": {"auto_map": AUTO_MAP}}]),
        r"config\.json has the key parts\.text_config\.auto_map, ",
    ),
    "auto_map in another configuration": (
        lambda m: _edit(m, "preprocessor_config.json", auto_map={}),
        r"preprocessor_config\.json has the key auto_map, ",
    ),
    "custom_pipelines": (
        lambda m: _edit(m, "config.json", custom_pipelines={"x": {"impl": "x.X"}}),
        "has the key custom_pipelines, ",
    ),
    "config is no JSON": (lambda m: (m / "config.json").write_text("{"), r"config\.json is not JSON"),
    "config is a list": (lambda m: (m / "config.json").write_text("[]"), r"config\.json is not a JSON object"),
    "config is deep": (lambda m: (m / "config.json").write_text("[" * 200_000), r"config\.json is not JSON"),
    "tokenizer is a pointer": (
        lambda m: (m / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1"),
        r"tokenizer\.json is not JSON",
    ),
    "weights are a pointer": (
        lambda m: (m / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1"),
        r"model\.safetensors is not a sound safetensors file",
    ),
    "weights are a pickle": (
        lambda m: (m / "model.safetensors").write_bytes(b"\x80\x04\x95\x00\x00\x00\x00\x00\x00."),
        r"model\.safetensors is not a sound safetensors file",
    ),
    "weights are cut": (
        lambda m: os.truncate(m / "model.safetensors", (m / "model.safetensors").stat().st_size - 1),
        r"model\.safetensors is not a sound safetensors file",
    ),
    "missing shard": (
        lambda m: _index(m, {"embed": "model-00002-of-00002.safetensors"}),
        r"weight_map\.embed names 'model-00002-of-00002\.safetensors', which is not there",
    ),
    "shard outside": (lambda m: _index(m, {"embed": "../x.safetensors"}), r"weight_map\.embed names '\.\./x"),
    "wrong shard": (
        lambda m: _index(m, {"bias": "model.safetensors"}),
        r"weight_map\.bias names 'model\.safetensors', which has no such tensor",
    ),
    "index without a map": (lambda m: _index(m, []), "has no object weight_map"),
    "template is not text": (
        lambda m: (m / "chat_template.jinja").write_bytes(b"\xff"),
        r"chat_template\.jinja is not UTF-8",
    ),
    "names differ in case": (lambda m: (m / "Config.json").write_text("{}"), "only in case"),
    "a link outside": (lambda m: (m / "vocab.txt").symlink_to("/etc/passwd"), r"vocab\.txt is a link to /etc/passwd"),
    "a pipe": (lambda m: os.mkfifo(m / "vocab.txt"), r"vocab\.txt is a pipe"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_a_safe_model_directory_is_refused(ledger: Ledger, model: Path, kind: str) -> None:
    change, reason = REFUSED[kind]
    change(model)
    with pytest.raises(InputError, match=reason):
        pin_base(ledger, "tiny", model)
    assert ledger.log.size() == 0
    assert list(ledger.artifacts.digests()) == []


def test_other_bad_input_is_refused(ledger: Ledger, model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{tmp_path / 'nowhere'} does not exist"):
        pin_base(ledger, "tiny", tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"base '\.\./x' is not a name"):
        pin_base(ledger, "../x", model)
    with pytest.raises(InputError, match="licence"):
        pin_base(ledger, "tiny", model, licence="x" * 3000)
    for source in ("https://user:secret@example.org/m", "https://token@example.org/m", "https://example.org/m?token=s"):
        with pytest.raises(InputError, match="holds a user, password or query") as refused:
            pin_base(ledger, "tiny", model, source=source)
        assert "secret" not in str(refused.value)
    for ask in (pinned_base, verify_base):
        with pytest.raises(NotFound, match="no base is called 'tiny'; there is none yet"):
            ask(ledger, "tiny")
    assert ledger.log.size() == 0
    pin_base(ledger, "tiny", model, source="https://example.org/m")
    with pytest.raises(NotFound, match="no base is called 'other'; there is tiny"):
        verify_base(ledger, "other")


# What is accepted


def test_shards_are_counted_together(model: Path) -> None:
    (model / "model.safetensors").unlink()
    _weights(model / "model-00001-of-00002.safetensors", {"a": [4, 4]})
    _weights(model / "model-00002-of-00002.safetensors", {"b": [3]})
    _index(model, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
    assert inspect_model(model).parameters == 19


def test_caches_and_version_control_do_not_belong_to_a_base(ledger: Ledger, model: Path) -> None:
    first = pin_base(ledger, "tiny", model)
    (model / ".cache/huggingface").mkdir(parents=True)
    (model / ".cache/huggingface/x.metadata").write_text("12345.6")
    (model / ".gitattributes").write_text("*.safetensors filter=lfs")
    again = pin_base(ledger, "tiny", model)
    assert again.reused
    assert again.event == first.event
    assert verify_base(ledger, "tiny", model) == []


def test_documents_are_accepted(model: Path) -> None:
    for name in ("README.md", "LICENSE", "LICENSE.txt", "NOTICE", "USE_POLICY.md", "merges.txt", "tokenizer.model"):
        (model / name).write_bytes(b"x")
    assert len(inspect_model(model).files) == 12


@pytest.mark.parametrize(
    ("configured", "file", "expected"),
    [
        (None, None, None),
        ("a", None, "a"),
        ("a", "b", "b"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], None, "d"),
        ([{"name": "tool_use", "template": "t"}], None, None),
    ],
)
def test_the_chat_template_in_force_is_recorded(
    model: Path, configured: Any, file: str | None, expected: str | None
) -> None:
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": configured} if configured else {}))
    if file is not None:
        (model / "chat_template.jinja").write_text(file)
    assert inspect_model(model).chat_template == expected


def test_progress_counts_the_bytes(ledger: Ledger, model: Path) -> None:
    counts: list[int] = []
    pin_base(ledger, "tiny", model, progress=counts.append)
    assert sum(counts) == pinned_base(ledger, "tiny").size_bytes

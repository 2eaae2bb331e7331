"""Specifications of fake runs, and the little that a ledger must hold for them."""

from __future__ import annotations

from typing import Any

from executors.fake import FakeConfig
from executors.plans import Resources, RunSpec, canonical_config
from ledger.artifacts import media_types
from ledger.digest import sha256_digest
from ledger.events import BaseRevisionPinned, CodeRevision, DatasetVersionSealed, DecontaminationChecked
from ledger.home import Ledger

CODE = CodeRevision(commit="tree", diff=sha256_digest(b"code"), dirty=False)
ENVIRONMENT = sha256_digest(b"environment")


def fake_spec(*, seed: int = 1, **config: Any) -> RunSpec:
    """A run of the fake executor without inputs."""
    return RunSpec(
        stage="sft",
        kind="fake",
        executor="fake",
        config=canonical_config(FakeConfig.model_validate(config)),
        seed=seed,
        resources=Resources(device="cpu"),
        code=CODE,
        environment=ENVIRONMENT,
    )


def pin_base(ledger: Ledger, name: str = "tiny") -> str:
    """The digest of a pinned base of a few bytes."""
    files = {"config.json": b"{}", "tokenizer.json": b'{"tokens": []}', "chat_template.jinja": b"{{ messages }}"}
    stored = ledger.artifacts.add_files({**files, "model.safetensors": name.encode()}, media_types.MODEL)
    pinned = BaseRevisionPinned(
        name=name,
        base=stored.digest,
        source="generated:test",
        size_bytes=stored.size_bytes,
        files=4,
        tokenizer=sha256_digest(files["tokenizer.json"]),
        chat_template=sha256_digest(files["chat_template.jinja"]),
    )
    ledger.record(pinned)
    return stored.digest


def seal_dataset(ledger: Ledger, name: str = "sums") -> str:
    """The digest of a sealed dataset version of one row."""
    stored = ledger.artifacts.add_files({"rows.jsonl": b'{"prompt": "1+1=", "response": "2"}\n'}, media_types.DATASET)
    checked = DecontaminationChecked(
        name=name, dataset=stored.digest, suites=(), method="exact", outcome="clean", matches=0
    )
    sealed = DatasetVersionSealed(
        name=name,
        dataset=stored.digest,
        rows=1,
        duplicates_removed=0,
        sources=(),
        recipe=sha256_digest(b"recipe"),
        checked_suites=(),
    )
    ledger.record(checked)
    ledger.record(sealed)
    return stored.digest

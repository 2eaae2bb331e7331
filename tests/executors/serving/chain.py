"""A ledger in which tiny models are evaluated, gated and promoted, so that they may be deployed."""

from __future__ import annotations

import json
from pathlib import Path

from ledger.canonical import canonical_digest, decimal_string
from ledger.digest import sha256_digest
from ledger.events import BaseRevisionPinned, CodeRevision, EvaluationReported, RunSubmitted, SuiteRegistered
from ledger.home import Ledger
from ledger.registry import decide_gate, promote, set_gate_policy

STAGE = "production"
ITEMS = [canonical_digest({"prompt": f"{i}+1=", "answer": str(i + 1)}) for i in range(200)]
SUITE = sha256_digest(b"suite")
MODEL_TYPE = "application/vnd.posttrain.model.v1"


def open_ledger(home: Path) -> Ledger:
    ledger = Ledger.open(home, create=True, actor="ada")
    ledger.record(
        SuiteRegistered(
            name="held-out",
            suite=SUITE,
            items=len(ITEMS),
            verifier="exact-answer",
            licence="CC0-1.0",
            source="generated",
        )
    )
    return ledger


def pin(ledger: Ledger, name: str, digest: str) -> str:
    ledger.record(
        BaseRevisionPinned(
            name=name,
            base=digest,
            source=f"generated:{name}",
            size_bytes=1,
            files=1,
            tokenizer=sha256_digest(b"tokenizer"),
        )
    )
    return digest


def evaluate(ledger: Ledger, model: str, passed: int) -> None:
    """Record that the model answered the first `passed` of the 200 items."""
    lines = [
        json.dumps({"item": item, "completion": "", "status": "pass" if i < passed else "fail", "reward": "0"})
        for i, item in enumerate(ITEMS)
    ]
    files: dict[str, Path | bytes] = {
        "verdicts.jsonl": "\n".join(lines).encode(),
        "report.json": json.dumps({"model": model}).encode(),
    }
    report = ledger.artifacts.add_files(files, "application/vnd.posttrain.report").digest
    spec = canonical_digest({"model": model, "report": report})
    run_id = "r-" + spec.removeprefix("sha256:")[:16]
    ledger.record(
        RunSubmitted(
            run_id=run_id, kind="evaluation", stage="evaluation", executor="fake", spec=spec, config={}, seed=0,
            model=model, suite=SUITE, verifier="exact-answer", environment=sha256_digest(b"lock"),
            code=CodeRevision(commit="tree", diff=sha256_digest(b""), dirty=False),
        )
    )  # fmt: skip
    ledger.record(
        EvaluationReported(
            report=report, run_id=run_id, model=model, suite=SUITE, verifier="exact-answer", items=len(ITEMS),
            passed=passed, masked=0, accuracy=decimal_string(passed / len(ITEMS)), interval=("0", "1"),
            confidence="0.95", method="wilson",
        )
    )  # fmt: skip


def add_model(ledger: Ledger, name: str, directory: Path, passed: int) -> str:
    """Store a model directory and record its evaluation; returns its digest."""
    digest = ledger.artifacts.add_directory(directory, MODEL_TYPE).digest
    pin(ledger, name, digest)
    evaluate(ledger, digest, passed)
    return digest


def promoted(ledger: Ledger, name: str, directory: Path, passed: int, against: str, stage: str = STAGE) -> str:
    """A model that passed the gate against `against` and is now what `stage` points to."""
    digest = add_model(ledger, name, directory, passed)
    assert decide_gate(ledger, digest, against, stage).passed
    promote(ledger, digest, stage, reason="passed the gate")
    return digest


def with_policy(ledger: Ledger, stage: str = STAGE) -> str:
    """The stage's policy, and a base that every candidate beats; returns the base's digest."""
    set_gate_policy(ledger, stage, "held-out")
    digest = sha256_digest(b"base")
    if not ledger.log.made(f"model:{digest}"):
        evaluate(ledger, pin(ledger, "base", digest), 60)
    return digest

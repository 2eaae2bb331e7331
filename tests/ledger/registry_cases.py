"""Models, suites and evaluations for the tests of gates and promotions, with real report artifacts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ledger.canonical import canonical_digest, decimal_string
from ledger.digest import sha256_digest
from ledger.events import (
    BaseRevisionPinned,
    CodeRevision,
    EvaluationReported,
    Event,
    ModelPromoted,
    RunSubmitted,
    SuiteRegistered,
)
from ledger.home import Ledger
from ledger.registry import decide_gate

ITEMS = [canonical_digest({"prompt": f"{i}+1=", "answer": str(i + 1)}) for i in range(200)]
SUITE = sha256_digest(b"suite")
STAGE = "production"


def register_suite(ledger: Ledger, suite: str) -> None:
    ledger.record(
        SuiteRegistered(
            name="held-out",
            suite=suite,
            items=len(ITEMS),
            verifier="exact-answer",
            licence="CC0-1.0",
            source="generated",
        )
    )


def model(ledger: Ledger, name: str) -> str:
    digest = sha256_digest(name.encode())
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


def evaluate(
    ledger: Ledger,
    model: str,
    passed: Sequence[bool | None],
    *,
    verifier: str = "exact-answer",
    claimed: int | None = None,
) -> str:
    """Record the report of an evaluation with these outcomes, one for each of the first items."""
    status = {True: "pass", False: "fail", None: "error"}
    lines = [
        json.dumps({"item": item, "completion": "", "status": status[outcome], "reward": "0"})
        for item, outcome in zip(ITEMS, passed, strict=False)
    ]
    files: dict[str, Path | bytes] = {
        "verdicts.jsonl": "\n".join(lines).encode(),
        "report.json": json.dumps({"model": model, "verifier": verifier}).encode(),
    }
    report = ledger.artifacts.add_files(files, "application/vnd.posttrain.report").digest
    spec = canonical_digest({"model": model, "report": report})
    run_id = "r-" + spec.removeprefix("sha256:")[:16]
    ledger.record(
        RunSubmitted(
            run_id=run_id,
            kind="evaluation",
            stage="evaluation",
            executor="fake",
            spec=spec,
            config={},
            seed=0,
            model=model,
            suite=SUITE,
            verifier=verifier,
            code=CodeRevision(commit="tree", diff=sha256_digest(b""), dirty=False),
            environment=sha256_digest(b"lock"),
        )
    )
    count = sum(outcome is True for outcome in passed)
    ledger.record(
        EvaluationReported(
            report=report,
            run_id=run_id,
            model=model,
            suite=SUITE,
            verifier=verifier,
            items=len(passed),
            passed=count if claimed is None else claimed,
            masked=sum(outcome is None for outcome in passed),
            accuracy=decimal_string(count / len(passed)),
            interval=("0", "1"),
            confidence="0.95",
            method="wilson",
        )
    )
    return report


def outcomes(passed: int) -> list[bool | None]:
    return [i < passed for i in range(len(ITEMS))]


def gated(ledger: Ledger, name: str, passed: int, against: str) -> str:
    """A new model that was evaluated and put before the gate."""
    digest = model(ledger, name)
    evaluate(ledger, digest, outcomes(passed))
    decide_gate(ledger, digest, against, STAGE)
    return digest


def promotions(ledger: Ledger) -> list[str]:
    return [e.payload.model for e in ledger.log.stream(f"stage/{STAGE}") if isinstance(e.payload, ModelPromoted)]


def promotion(event: Event | None) -> ModelPromoted:
    assert event is not None
    assert isinstance(event.payload, ModelPromoted)
    return event.payload

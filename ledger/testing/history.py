"""One whole history, from a base to a served model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ledger import events as ev
from ledger.artifacts import media_types
from ledger.canonical import canonical_bytes, canonical_digest, decimal_string
from ledger.digest import sha256_digest, short
from ledger.events import Event, Payload
from ledger.home import Ledger
from ledger.registry import decide_gate, promote, set_gate_policy


@dataclass(frozen=True)
class DemoHistory:
    """What `demo_history` recorded, by name."""

    base: str
    tokenizer: str
    dataset: str
    suite: str
    environment: str
    code: ev.CodeRevision
    run_id: str
    checkpoint: str
    model: str
    base_report: str
    report: str
    gate_id: str
    promotion_position: int
    deployment_id: str
    served_name: str
    stage: str
    events: tuple[Event, ...]


ITEMS = 40


def demo_history(ledger: Ledger, stage: str = "production") -> DemoHistory:
    """Record a base, a suite, a dataset version, a run with its checkpoint, two evaluations, a gate that passes, a promotion
    and a deployment that gets the stage's traffic, on an empty ledger. The weights are one tensor of one number.
    """
    chain = _Chain(ledger)
    base, tokenizer = chain.base()
    suite = chain.suite()
    dataset = chain.dataset(suite)
    set_gate_policy(ledger, stage, "held-out", min_items=ITEMS // 2)
    run = chain.training(base, dataset, tokenizer)
    checkpoint, model = chain.train(run, steps=20)
    base_report = chain.evaluation(base, suite, passed=ITEMS // 4)
    report = chain.evaluation(model, suite, passed=ITEMS * 3 // 4)
    gate = decide_gate(ledger, model, base, stage).decision
    promotion = promote(ledger, model, stage, reason="better on the held-out suite", name="arithmetic").event
    deployment_id, served_name = chain.deployment(stage, model, promotion.position)
    return DemoHistory(
        base, tokenizer, dataset, suite, run.environment, run.code, run.run_id, checkpoint, model, base_report, report,
        gate.gate_id, promotion.position, deployment_id, served_name, stage, tuple(ledger.log.read()),
    )  # fmt: skip


class _Chain:
    """The steps of the demo history, each with its artifacts and events."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._record: Callable[[Payload], Event] = ledger.record

    def base(self) -> tuple[str, str]:
        files = _model_files(1)
        stored = self._ledger.artifacts.add_files(files, media_types.MODEL)
        tokenizer = sha256_digest(files["tokenizer.json"])
        self._record(
            ev.BaseRevisionPinned(
                name="demo-base",
                base=stored.digest,
                source="generated:demo-base",
                licence="CC0-1.0",
                size_bytes=stored.size_bytes,
                files=len(files),
                parameters=1,
                tokenizer=tokenizer,
            )
        )
        return stored.digest, tokenizer

    def suite(self) -> str:
        head = {"name": "held-out", "verifier": "exact-answer", "verifier_config": {}, "items": ITEMS}
        stored = self._store({"items.jsonl": _lines(_items()), "suite.json": canonical_bytes(head)}, media_types.SUITE)
        self._record(
            ev.SuiteRegistered(
                name="held-out",
                suite=stored,
                items=ITEMS,
                verifier="exact-answer",
                licence="CC0-1.0",
                source="generated:held-out",
            )
        )
        return stored

    def dataset(self, suite: str) -> str:
        rows = [
            {"prompt": f"{i} + {i} = ", "response": str(2 * i), "source": "sums", "licence": "CC0-1.0"}
            for i in range(ITEMS, 2 * ITEMS)
        ]
        head = {"format": "prompt-response", "rows": len(rows)}
        data = _lines(rows)
        stored = self._store({"rows.jsonl": data, "dataset.json": canonical_bytes(head)}, media_types.DATASET)
        self._record(
            ev.DecontaminationChecked(
                name="sums", dataset=stored, suites=(suite,), method="normalised-prompt", outcome="clean", matches=0
            )
        )
        source = ev.SourceRows(
            name="sums",
            uri="generated:sums",
            content=sha256_digest(data),
            licence="CC0-1.0",
            rows_read=len(rows) + 2,
            rows_kept=len(rows),
        )
        self._record(
            ev.DatasetVersionSealed(
                name="sums",
                dataset=stored,
                rows=len(rows),
                duplicates_removed=2,
                sources=(source,),
                recipe=canonical_digest({"sources": ["sums"]}),
                checked_suites=(suite,),
            )
        )
        return stored

    def training(self, base: str, dataset: str, tokenizer: str) -> ev.RunSubmitted:
        config = {"learning_rate": "0.001", "steps": 20}
        return self._submit("sft", config, base=base, dataset=dataset, tokenizer=tokenizer, executor="fake")

    def train(self, run: ev.RunSubmitted, steps: int) -> tuple[str, str]:
        run_id = run.run_id
        self._record(ev.PriceSet(device_kind="cpu", per_device_hour="0.1"))
        self._record(ev.BudgetSet(stage="sft", cap="10", reason="a demonstration"))
        cost = {"stage": "sft", "run_id": run_id, "device_kind": "cpu", "per_device_hour": "0.1"}
        self._record(ev.CostReserved(**cost, amount="0.01", devices=1, device_seconds="360"))
        self._start(run_id)
        weights = _model_files(2)
        model = self._store(weights, media_types.MODEL)
        state = {"optimizer.json": b"{}", "scheduler.json": b"{}", "rng.json": b"{}", "loader.json": b"{}"}
        files = {f"model/{name}": data for name, data in weights.items()} | state
        checkpoint = self._store(files, media_types.CHECKPOINT)
        sizes = {"model": sum(map(len, weights.values()))} | {
            name.split(".")[0]: len(data) for name, data in state.items()
        }
        parts: tuple[Any, ...] = tuple(
            ev.CheckpointPart.model_validate(
                {"part": part, "content": sha256_digest(part.encode()), "size_bytes": size}
            )
            for part, size in sizes.items()
        )
        self._record(
            ev.CheckpointCommitted(
                run_id=run_id,
                attempt=1,
                step=steps,
                checkpoint=checkpoint,
                model=model,
                parts=parts,
                resume="exact",
                world_size=1,
                samples_seen=steps * 4,
            )
        )
        self._end(
            run_id,
            ev.RunCompleted(run_id=run_id, step=steps, checkpoint=checkpoint, model=model, summary={"loss": "0.1"}),
        )
        self._record(ev.CostSettled(**cost, amount="0.005", device_seconds="180"))
        return checkpoint, model

    def evaluation(self, model: str, suite: str, passed: int) -> str:
        run = self._submit("evaluation", {"max_tokens": 8}, model=model, suite=suite, verifier="exact-answer@1")
        self._start(run.run_id)
        verdicts = [
            {
                "item": canonical_digest(item),
                "completion": item["answer"] if i < passed else "?",
                "status": "pass" if i < passed else "fail",
                "reward": "1" if i < passed else "0",
            }
            for i, item in enumerate(_items())
        ]
        head = {"model": model, "suite": suite, "items": ITEMS, "passed": passed}
        files = {"report.json": canonical_bytes(head), "verdicts.jsonl": _lines(verdicts)}
        report = self._store(files, media_types.REPORT)
        self._record(
            ev.EvaluationReported(
                report=report,
                run_id=run.run_id,
                model=model,
                suite=suite,
                verifier="exact-answer@1",
                items=ITEMS,
                passed=passed,
                masked=0,
                accuracy=decimal_string(passed / ITEMS),
                interval=(decimal_string(passed / ITEMS - 0.15), decimal_string(passed / ITEMS + 0.15)),
                confidence="0.95",
                method="wilson",
            )
        )
        self._end(run.run_id, ev.RunCompleted(run_id=run.run_id, step=ITEMS, summary={}))
        return report

    def deployment(self, stage: str, model: str, promotion_position: int) -> tuple[str, str]:
        digits = canonical_digest([stage, model, promotion_position]).removeprefix("sha256:")[:16]
        deployment_id, served_name = f"d-{digits}", f"demo-{short(model)}-{digits[:8]}"
        self._record(
            ev.DeploymentRequested(
                deployment_id=deployment_id,
                stage=stage,
                promotion_position=promotion_position,
                model=model,
                served_name=served_name,
                engine="fake",
            )
        )
        self._record(
            ev.DeploymentReady(
                deployment_id=deployment_id,
                stage=stage,
                endpoint="http://127.0.0.1:1",
                observed_weights=sha256_digest(_model_files(2)["model.safetensors"]),
                probe=sha256_digest(b"4"),
            )
        )
        self._record(ev.TrafficShifted(stage=stage, deployment_id=deployment_id))
        return deployment_id, served_name

    def _submit(self, kind: str, config: dict[str, Any], **pins: Any) -> ev.RunSubmitted:
        spec = canonical_digest({"kind": kind, "config": config, **pins})
        payload = ev.RunSubmitted(
            run_id="r-" + spec.removeprefix("sha256:")[:16],
            kind=kind,
            stage=kind,
            spec=spec,
            config=config,
            seed=7,
            code=ev.CodeRevision(commit="c0ffee" + "0" * 34, diff=sha256_digest(b""), dirty=False),
            environment=self._ledger.artifacts.put_json({"packages": {"posttrain": "0"}}).digest,
            **{"executor": "fake", **pins},
        )
        self._record(payload)
        return payload

    def _start(self, run_id: str) -> None:
        started = ev.AttemptStarted(
            run_id=run_id, attempt=1, launcher="local", host="demo", devices=1, device_kind="cpu"
        )
        self._record(started)

    def _end(self, run_id: str, completed: ev.RunCompleted) -> None:
        self._record(ev.AttemptEnded(run_id=run_id, attempt=1, outcome="completed", exit_code=0, device_seconds="180"))
        self._record(completed)

    def _store(self, files: Mapping[str, bytes], artifact_type: str) -> str:
        return self._ledger.artifacts.add_files(dict(files), artifact_type).digest


def _items() -> list[dict[str, str]]:
    return [{"prompt": f"{i} + {i} = ", "answer": str(2 * i)} for i in range(ITEMS)]


def _lines(rows: list[dict[str, str]]) -> bytes:
    return b"".join(canonical_bytes(row) + b"\n" for row in rows)


def _model_files(number: int) -> dict[str, bytes]:
    """A model directory whose safetensors file holds one little-endian F32 number."""
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return {
        "config.json": canonical_bytes({"model_type": "demo"}),
        "model.safetensors": len(header).to_bytes(8, "little") + header + number.to_bytes(4, "little"),
        "tokenizer.json": canonical_bytes({"version": "1.0"}),
    }

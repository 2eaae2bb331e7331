"""Which model serves, and how was it built: one answer, every item with its digest."""

from __future__ import annotations

import base64
from typing import Any

from ledger import events as ev
from ledger.errors import NotFound
from ledger.events import Event
from ledger.history import History
from ledger.home import Ledger

JsonDict = dict[str, Any]


def which(ledger: Ledger, stage: str = "production", at: int | None = None) -> JsonDict:
    """Everything about the model that `stage` points to as of a position (`None`: now).

    The keys are `stage model base dataset code config seed environment run checkpoint evaluation gate promotion deployment
    log`; a key is `None` when the ledger holds nothing of it, as a base has no run.

    Raises:
        NotFound: nothing was promoted to the stage.
    """
    with ledger.log.as_of(at) as history:
        promotion = history.last(f"stage/{stage}", "ModelPromoted")
        if promotion is None or not isinstance(promotion.payload, ev.ModelPromoted):
            known = ", ".join(name.removeprefix("stage/") for name in history.streams("stage/")) or "none"
            raise NotFound(f"nothing was promoted to stage {stage!r}; stages with a model: {known}")
        answer: JsonDict = {"stage": stage, "model": promotion.payload.model}
        answer |= _built(history, promotion.payload.model)
        answer |= _approved(history, promotion, promotion.payload)
        answer["deployment"] = _deployment(history, stage)
        answer["log"] = _proof(ledger, history, at)
        return answer


def _built(history: History, model: str) -> JsonDict:
    made = [e for e in history.made(f"model:{model}") if isinstance(e.payload, ev.CheckpointCommitted)]
    empty = dict.fromkeys(("base", "dataset", "code", "config", "seed", "environment", "run", "checkpoint"))
    if not made:
        return empty | {"base": _base(history, model)}
    committed = made[0].payload
    assert isinstance(committed, ev.CheckpointCommitted)
    run = history.payloads(f"run/{committed.run_id}", ev.RunSubmitted)[0]
    attempts = history.payloads(f"run/{committed.run_id}", ev.AttemptStarted)
    return {
        "base": _base(history, _root_base(history, run)),
        "parent": run.parent,
        "dataset": _dataset(history, run.dataset),
        "code": {"commit": run.code.commit, "diff": run.code.diff, "dirty": run.code.dirty},
        "config": {"digest": run.spec, "values": run.config},
        "seed": run.seed,
        "environment": run.environment,
        "tokenizer": run.tokenizer,
        "chat_template": run.chat_template,
        "run": {
            "run_id": run.run_id,
            "stage": run.stage,
            "kind": run.kind,
            "executor": run.executor,
            "attempts": len(attempts),
        },
        "checkpoint": {
            "digest": committed.checkpoint,
            "step": committed.step,
            "resume": committed.resume,
            "position": made[0].position,
        },
    }


def _root_base(history: History, run: ev.RunSubmitted) -> str | None:
    """The base at the end of the chain of parents."""
    seen: set[str] = set()
    while run.base is None and run.parent is not None and run.run_id not in seen:
        seen.add(run.run_id)
        made = [e.payload for e in history.made(f"model:{run.parent}") if isinstance(e.payload, ev.CheckpointCommitted)]
        if not made:
            return run.parent
        run = history.payloads(f"run/{made[0].run_id}", ev.RunSubmitted)[0]
    return run.base


def _base(history: History, base: str | None) -> JsonDict | None:
    for event in history.made(f"base:{base}"):
        payload = event.payload
        if isinstance(payload, ev.BaseRevisionPinned):
            return {
                "name": payload.name,
                "digest": payload.base,
                "source": payload.source,
                "upstream_revision": payload.upstream_revision,
                "licence": payload.licence,
                "position": event.position,
            }
    return None


def _dataset(history: History, dataset: str | None) -> JsonDict | None:
    for event in history.made(f"dataset:{dataset}"):
        payload = event.payload
        if isinstance(payload, ev.DatasetVersionSealed):
            return {
                "name": payload.name,
                "digest": payload.dataset,
                "rows": payload.rows,
                "sources": [{"name": s.name, "licence": s.licence, "rows": s.rows_kept} for s in payload.sources],
                "checked_suites": list(payload.checked_suites),
                "position": event.position,
            }
    return None


def _approved(history: History, event: Event, promotion: ev.ModelPromoted) -> JsonDict:
    gate_event = history.last(f"gate/{promotion.gate_id}", "GateDecided")
    assert gate_event is not None and isinstance(gate_event.payload, ev.GateDecided)
    gate = gate_event.payload
    return {
        "evaluation": _report(history, gate.candidate_report),
        "gate": {
            "gate_id": gate.gate_id,
            "decision": gate.decision,
            "incumbent": gate.incumbent,
            "gain": gate.gain.estimate,
            "interval": list(gate.gain.interval),
            "confidence": gate.gain.confidence,
            "items": gate.gain.items,
            "method": gate.gain.method,
            "position": gate_event.position,
        },
        "promotion": {
            "actor": event.actor,
            "recorded_at": event.recorded_at,
            "reason": promotion.reason,
            "rollback": promotion.rollback,
            "previous": promotion.previous,
            "position": event.position,
        },
    }


def _report(history: History, report: str) -> JsonDict | None:
    for event in history.made(f"report:{report}"):
        payload = event.payload
        if isinstance(payload, ev.EvaluationReported):
            return {
                "report": payload.report,
                "suite": payload.suite,
                "verifier": payload.verifier,
                "items": payload.items,
                "accuracy": payload.accuracy,
                "interval": list(payload.interval),
                "confidence": payload.confidence,
                "position": event.position,
            }
    return None


def _deployment(history: History, stage: str) -> JsonDict | None:
    """Where the stage's traffic goes, and whether that is what was promoted."""
    shifted = history.last(f"traffic/{stage}", "TrafficShifted")
    if shifted is None or not isinstance(shifted.payload, ev.TrafficShifted):
        return None
    stream = f"deployment/{shifted.payload.deployment_id}"
    requested = history.payloads(stream, ev.DeploymentRequested)[0]
    ready = history.payloads(stream, ev.DeploymentReady)
    stopped = history.payloads(stream, ev.DeploymentStopped)
    return {
        "deployment_id": requested.deployment_id,
        "state": "stopped" if stopped else "ready",
        "model": requested.model,
        "served_name": requested.served_name,
        "endpoint": ready[-1].endpoint if ready else None,
        "engine": requested.engine,
        "observed_weights": ready[-1].observed_weights if ready else None,
        "position": shifted.position,
    }


def _proof(ledger: Ledger, history: History, at: int | None) -> JsonDict:
    """The position and the root that pin the answer."""
    size = history.size()
    with ledger.log.tree() as hash_of:
        root = hash_of(0, size)
    head = ledger.log.head() if at is None else None
    return {
        "position": size,
        "root": base64.b64encode(root).decode(),
        "root_hex": root.hex(),
        "head": head.note if head and head.size == size else None,
    }

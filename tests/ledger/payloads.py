"""One example of every payload class, every optional field set."""

from __future__ import annotations

from ledger import events as ev


def digest(number: int) -> str:
    return "sha256:" + f"{number:02x}" * 32


RUN, GATE, DEPLOYMENT = "r-" + "02" * 8, "g-" + "0a" * 8, "d-" + "0b" * 8
CODE = ev.CodeRevision(commit="c0ffee", diff=digest(5), dirty=True)
INTERVAL = ("-0.125", "0.5")

EXAMPLES: tuple[ev.Payload, ...] = (
    ev.BaseRevisionPinned(
        name="smollm2-135m", base=digest(1), source="file:models/smollm2", upstream_revision="12fd25f",
        licence="Apache-2.0", size_bytes=269060552, files=7, parameters=134515008, tokenizer=digest(3), chat_template=digest(4),
    ),
    ev.DatasetVersionSealed(
        name="sums", dataset=digest(6), rows=2, duplicates_removed=1,
        sources=(
            ev.SourceRows(
                name="a", uri="file:a.jsonl", content=digest(7), licence="CC-BY-4.0", generated_by="größe · 数 \U0001f600",
                rows_read=3, rows_kept=2,
            ),
        ),
        recipe=digest(8), checked_suites=(digest(9),),
    ),
    ev.DecontaminationChecked(
        name="sums", dataset=digest(6), suites=(digest(9),), method="normalised-prompt", outcome="leaked", matches=1,
        examples=(f"{digest(12)} 7",),
    ),
    ev.SuiteRegistered(
        name="held-out", suite=digest(9), items=200, verifier="exact-answer", verifier_config={"extract": "last-number"},
        licence="CC0-1.0", source="generated:seed-1",
    ),
    ev.ArtifactErased(artifact=digest(6), reason="a request under art. 17", size_bytes=12),
    ev.RunSubmitted(
        run_id=RUN, kind="sft", stage="sft", executor="fsdp", spec=digest(2),
        config={"lr": "0.001", "steps": 20, "layers": [1, None, True, {"x": ""}]}, seed=7, base=digest(1), dataset=digest(6),
        parent=digest(13), model=digest(14), suite=digest(9), tokenizer=digest(3), chat_template=digest(4),
        verifier="exact-answer@1", code=CODE, environment=digest(15),
    ),
    ev.AttemptStarted(
        run_id=RUN, attempt=2, launcher="local", host="node-1", devices=2, device_kind="cpu", resumed_from=digest(16),
        from_step=10,
    ),
    ev.AttemptEnded(run_id=RUN, attempt=1, outcome="killed", exit_code=-9, device_seconds="12.5"),
    ev.RunCompleted(run_id=RUN, step=20, checkpoint=digest(16), model=digest(14), summary={"loss": "0.25"}),
    ev.RunFailed(run_id=RUN, reason="out of memory", retryable=False),
    ev.RunCanceled(run_id=RUN, reason="Ctrl-C"),
    ev.CheckpointCommitted(
        run_id=RUN, attempt=1, step=10, checkpoint=digest(16), model=digest(14),
        parts=(ev.CheckpointPart(part="model", content=digest(17), size_bytes=9),), resume="weights", world_size=2,
        samples_seen=80,
    ),
    ev.EvaluationReported(
        report=digest(18), run_id=RUN, model=digest(14), suite=digest(9), verifier="exact-answer@1", items=200, passed=100,
        masked=1, accuracy="0.502513", interval=INTERVAL, confidence="0.95", method="wilson",
    ),
    ev.GatePolicySet(
        stage="production", suite="held-out", method="paired-t", confidence="0.95", min_gain="0", min_items=100
    ),
    ev.GateDecided(
        gate_id=GATE, stage="production", candidate=digest(14), incumbent=digest(1), suite=digest(9),
        candidate_report=digest(18), incumbent_report=digest(19), policy_position=3, decision="fail",
        gain=ev.PairedGain(
            items=199, wins=10, losses=8, candidate_accuracy="0.5", incumbent_accuracy="0.49", estimate="0.01",
            interval=INTERVAL, confidence="0.95", method="paired-t",
        ),
        reasons=("the interval includes 0",),
    ),
    ev.ModelRegistered(name="sums", number=1, model=digest(14), checkpoint=digest(16), gate_id=GATE),
    ev.ModelPromoted(
        stage="production", model=digest(14), gate_id=GATE, previous=digest(1), rollback=True, reason="slower answers"
    ),
    ev.ModelQuarantined(model=digest(14), reason="leaks"),
    ev.DeploymentRequested(
        deployment_id=DEPLOYMENT, stage="production", promotion_position=20, model=digest(14), served_name="sums-0e0e",
        engine="transformers",
    ),
    ev.DeploymentReady(
        deployment_id=DEPLOYMENT, stage="production", endpoint="http://127.0.0.1:8000", observed_weights=digest(20),
        probe=digest(21),
    ),
    ev.DeploymentStopped(deployment_id=DEPLOYMENT, stage="production", reason="replaced"),
    ev.TrafficShifted(stage="production", deployment_id=DEPLOYMENT, previous="d-" + "0c" * 8),
    ev.PriceSet(device_kind="h200", per_device_hour="3.5"),
    ev.BudgetSet(stage="sft", cap="100", reason="the first quarter"),
    ev.CostReserved(
        stage="sft", run_id=RUN, amount="1.75", device_kind="h200", devices=1, device_seconds="1800", per_device_hour="3.5"
    ),
    ev.CostSettled(
        stage="sft", run_id=RUN, amount="1.5", device_kind="h200", device_seconds="1542.857", per_device_hour="3.5"
    ),
    ev.LaunchBlocked(stage="sft", spec=digest(2), projected="120", remaining="98.5"),
)  # fmt: skip

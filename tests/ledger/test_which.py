"""Which model serves and how it was built: every item, then and now."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from ledger.digest import sha256_digest
from ledger.errors import NotFound
from ledger.events import BaseRevisionPinned, DeploymentStopped, PriceSet
from ledger.home import Ledger
from ledger.testing import DemoHistory, demo_history
from ledger.tree_head import open_note
from ledger.which import which

KEYS = {
    "stage", "model", "base", "parent", "dataset", "code", "config", "seed", "environment", "tokenizer", "chat_template",
    "run", "checkpoint", "evaluation", "gate", "promotion", "deployment", "log",
}  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(tmp_path / "home", create=True, actor="ada")


@pytest.fixture
def demo(ledger: Ledger) -> DemoHistory:
    return demo_history(ledger)


def at(demo: DemoHistory, type_name: str, number: int = -1) -> int:
    return [event.position for event in demo.events if event.type == type_name][number]


def test_every_item(ledger: Ledger, demo: DemoHistory) -> None:
    answer = which(ledger)
    assert set(answer) == KEYS
    assert (answer["stage"], answer["model"], answer["parent"]) == ("production", demo.model, None)
    assert answer["base"]["digest"] == demo.base
    assert answer["base"]["name"] == "demo-base"
    assert answer["dataset"]["digest"] == demo.dataset
    assert answer["dataset"]["checked_suites"] == [demo.suite]
    assert answer["dataset"]["sources"] == [{"name": "sums", "licence": "CC0-1.0", "rows": 40}]
    assert answer["code"] == {"commit": demo.code.commit, "diff": demo.code.diff, "dirty": False}
    assert answer["config"]["values"] == {"learning_rate": "0.001", "steps": 20}
    assert answer["config"]["digest"][7:23] == demo.run_id[2:]
    assert answer["seed"] == 7
    assert answer["environment"] == demo.environment
    assert answer["tokenizer"] == demo.tokenizer
    assert answer["run"] == {"run_id": demo.run_id, "stage": "sft", "kind": "sft", "executor": "fake", "attempts": 1}
    assert answer["checkpoint"] == {
        "digest": demo.checkpoint, "step": 20, "resume": "exact", "position": at(demo, "CheckpointCommitted"),
    }  # fmt: skip
    assert answer["evaluation"]["report"] == demo.report
    assert answer["evaluation"]["interval"] == ["0.6", "0.9"]
    assert answer["gate"]["gate_id"] == demo.gate_id
    assert answer["gate"]["decision"] == "pass"
    assert float(answer["gate"]["interval"][0]) > 0
    assert answer["promotion"]["actor"] == "ada"
    assert answer["promotion"]["position"] == demo.promotion_position
    assert answer["promotion"]["recorded_at"] == demo.events[demo.promotion_position - 1].recorded_at
    assert answer["deployment"]["deployment_id"] == demo.deployment_id
    assert answer["deployment"]["state"] == "ready"
    assert answer["deployment"]["served_name"] == demo.served_name


def test_the_proof(ledger: Ledger, demo: DemoHistory) -> None:
    proof = which(ledger)["log"]
    head = open_note(proof["head"], ledger.verifying_key())
    assert (
        (proof["position"], base64.b64decode(proof["root"])) == (head.size, head.root) == (len(demo.events), head.root)
    )
    assert proof["root_hex"] == head.root.hex()


def test_as_of(ledger: Ledger, demo: DemoHistory) -> None:
    now = which(ledger)
    ledger.record(DeploymentStopped(deployment_id=demo.deployment_id, stage="production", reason="done"))
    assert which(ledger)["deployment"]["state"] == "stopped"
    then = which(ledger, at=len(demo.events))
    assert then["deployment"] == now["deployment"]
    assert then["log"]["root"] == now["log"]["root"]
    before_traffic = which(ledger, at=at(demo, "DeploymentReady"))
    assert before_traffic["deployment"] is None
    assert before_traffic["model"] == demo.model
    with pytest.raises(NotFound, match="nothing was promoted to stage 'production'; stages with a model: none"):
        which(ledger, at=demo.promotion_position - 1)


def test_another_stage(ledger: Ledger, demo: DemoHistory) -> None:
    with pytest.raises(NotFound, match="nothing was promoted to stage 'canary'; stages with a model: production"):
        which(ledger, "canary")


def test_other_events_change_only_the_proof(ledger: Ledger, demo: DemoHistory) -> None:
    before = which(ledger)
    ledger.record(PriceSet(device_kind="cpu", per_device_hour="9"))
    ledger.record(
        BaseRevisionPinned(
            name="demo-base",
            base=sha256_digest(b"new"),
            source="x",
            size_bytes=1,
            files=1,
            tokenizer=sha256_digest(b"t"),
        )
    )
    after = which(ledger)
    assert after.pop("log") != before.pop("log")
    assert after == before

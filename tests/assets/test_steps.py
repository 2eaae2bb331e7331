"""What a chain may not do to the stage that it works for."""

from __future__ import annotations

from pathlib import Path

import pytest

from assets.chain import Chain
from assets.steps import apply_policy
from ledger.errors import RefusedError
from ledger.home import Ledger
from ledger.registry import gate_policy, set_gate_policy
from ledger.testing import demo_history

CHAIN = """
name: chain
base: {name: demo-base, path: base}
suite: suite.yaml
dataset: dataset.yaml
stage: STAGE
gate: {min_gain: "0", min_items: 20}
candidates: [{name: sft, run: sft.yaml}]
"""
SUITE = "{name: held-out, items: items.jsonl, verifier: exact-answer, licence: CC0-1.0, source: a test}"


@pytest.fixture
def ledger(home: Path) -> Ledger:
    ledger = Ledger.open(home, create=True, actor="tester")
    demo_history(ledger)
    return ledger


def chain(directory: Path, stage: str) -> Chain:
    (directory / "suite.yaml").write_text(SUITE)
    path = directory / "chain.yaml"
    path.write_text(CHAIN.replace("STAGE", stage))
    return Chain(path)


def test_a_chain_sets_the_policy_of_a_stage_that_has_none(ledger: Ledger, tmp_path: Path) -> None:
    apply_policy(ledger, chain(tmp_path, "canary"))
    size = ledger.log.size()
    apply_policy(ledger, chain(tmp_path, "canary"))
    assert ledger.log.size() == size
    found = gate_policy(ledger, "canary")
    assert found is not None
    assert (found.policy.suite, found.policy.min_items) == ("held-out", 20)


def test_a_chain_does_not_loosen_the_policy_that_judges_it(ledger: Ledger, tmp_path: Path) -> None:
    set_gate_policy(ledger, "canary", "held-out", min_gain="0.05", min_items=20)
    size = ledger.log.size()
    with pytest.raises(RefusedError, match="has the gate policy of position"):
        apply_policy(ledger, chain(tmp_path, "canary"))
    assert ledger.log.size() == size

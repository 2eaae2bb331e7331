"""What a refused launch leaves behind, and who pays for one that was begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors.fake import FakeExecutor
from executors.runs import materialise_run
from ledger.artifacts import media_types
from ledger.budget import set_budget, set_price, status
from ledger.errors import InfrastructureError, MissingExtra, RuleBroken
from ledger.home import Ledger
from tests.executors.specs import fake_spec


def test_a_run_that_a_rule_refuses_holds_no_money_back(home: Path) -> None:
    ledger = Ledger.open(home, create=True, actor="tester")
    set_price(ledger, "cpu", "3600")
    set_budget(ledger, "sft", "1000", "a test")
    size = ledger.log.size()
    stored = ledger.artifacts.add_files({"rows.jsonl": b"{}"}, media_types.DATASET)
    spec = fake_spec().model_copy(update={"dataset": stored.digest})
    with pytest.raises(RuleBroken, match="is not a sealed dataset version"):
        materialise_run(ledger, spec)
    assert ledger.log.size() == size
    assert status(ledger, "sft").reserved == "0"


def test_who_paid_first_pays_on(home: Path) -> None:
    """Two stage files may ask for one specification; its cost is not split between their budgets."""
    ledger = Ledger.open(home, create=True, actor="tester")
    set_price(ledger, "cpu", "3600")
    spec = fake_spec(steps=6, checkpoint_every=2, fault="kill", fault_step=5)
    with pytest.raises(InfrastructureError):
        materialise_run(ledger, spec, budget_stage="first")
    materialise_run(ledger, spec, budget_stage="second")
    assert ledger.log.streams("budget/") == ["budget/first"]
    assert status(ledger, "first").reserved == "0"


def test_a_missing_extra_is_said_before_anything_is_recorded(home: Path) -> None:
    class Needy(FakeExecutor):
        needs = ("a_module_that_nobody_has",)
        extra = "train"

    ledger = Ledger.open(home, create=True, actor="tester")
    set_price(ledger, "cpu", "1")
    size = ledger.log.size()
    with pytest.raises(MissingExtra, match=r"posttrain\[train\]"):
        materialise_run(ledger, fake_spec(), executor=Needy())
    assert ledger.log.size() == size

"""What a refused launch leaves behind: nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors.runs import materialise_run
from ledger.artifacts import media_types
from ledger.budget import set_budget, set_price, status
from ledger.errors import RuleBroken
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

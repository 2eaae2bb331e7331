"""A ledger with a suite, and a base that was evaluated on it; tests that need another ledger define their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.home import Ledger
from ledger.registry import set_gate_policy
from tests.ledger.registry_cases import STAGE, SUITE, evaluate, model, outcomes, register_suite


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger.open(tmp_path / "home", create=True, actor="ada")
    register_suite(ledger, SUITE)
    return ledger


@pytest.fixture
def base(ledger: Ledger) -> str:
    """A base that passes 80 of 200, and the stage's policy."""
    set_gate_policy(ledger, STAGE, "held-out")
    digest = model(ledger, "base")
    evaluate(ledger, digest, outcomes(80))
    return digest

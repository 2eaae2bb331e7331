"""Gates and promotions that several processes make at once, on one ledger."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ledger.home import Ledger
from tests.ledger.registry_cases import evaluate, gated, model, outcomes, promotions

ROOT = Path(__file__).resolve().parents[2]

CONTENDER = """
import sys
from pathlib import Path
from ledger.errors import RuleBroken
from ledger.home import Ledger
from ledger.registry import decide_gate, promote

ledger = Ledger.open(Path(sys.argv[1]))
model, base = sys.argv[2:]
print("ready", flush=True)
sys.stdin.readline()
gate = decide_gate(ledger, model, base, "production")
try:
    print(gate.event.position, promote(ledger, model, "production", reason="at once").event.position)
except RuleBroken as refused:
    print(gate.event.position, str(refused).split()[0])
"""


def contend(ledger: Ledger, models: Sequence[str], base: str) -> list[list[str]]:
    """The gate's and the promotion's position, or the first word of the refusal, of processes that did both at once."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CONTENDER, str(ledger.home), model, base],
            cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for model in models
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [process.communicate(timeout=60)[0].split() for process in processes]


def test_processes_that_promote_one_model_at_once_record_one_gate_and_one_promotion(ledger: Ledger, base: str) -> None:
    candidate = model(ledger, "better")
    evaluate(ledger, candidate, outcomes(120))
    size = ledger.log.size()
    answers = contend(ledger, [candidate] * 3, base)
    assert answers == [[str(size + 1), str(size + 3)]] * 3
    assert ledger.log.size() == size + 3  # decided, registered, promoted


def test_of_two_models_promoted_at_once_one_needs_a_gate_against_the_other(ledger: Ledger, base: str) -> None:
    models = [gated(ledger, name, 120, base) for name in ("left", "right")]
    answers = contend(ledger, models, base)
    assert sorted(words[1].isdigit() for words in answers) == [False, True]
    assert len(promotions(ledger)) == 1

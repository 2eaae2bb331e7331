"""Gate decisions, registrations, promotions and rollbacks, on a real ledger with real report artifacts."""

from __future__ import annotations

import pytest

from ledger.digest import sha256_digest
from ledger.errors import InputError, NotFound, RuleBroken, TamperFound
from ledger.events import GateDecided, ModelPromoted, ModelQuarantined, ModelRegistered
from ledger.home import Ledger
from ledger.registry import decide_gate, gate_policy, live, promote, register, roll_back, set_gate_policy, stage_history
from tests.ledger.registry_cases import (
    STAGE,
    evaluate,
    gated,
    model,
    outcomes,
    promotion,
    promotions,
    register_suite,
)

# --- the policy --------------------------------------------------------------------------------------------------------


def test_the_same_policy_is_recorded_once(ledger: Ledger) -> None:
    first = set_gate_policy(ledger, STAGE, "held-out", "0.95", "0", 100)
    assert set_gate_policy(ledger, STAGE, "held-out", "0.950", "0.0", 100) == first
    changed = set_gate_policy(ledger, STAGE, "held-out", "0.95", "0.02", 100)
    assert changed.position > first.position
    force = gate_policy(ledger, STAGE)
    assert force is not None
    assert (force.position, force.policy.min_gain) == (changed.position, "0.02")


@pytest.mark.parametrize(
    ("confidence", "min_gain", "min_items"),
    [
        ("1", "0", 100),
        ("0.5", "0", 100),
        ("nan", "0", 100),
        ("0.95", "1", 100),
        ("0.95", "high", 100),
        ("0.95", "0", 1),
    ],
)
def test_a_policy_out_of_range_is_refused(ledger: Ledger, confidence: str, min_gain: str, min_items: int) -> None:
    with pytest.raises(InputError):
        set_gate_policy(ledger, STAGE, "held-out", confidence, min_gain, min_items)
    assert gate_policy(ledger, STAGE) is None


def test_a_stage_with_a_bad_name_is_one_clear_line(ledger: Ledger) -> None:
    with pytest.raises(InputError, match=r"stage '\.\./etc' is not a name"):
        set_gate_policy(ledger, "../etc", "held-out")


# --- the gate ----------------------------------------------------------------------------------------------------------


def test_a_better_model_passes_with_its_numbers(ledger: Ledger, base: str) -> None:
    candidate = model(ledger, "better")
    evaluate(ledger, candidate, outcomes(120))
    decided = decide_gate(ledger, candidate, base, STAGE)
    gain = decided.decision.gain
    assert decided.passed
    assert (gain.items, gain.wins, gain.losses) == (200, 40, 0)
    assert (gain.candidate_accuracy, gain.incumbent_accuracy, gain.estimate) == ("0.6", "0.4", "0.2")
    assert gain.method == "paired-t+tango+exact"
    assert 0.13 < float(gain.interval[0]) < 0.15
    assert decided.decision.reasons == ()


def test_the_same_question_has_one_decision(ledger: Ledger, base: str) -> None:
    candidate = model(ledger, "better")
    evaluate(ledger, candidate, outcomes(120))
    first = decide_gate(ledger, candidate, base, STAGE)
    size = ledger.log.size()
    again = decide_gate(ledger, candidate, base, STAGE)
    assert (first.reused, again.reused) == (False, True)
    assert again.event == first.event
    assert ledger.log.size() == size


def test_a_new_report_or_a_new_policy_is_a_new_question(ledger: Ledger, base: str) -> None:
    candidate = model(ledger, "better")
    evaluate(ledger, candidate, outcomes(120))
    first = decide_gate(ledger, candidate, base, STAGE)
    evaluate(ledger, candidate, outcomes(121))
    second = decide_gate(ledger, candidate, base, STAGE)
    set_gate_policy(ledger, STAGE, "held-out", min_gain="0.3")
    third = decide_gate(ledger, candidate, base, STAGE)
    assert len({first.decision.gate_id, second.decision.gate_id, third.decision.gate_id}) == 3
    assert (second.passed, third.passed) == (True, False)


def test_a_copy_fails_and_the_failure_is_recorded(ledger: Ledger, base: str) -> None:
    copy = gated(ledger, "copy", 80, base)
    last = ledger.log.used(f"model:{copy}")[-1].payload
    assert isinstance(last, GateDecided)
    assert last.decision == "fail"
    assert (last.gain.wins, last.gain.losses) == (0, 0)
    assert last.reasons[0].startswith("gain +0.0 points, 95 % interval [-1.9, +1.9] includes 0")


def test_a_model_never_passes_against_itself(ledger: Ledger, base: str) -> None:
    set_gate_policy(ledger, STAGE, "held-out", min_gain="-0.5")
    decided = decide_gate(ledger, base, base, STAGE)
    assert not decided.passed
    assert decided.decision.reasons == ("the candidate is the incumbent itself",)


def test_masked_items_are_no_losses_and_too_many_fail(ledger: Ledger, base: str) -> None:
    few, many = model(ledger, "few"), model(ledger, "many")
    evaluate(ledger, few, [None if i in (0, 199) else i < 120 for i in range(200)])
    evaluate(ledger, many, [None if i < 3 else i < 120 for i in range(200)])
    passed, failed = decide_gate(ledger, few, base, STAGE), decide_gate(ledger, many, base, STAGE)
    assert passed.passed
    assert (passed.decision.gain.items, passed.decision.gain.losses) == (198, 0)
    assert failed.decision.reasons == ("3 of 200 items have no verdict from both models, more than 1%",)


def test_a_report_on_half_the_suite_fails(ledger: Ledger, base: str) -> None:
    half = model(ledger, "half")
    evaluate(ledger, half, [True] * 100)
    decided = decide_gate(ledger, half, base, STAGE)
    assert not decided.passed
    assert "100 of 200 items" in decided.decision.reasons[0]


def test_a_missing_evaluation_names_the_command(ledger: Ledger, base: str) -> None:
    candidate = model(ledger, "unseen")
    with pytest.raises(InputError, match=f"posttrain eval {candidate} --suite held-out"):
        decide_gate(ledger, candidate, base, STAGE)


def test_an_evaluation_on_an_older_suite_does_not_count(ledger: Ledger, base: str) -> None:
    candidate = model(ledger, "older")
    evaluate(ledger, candidate, outcomes(150))
    register_suite(ledger, sha256_digest(b"the suite without its wrong answers"))
    with pytest.raises(InputError, match="has no evaluation on suite held-out"):
        decide_gate(ledger, candidate, base, STAGE)


def test_verdicts_of_different_verifiers_are_not_compared(ledger: Ledger, base: str) -> None:
    candidate = model(ledger, "lenient")
    evaluate(ledger, candidate, outcomes(200), verifier="lenient-answer")
    with pytest.raises(InputError, match="verifier exact-answer, the candidate by lenient-answer"):
        decide_gate(ledger, candidate, base, STAGE)


def test_no_policy_and_an_unknown_suite_are_clear_lines(ledger: Ledger) -> None:
    digest = model(ledger, "base")
    with pytest.raises(InputError, match="posttrain gate policy production --suite"):
        decide_gate(ledger, digest, digest, STAGE)
    with pytest.raises(NotFound, match="suite unknown-suite is not registered; registered suites: held-out"):
        set_gate_policy(ledger, STAGE, "unknown-suite")


def test_a_report_that_contradicts_its_event_is_tampering(ledger: Ledger, base: str) -> None:
    candidate = model(ledger, "boastful")
    evaluate(ledger, candidate, outcomes(60), claimed=180)
    with pytest.raises(TamperFound, match="60 passed"):
        decide_gate(ledger, candidate, base, STAGE)


# --- promotion ---------------------------------------------------------------------------------------------------------


def test_a_passing_model_is_registered_and_promoted_at_once(ledger: Ledger, base: str) -> None:
    candidate = gated(ledger, "better", 120, base)
    done = promote(ledger, candidate, STAGE, reason="passed the gate")
    assert (done.promotion.model, done.promotion.previous, done.promotion.rollback) == (candidate, None, False)
    assert done.event.actor == "ada"
    (registered,) = ledger.log.stream(f"registry/{STAGE}")
    assert isinstance(registered.payload, ModelRegistered)
    assert (registered.payload.number, registered.payload.model) == (1, candidate)
    assert registered.position == done.event.position - 1
    assert promotion(live(ledger, STAGE)).gate_id == registered.payload.gate_id


def test_promoting_the_live_model_again_changes_nothing(ledger: Ledger, base: str) -> None:
    candidate = gated(ledger, "better", 120, base)
    first = promote(ledger, candidate, STAGE, reason="first")
    size = ledger.log.size()
    again = promote(ledger, candidate, STAGE, reason="second")
    assert (again.reused, again.event, ledger.log.size()) == (True, first.event, size)


def test_a_failed_gate_refuses_with_its_interval(ledger: Ledger, base: str) -> None:
    copy = gated(ledger, "copy", 80, base)
    with pytest.raises(
        RuleBroken, match=r"gate g-[0-9a-f]{16} failed: gain \+0\.0 points, 95 % interval \[-1\.9, \+1\.9\]"
    ):
        promote(ledger, copy, STAGE, reason="looks the same")
    assert live(ledger, STAGE) is None
    assert ledger.log.streams("registry/") == []


def test_no_gate_refuses_and_names_the_command(ledger: Ledger, base: str) -> None:
    with pytest.raises(RuleBroken, match=f"no gate decision for model .*run: posttrain gate {base}"):
        promote(ledger, base, STAGE, reason="please")


def test_a_gate_for_another_stage_does_not_count(ledger: Ledger, base: str) -> None:
    candidate = gated(ledger, "better", 120, base)
    with pytest.raises(RuleBroken, match="on stage canary"):
        promote(ledger, candidate, "canary", reason="please")


def test_a_gate_against_a_model_that_serves_no_more_does_not_count(ledger: Ledger, base: str) -> None:
    first, second = gated(ledger, "first", 120, base), gated(ledger, "second", 160, base)
    promote(ledger, first, STAGE, reason="better")
    with pytest.raises(RuleBroken, match=f"posttrain gate {second} --against {first}"):
        promote(ledger, second, STAGE, reason="better than base")
    decide_gate(ledger, second, first, STAGE)
    assert promote(ledger, second, STAGE, reason="better than first").promotion.previous == first


def test_a_newer_failed_gate_of_the_same_pair_takes_the_pass_back(ledger: Ledger, base: str) -> None:
    candidate = gated(ledger, "lucky", 120, base)
    evaluate(ledger, candidate, outcomes(81))
    assert not decide_gate(ledger, candidate, base, STAGE).passed
    with pytest.raises(RuleBroken, match=r"failed: gain \+0\.5 points"):
        promote(ledger, candidate, STAGE, reason="it passed once")


def test_a_gate_under_a_replaced_policy_does_not_count(ledger: Ledger, base: str) -> None:
    candidate = gated(ledger, "better", 120, base)
    set_gate_policy(ledger, STAGE, "held-out", min_gain="0.1")
    with pytest.raises(RuleBroken, match="was replaced since"):
        promote(ledger, candidate, STAGE, reason="it passed the old one")
    decide_gate(ledger, candidate, base, STAGE)
    assert promote(ledger, candidate, STAGE, reason="it passes the new one").promotion.model == candidate


def test_a_quarantined_model_is_not_promoted(ledger: Ledger, base: str) -> None:
    candidate = gated(ledger, "bad", 120, base)
    ledger.record(ModelQuarantined(model=candidate, reason="leaks"))
    with pytest.raises(RuleBroken, match="quarantined"):
        promote(ledger, candidate, STAGE, reason="please")


def test_the_log_refuses_a_promotion_without_a_gate(ledger: Ledger, base: str) -> None:
    with pytest.raises(RuleBroken):
        ledger.record(ModelPromoted(stage=STAGE, model=base, gate_id="g-0123456789abcdef", reason="around the library"))
    assert promotions(ledger) == []


def test_the_log_refuses_a_promotion_by_a_failed_gate(ledger: Ledger, base: str) -> None:
    copy = gated(ledger, "copy", 80, base)
    gate_id = decide_gate(ledger, copy, base, STAGE).decision.gate_id
    with pytest.raises(RuleBroken):
        ledger.record(ModelPromoted(stage=STAGE, model=copy, gate_id=gate_id, reason="around the library"))


def test_a_model_serves_two_stages_by_a_gate_for_each(ledger: Ledger, base: str) -> None:
    candidate = gated(ledger, "better", 120, base)
    set_gate_policy(ledger, "canary", "held-out", min_gain="-0.02")
    decide_gate(ledger, candidate, base, "canary")
    first = promote(ledger, candidate, "canary", reason="try it")
    second = promote(ledger, candidate, STAGE, reason="it is good")
    assert (first.promotion.model, second.promotion.model) == (candidate, candidate)
    assert first.promotion.gate_id != second.promotion.gate_id
    assert ledger.log.streams("registry/") == ["registry/canary", "registry/production"]


def test_registering_a_name_counts_up_and_repeats_nothing(ledger: Ledger, base: str) -> None:
    first, second = gated(ledger, "first", 120, base), gated(ledger, "second", 130, base)
    gates = {m: decide_gate(ledger, m, base, STAGE).decision.gate_id for m in (first, second)}
    one = register(ledger, "arithmetic", first, gates[first])
    two = register(ledger, "arithmetic", second, gates[second])
    assert [e.payload.number for e in (one, two) if isinstance(e.payload, ModelRegistered)] == [1, 2]
    assert register(ledger, "arithmetic", first, gates[first]) == one
    with pytest.raises(InputError, match="is no gate decision about model"):
        register(ledger, "arithmetic", first, gates[second])


# --- rollback ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def chain(ledger: Ledger, base: str) -> list[str]:
    """Three models, promoted one after the other."""
    models: list[str] = []
    for name, passed in (("one", 100), ("two", 130), ("three", 160)):
        models.append(gated(ledger, name, passed, models[-1] if models else base))
        promote(ledger, models[-1], STAGE, reason=name)
    return models


def test_rollback_goes_to_the_predecessor_and_the_next_one_further_back(ledger: Ledger, chain: list[str]) -> None:
    one, two, three = chain
    event = promotion(roll_back(ledger, STAGE, "slow"))
    assert (event.model, event.previous, event.rollback, event.reason) == (two, three, True, "slow")
    assert promotion(roll_back(ledger, STAGE, "still slow")).model == one
    with pytest.raises(RuleBroken, match="has no model before"):
        roll_back(ledger, STAGE, "again")
    assert promotions(ledger) == [one, two, three, two, one]
    assert [promotion(e).model for e in stage_history(ledger, STAGE)] == [one]


def test_rollback_skips_quarantined_models(ledger: Ledger, chain: list[str]) -> None:
    one, two, _ = chain
    ledger.record(ModelQuarantined(model=two, reason="leaks"))
    assert promotion(roll_back(ledger, STAGE, "three is slow")).model == one


def test_a_promotion_after_a_rollback_rolls_back_to_what_served_before_it(ledger: Ledger, chain: list[str]) -> None:
    _, two, _ = chain
    roll_back(ledger, STAGE, "slow")
    four = gated(ledger, "four", 180, two)
    promote(ledger, four, STAGE, reason="fast")
    assert promotion(roll_back(ledger, STAGE, "wrong")).model == two


def test_rollback_keeps_the_gate_that_the_model_passed(ledger: Ledger, chain: list[str]) -> None:
    gate_of_two = promotion(ledger.log.stream(f"stage/{STAGE}")[1]).gate_id
    assert promotion(roll_back(ledger, STAGE, "slow")).gate_id == gate_of_two


def test_a_stage_that_serves_nothing_cannot_roll_back(ledger: Ledger) -> None:
    with pytest.raises(RuleBroken, match="serves nothing"):
        roll_back(ledger, STAGE, "why not")


def test_a_model_that_was_left_by_a_rollback_is_promoted_again_by_its_gate(ledger: Ledger, chain: list[str]) -> None:
    _, two, three = chain
    roll_back(ledger, STAGE, "slow")
    # Its gate was against the very model that serves again, and it still stands.
    assert promote(ledger, three, STAGE, reason="was not slow after all").promotion.previous == two
    registered = [
        e.payload.model for e in ledger.log.stream(f"registry/{STAGE}") if isinstance(e.payload, ModelRegistered)
    ]
    assert registered == chain  # and it keeps the name and number that it has

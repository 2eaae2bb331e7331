"""Verdicts: a reward is a finite number in [0, 1], and a broken machine is of another type."""

from __future__ import annotations

import dataclasses
import json

import pytest

from verifiers.verdict import NoVerdict, Verdict, excerpt


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf"), -0.1, 1.0000001, True, "1", None])
def test_rewards_outside_the_range_are_rejected(reward):
    with pytest.raises(ValueError, match="reward"):
        Verdict("pass", reward)


def test_status_and_reward_agree():
    assert Verdict("pass", 1).reward == 1.0
    assert Verdict("fail", 0.5).reward == 0.5
    with pytest.raises(ValueError, match="a pass that earns 0"):
        Verdict("pass", 0.0)
    with pytest.raises(ValueError, match="a failure that earns 1"):
        Verdict("fail", 1.0)
    with pytest.raises(ValueError, match="an error is a NoVerdict"):
        Verdict("error", 0.0)


def test_an_infrastructure_failure_has_no_reward_to_average():
    broken = NoVerdict("sandbox died", evidence={"signal": "9"})
    assert (broken.status, broken.reward, broken.passed, broken.retryable) == ("error", None, False, True)
    assert not isinstance(broken, Verdict)
    assert json.loads(json.dumps(broken.to_json()))["reason"] == "sandbox died"
    with pytest.raises(TypeError):
        sum([1.0, broken.reward])
    with pytest.raises(ValueError, match="says what failed"):
        NoVerdict("")


def test_evidence_is_short_text_and_frozen():
    given = {"extracted": "5"}
    verdict = Verdict("fail", 0.0, given)
    given["extracted"] = "6"
    assert verdict.evidence == {"extracted": "5"}
    with pytest.raises(TypeError):
        verdict.evidence["extracted"] = "7"
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.reward = 1.0
    for evidence in ({"a": 1}, {1: "a"}, {"a": "x" * 5000}, {"a": "\ud800"}, {str(n): "" for n in range(40)}):
        with pytest.raises(ValueError, match="evidence"):
            Verdict("fail", 0.0, evidence)


def test_an_excerpt_keeps_the_end_and_can_be_encoded():
    assert excerpt("abcdef", 4) == "…def"
    assert excerpt("a\ud800") == "a?"

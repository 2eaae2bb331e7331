"""The gate's statistics against tables, closed forms, slow definitions, real pairs and simulated copies."""

from __future__ import annotations

import csv
import gzip
import math
import random
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import gate
from ledger.gate import Outcomes, Pairs, Policy

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "gsm8k_paired_outcomes.csv.gz"
POLICY = Policy(confidence=Decimal("0.95"), min_gain=Decimal(0), min_items=30)

# --- distributions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "df", "t"),
    [
        (0.975, 1, 12.706205),
        (0.975, 2, 4.302653),
        (0.975, 5, 2.570582),
        (0.975, 10, 2.228139),
        (0.975, 30, 2.042272),
        (0.975, 100, 1.983972),
        (0.95, 49, 1.676551),
        (0.95, 10, 1.812461),
        (0.995, 10, 3.169273),
        (0.999, 5, 5.893430),
        (0.975, 1e6, 1.959966),
    ],
)
def test_student_quantiles_are_those_of_the_tables(p: float, df: float, t: float) -> None:
    assert gate.t_quantile(p, df) == pytest.approx(t, abs=1e-6)
    assert gate.t_quantile(1 - p, df) == pytest.approx(-t, abs=1e-6)


@given(st.floats(-200, 200), st.sampled_from([1, 2, 4]))
def test_student_cdf_equals_its_closed_forms(t: float, df: int) -> None:
    closed = {
        1: 0.5 + math.atan(t) / math.pi,
        2: 0.5 + t / (2 * math.sqrt(2 + t * t)),
        4: 0.5 + 3 / 8 * (t / math.sqrt(1 + t * t / 4)) * (1 - t * t / (12 * (1 + t * t / 4))),
    }
    assert gate.t_cdf(t, df) == pytest.approx(closed[df], abs=1e-12)


@given(st.floats(0.001, 0.999), st.integers(1, 5000))
def test_student_quantile_and_cdf_are_inverse(p: float, df: int) -> None:
    assert gate.t_cdf(gate.t_quantile(p, df), df) == pytest.approx(p, abs=1e-9)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, math.nan])
def test_a_quantile_outside_the_open_unit_interval_is_refused(p: float) -> None:
    with pytest.raises(ValueError):
        gate.t_quantile(p, 10)


@given(st.integers(1, 60), st.integers(0, 60))
def test_mcnemar_equals_the_binomial_sum(wins: int, losses: int) -> None:
    n = wins + losses
    exact = Fraction(sum(math.comb(n, k) for k in range(wins, n + 1)), 2**n)
    assert gate.mcnemar_p(wins, losses) == pytest.approx(float(exact), rel=1e-10)


def test_mcnemar_of_no_discordant_pair_is_one() -> None:
    assert gate.mcnemar_p(0, 0) == 1.0


# --- intervals ---------------------------------------------------------------------------------------------------------


def test_wilson_interval_has_the_published_values() -> None:
    # Newcombe, Statist. Med. 17:857 (1998), table I, method 3.
    published = {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }
    for (passed, items), expected in published.items():
        assert gate.wilson_interval(passed, items, 0.95) == pytest.approx(expected, abs=5e-5)


def test_wilson_interval_stays_inside_the_unit_interval() -> None:
    assert gate.wilson_interval(0, 0, 0.95) == (0.0, 1.0)
    assert gate.wilson_interval(0, 7, 0.95).low == 0.0
    assert gate.wilson_interval(7, 7, 0.95).high == 1.0


def test_tango_interval_has_the_published_values() -> None:
    # Fagerland, Lydersen and Laake, Statist. Med. 33:2850 (2014): airway data, 1 and 7 discordant of 21.
    assert gate.tango_interval(1, 7, 21, 0.95) == pytest.approx((-0.517, -0.026), abs=5e-4)
    # R PropCIs::scoreci.mp(25, 28, 618, 0.90).
    assert gate.tango_interval(28, 25, 618, 0.90) == pytest.approx((-0.0148, 0.0247), abs=5e-5)


def test_tango_interval_of_no_discordant_pair_has_a_width() -> None:
    z2 = NormalDist().inv_cdf(0.975) ** 2
    assert gate.tango_interval(0, 0, 50, 0.95) == pytest.approx((-z2 / (50 + z2), z2 / (50 + z2)), abs=1e-12)


def test_tango_interval_of_only_wins_ends_at_one() -> None:
    assert gate.tango_interval(50, 0, 50, 0.95).high == 1.0
    assert gate.tango_interval(0, 50, 50, 0.95).low == -1.0


counts = st.integers(2, 300).flatmap(
    lambda n: st.integers(0, n).flatmap(lambda w: st.tuples(st.just(w), st.integers(0, n - w), st.just(n)))
)


@given(counts, st.floats(-0.95, 0.95))
def test_tango_score_uses_the_maximum_likelihood_under_the_hypothesis(case: tuple[int, int, int], d: float) -> None:
    """The closed form of q against a search for the likelihood's maximum."""
    wins, losses, n = case

    def log_likelihood(q: float) -> float:
        cells = ((wins, q + d), (losses, q), (n - wins - losses, 1 - 2 * q - d))
        return sum(count * math.log(p) if p > 0 else -math.inf for count, p in cells if count)

    q = _maximise(log_likelihood, max(0.0, -d), (1 - d) / 2)
    variance = n * (2 * q + d * (1 - d))
    if variance > 1e-6:
        expected = (wins - losses - n * d) / math.sqrt(variance)
        assert gate.tango_score(wins, losses, n, d) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def _maximise(f: Callable[[float], float], low: float, high: float) -> float:
    """Golden-section search for the maximum of a concave function."""
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(120):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if f(left) < f(right):
            low = left
        else:
            high = right
    return (low + high) / 2


@given(counts, st.sampled_from([0.8, 0.95, 0.99]))
def test_every_interval_holds_the_estimate_and_mirrors(case: tuple[int, int, int], confidence: float) -> None:
    wins, losses, n = case
    for interval in (gate.tango_interval, gate.paired_t_interval, gate.conditional_interval):
        low, high = interval(wins, losses, n, confidence)
        assert -1 <= low <= (wins - losses) / n + 1e-12
        assert (wins - losses) / n - 1e-12 <= high <= 1
        assert interval(losses, wins, n, confidence) == pytest.approx((-high, -low), abs=1e-9)


@given(counts)
def test_conditional_interval_excludes_zero_exactly_when_mcnemar_rejects(case: tuple[int, int, int]) -> None:
    wins, losses, n = case
    assert (gate.conditional_interval(wins, losses, n, 0.95).low > 0) == (gate.mcnemar_p(wins, losses) < 0.025)


@given(counts)
def test_the_closed_t_interval_is_that_of_the_differences(case: tuple[int, int, int]) -> None:
    wins, losses, n = case
    mean, error = gate.paired_difference([1.0] * wins + [-1.0] * losses + [0.0] * (n - wins - losses))
    low, high = gate.paired_t_interval(wins, losses, n, 0.9)
    half = gate.t_quantile(0.95, n - 1) * error
    assert (low, high) == pytest.approx((max(-1.0, mean - half), min(1.0, mean + half)), abs=1e-12)


def test_one_difference_has_no_standard_error() -> None:
    with pytest.raises(ValueError):
        gate.paired_difference([1.0])


# --- real pairs --------------------------------------------------------------------------------------------------------


def real_outcomes(model: str) -> dict[str, bool | None]:
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is not here")
    with gzip.open(SHARED, "rt", encoding="utf-8") as lines:
        return {row["question_sha256"]: row[model] == "1" for row in csv.DictReader(lines)}


def test_the_real_pair_has_the_known_gain() -> None:
    candidate, incumbent = real_outcomes("6b_verification"), real_outcomes("175b_finetuning")
    pairs = gate.join(candidate, incumbent)
    assert (pairs.items, pairs.wins, pairs.losses, pairs.excluded) == (1319, 209, 152, 0)
    mean, error = gate.paired_difference([float(candidate[i] or 0) - float(incumbent[i] or 0) for i in candidate])
    assert (mean, error) == pytest.approx((0.0432, 0.0144), abs=5e-5)
    one_sided = gate.decide(candidate, incumbent, Policy(Decimal("0.90"), Decimal(0), 100))
    assert (one_sided.outcome, one_sided.gain.method) == ("pass", "paired-t")
    assert float(one_sided.gain.low) == pytest.approx(0.0196, abs=5e-5)
    assert gate.mcnemar_p(209, 152) == pytest.approx(0.0016, abs=5e-5)


def test_the_real_pair_fails_a_larger_minimum_gain_and_the_reverse() -> None:
    candidate, incumbent = real_outcomes("6b_verification"), real_outcomes("175b_finetuning")
    two_points = gate.decide(candidate, incumbent, Policy(Decimal("0.95"), Decimal("0.02"), 100))
    assert two_points.reasons == (
        "gain +4.3 points, 95 % interval [+1.5, +7.1] does not lie above the minimum gain of +2 points",
    )
    reverse = gate.decide(incumbent, candidate, POLICY)
    assert reverse.reasons == ("gain -4.3 points, 95 % interval [-7.1, -1.5] lies below 0",)


# --- the decision ------------------------------------------------------------------------------------------------------


def outcomes(passed: int, failed: int, start: int = 0) -> dict[str, bool | None]:
    return {f"item-{start + i}": i < passed for i in range(passed + failed)}


@pytest.mark.parametrize("items", [30, 50, 1000, 100_000])
def test_an_exact_copy_does_not_pass(items: int) -> None:
    copy = outcomes(items * 98 // 100, items - items * 98 // 100)
    decision = gate.decide(copy, dict(copy), POLICY)
    assert decision.outcome == "fail"
    assert decision.gain.low < 0 < decision.gain.high
    assert "interval [" in decision.reasons[0]
    assert decision.reasons[0].endswith("includes 0")


def test_an_exact_copy_of_few_items_does_not_pass_a_non_inferiority_margin() -> None:
    copy = outcomes(49, 1)
    margin = Policy(Decimal("0.95"), Decimal("-0.02"), 30)
    assert gate.decide(copy, copy, margin).outcome == "fail"
    many = outcomes(980, 20)
    assert gate.decide(many, many, margin).outcome == "pass"


def test_the_bound_must_exceed_the_minimum_strictly() -> None:
    candidate, incumbent = outcomes(700, 300), outcomes(600, 400)
    low = gate.decide(candidate, incumbent, POLICY).gain.low
    assert gate.decide(candidate, incumbent, Policy(Decimal("0.95"), low, 30)).outcome == "fail"
    below = low - Decimal("0.000001")
    assert gate.decide(candidate, incumbent, Policy(Decimal("0.95"), below, 30)).outcome == "pass"


def test_rounding_is_outwards_so_that_the_recorded_bound_repeats_the_decision() -> None:
    pairs = Pairs(both=500, wins=160, losses=100, neither=240, total=1000)
    raw, gain = gate.paired_t_interval(160, 100, 1000, 0.95), gate.paired_gain(pairs, 0.95)
    assert Decimal(raw.low) - Decimal("0.000001") <= gain.low <= Decimal(raw.low)
    assert Decimal(raw.high) <= gain.high <= Decimal(raw.high) + Decimal("0.000001")


def test_items_are_joined_by_digest_not_by_place() -> None:
    candidate: Outcomes = {"a": True, "b": False, "c": True}
    incumbent: Outcomes = {"c": False, "a": True, "b": True}
    pairs = gate.join(candidate, incumbent)
    assert (pairs.both, pairs.wins, pairs.losses, pairs.neither, pairs.excluded) == (1, 1, 1, 0, 0)


def test_missing_and_masked_items_are_excluded_and_one_percent_is_the_limit() -> None:
    base = outcomes(400, 600)
    better: dict[str, bool | None] = {item: i < 600 for i, item in enumerate(base)}
    masked = {item: None if i < 5 else better[item] for i, item in enumerate(base)}
    missing = {item: passed for i, (item, passed) in enumerate(base.items()) if i < 995}
    at_limit = gate.decide(masked, missing, POLICY, suite_items=1000)
    assert (at_limit.outcome, at_limit.pairs.excluded, at_limit.pairs.items) == ("pass", 10, 990)
    above = gate.decide(masked, {k: v for k, v in missing.items() if k != "item-500"}, POLICY, suite_items=1000)
    assert above.outcome == "fail"
    assert above.reasons == ("11 of 1000 items have no verdict from both models, more than 1%",)


def test_items_that_neither_report_mentions_are_excluded() -> None:
    decision = gate.decide(outcomes(90, 10), outcomes(50, 50), POLICY, suite_items=200)
    assert decision.pairs.excluded == 100
    assert decision.outcome == "fail"


def test_too_few_items_fail_whatever_the_gain() -> None:
    decision = gate.decide(outcomes(29, 0), outcomes(0, 29), POLICY)
    assert decision.gain.low > 0
    assert decision.reasons == ("29 paired items are fewer than the 30 that the policy asks for",)


def test_no_item_and_one_item_know_nothing() -> None:
    for n in (0, 1):
        decision = gate.decide(outcomes(n, 0), outcomes(0, n), Policy(Decimal("0.95"), Decimal(0), 0))
        assert (decision.outcome, decision.gain.low, decision.gain.high) == ("fail", Decimal(-1), Decimal(1))


def test_only_wins_keep_a_width() -> None:
    gain = gate.decide(outcomes(100, 0), outcomes(0, 100), POLICY).gain
    assert gain.method == "paired-t+tango+exact"
    assert Decimal("0.9") < gain.low < 1


@settings(max_examples=60)
@given(counts)
def test_a_further_win_instead_of_a_loss_never_turns_a_pass_into_a_fail(case: tuple[int, int, int]) -> None:
    wins, losses, n = case
    if losses == 0:
        return
    before = gate.paired_gain(Pairs(n - wins - losses, wins, losses, 0, n), 0.95)
    after = gate.paired_gain(Pairs(n - wins - losses, wins + 1, losses - 1, 0, n), 0.95)
    if before.low > 0:
        assert after.low > 0


# --- false promotions --------------------------------------------------------------------------------------------------


def false_promotion_rate(items: int, discordance: float) -> float:
    """Exact: over all counts of discordant pairs, of which a copy wins each with probability one half."""
    rate = 0.0
    for m in range(items + 1):
        weight = _binomial(items, m, discordance)
        if weight > 1e-12:
            rate += weight * sum(_binomial(m, w, 0.5) for w in range(_first_pass(items, m), m + 1))
    return rate


def _first_pass(items: int, m: int) -> int:
    low, high = m // 2, m + 1
    while low < high:
        wins = (low + high) // 2
        if gate.paired_gain(Pairs(items - m, wins, m - wins, 0, items), 0.95).low > 0:
            high = wins
        else:
            low = wins + 1
    return low


def _binomial(n: int, k: int, p: float) -> float:
    log_choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log_choose + k * math.log(p) + (n - k) * math.log1p(-p))


@pytest.mark.parametrize(
    ("items", "discordance"), [(50, 0.02), (50, 0.2), (50, 0.42), (100, 0.05), (200, 0.02), (200, 0.1), (1000, 0.02)]
)
def test_a_copy_is_promoted_at_most_at_the_nominal_rate_when_few_pairs_are_discordant(
    items: int, discordance: float
) -> None:
    assert false_promotion_rate(items, discordance) <= 0.025


@pytest.mark.parametrize(("items", "discordance"), [(200, 0.4), (500, 0.15), (500, 0.3)])
def test_a_copy_is_promoted_near_the_nominal_rate_when_many_are(items: int, discordance: float) -> None:
    assert 0.015 <= false_promotion_rate(items, discordance) <= 0.027


def test_simulated_copies_are_promoted_at_most_at_the_nominal_rate() -> None:
    """Two samplings of one model, p around 0.7, 50 items: "any gain" promotes 45 % of them."""
    rng = random.Random(20261129)
    trials, any_gain, promoted = 1500, 0, 0
    for _ in range(trials):
        chances = [min(0.99, max(0.01, rng.betavariate(2, 0.86))) for _ in range(50)]
        candidate = {str(i): rng.random() < p for i, p in enumerate(chances)}
        incumbent = {str(i): rng.random() < p for i, p in enumerate(chances)}
        decision = gate.decide(candidate, incumbent, POLICY)
        any_gain += decision.gain.estimate > 0
        promoted += decision.outcome == "pass"
    assert any_gain / trials > 0.35
    assert promoted / trials <= 0.025


def test_a_real_gain_of_fourteen_points_passes_with_a_thousand_items() -> None:
    pairs = Pairs(both=540, wins=195, losses=55, neither=210, total=1000)
    gain = gate.paired_gain(pairs, 0.95)
    assert gain.estimate == pytest.approx(0.14)
    assert gain.low > Decimal("0.10")

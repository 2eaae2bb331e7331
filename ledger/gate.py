"""Statistics of the promotion gate: did the candidate gain, by pairs, more than the policy asks for?

Pure functions over counts and outcomes; standard library only. The main flow is `decide`: join by item, make the paired
interval, compare its lower bound with the policy. Everything below is a piece of that.

The paired interval is Student's t over the differences (`method` `paired-t`). With few items or few discordant pairs, t
is wrong in the dangerous direction: with no discordant pair its standard error is 0, and an exact copy would look measured
to infinite precision. There the interval is the widest of three (`paired-t+tango+exact`): t, Tango's score interval, which
is right at zero discordance, and the exact conditional one, which holds McNemar's error rate whatever the discordance is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from statistics import NormalDist
from typing import Literal, NamedTuple

FEW_ITEMS = 30
# From 50 discordant pairs on, t promotes a copy at most 2.7 % of the time where 2.5 % is nominal (tests/ledger/test_gate.py).
FEW_DISCORDANT = 50
FEW_OTHERS = 10  # differences that are not the commonest of +1 and -1: with none, the standard error is 0 again
MAX_EXCLUDED = Decimal("0.01")
"""More than this share of items without a verdict in both reports fails the gate: what is missing may not be random."""

METHOD_T = "paired-t"
METHOD_WIDEST = "paired-t+tango+exact"

Outcomes = Mapping[str, bool | None]
"""Item digest to: passed, failed, or `None` for an infrastructure failure (masked, never counted as wrong)."""


class Interval(NamedTuple):
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Policy:
    """What a candidate must show. `confidence` is that of the two-sided interval, in (0, 1); gains are in [-1, 1]."""

    confidence: Decimal
    min_gain: Decimal
    min_items: int


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two models' outcomes joined by item. `total` counts the suite's items, `excluded` those without a pair."""

    both: int  # both passed
    wins: int  # only the candidate passed
    losses: int  # only the incumbent passed
    neither: int
    total: int

    @property
    def items(self) -> int:
        return self.both + self.wins + self.losses + self.neither

    @property
    def excluded(self) -> int:
        return self.total - self.items

    @property
    def discordant(self) -> int:
        return self.wins + self.losses


@dataclass(frozen=True, slots=True)
class Gain:
    """The paired difference in accuracy and its interval, rounded outwards to 6 decimals."""

    estimate: float
    low: Decimal
    high: Decimal
    method: str


@dataclass(frozen=True, slots=True)
class Decision:
    outcome: Literal["pass", "fail"]
    pairs: Pairs
    gain: Gain
    reasons: tuple[str, ...]  # empty when it passed


def decide(candidate: Outcomes, incumbent: Outcomes, policy: Policy, suite_items: int = 0) -> Decision:
    """Whether the candidate passes: every reason why not, or none.

    `suite_items` is the number of items that the suite has; items that neither report mentions count as excluded. The
    comparison uses the rounded bound, so a reader of the recorded decision can repeat it.
    """
    pairs = join(candidate, incumbent, suite_items)
    gain = paired_gain(pairs, float(policy.confidence))
    reasons: list[str] = []
    if pairs.excluded > MAX_EXCLUDED * pairs.total:
        reasons.append(
            f"{pairs.excluded} of {pairs.total} items have no verdict from both models, more than {MAX_EXCLUDED:.0%}"
        )
    if pairs.items < policy.min_items:
        reasons.append(f"{pairs.items} paired items are fewer than the {policy.min_items} that the policy asks for")
    if not gain.low > policy.min_gain:
        reasons.append(describe(gain, policy))
    return Decision("fail" if reasons else "pass", pairs, gain, tuple(reasons))


def describe(gain: Gain, policy: Policy) -> str:
    """The gain and its interval in points, and how it stands to the policy."""
    text = (
        f"gain {100 * gain.estimate:+.1f} points, {100 * float(policy.confidence):g} % interval "
        f"[{100 * float(gain.low):+.1f}, {100 * float(gain.high):+.1f}]"
    )
    if gain.low > policy.min_gain:
        return f"{text} is above the minimum gain of {100 * float(policy.min_gain):+g} points"
    if policy.min_gain == 0:
        relation = "includes 0" if gain.high >= 0 else "lies below 0"
    else:
        relation = f"does not lie above the minimum gain of {100 * float(policy.min_gain):+g} points"
    return f"{text} {relation}"


def join(candidate: Outcomes, incumbent: Outcomes, suite_items: int = 0) -> Pairs:
    """Pairs by item. An item that either report lacks or masks is left out of the comparison and counted as excluded."""
    counts = {(True, True): 0, (True, False): 0, (False, True): 0, (False, False): 0}
    for item, passed in candidate.items():
        other = incumbent.get(item)
        if passed is not None and other is not None:
            counts[(passed, other)] += 1
    total = max(suite_items, len(candidate.keys() | incumbent.keys()))
    return Pairs(counts[(True, True)], counts[(True, False)], counts[(False, True)], counts[(False, False)], total)


def paired_gain(pairs: Pairs, confidence: float) -> Gain:
    """The paired difference and its two-sided interval; [-1, 1] when fewer than two items are paired."""
    n = pairs.items
    if n < 2:
        return Gain((pairs.wins - pairs.losses) / n if n else 0.0, Decimal(-1), Decimal(1), METHOD_WIDEST)
    intervals = [paired_t_interval(pairs.wins, pairs.losses, n, confidence)]
    method = METHOD_T
    if n < FEW_ITEMS or pairs.discordant < FEW_DISCORDANT or n - max(pairs.wins, pairs.losses) < FEW_OTHERS:
        method = METHOD_WIDEST
        intervals.append(tango_interval(pairs.wins, pairs.losses, n, confidence))
        intervals.append(conditional_interval(pairs.wins, pairs.losses, n, confidence))
    low, high = min(i.low for i in intervals), max(i.high for i in intervals)
    step = Decimal("0.000001")
    return Gain(
        (pairs.wins - pairs.losses) / n,
        Decimal(low).quantize(step, ROUND_FLOOR),
        Decimal(high).quantize(step, ROUND_CEILING),
        method,
    )


# --- intervals ---------------------------------------------------------------------------------------------------------


def paired_difference(differences: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error of paired differences, SE = sqrt(sum (d - mean)^2 / (n (n - 1))).

    Raises:
        ValueError: fewer than two differences.
    """
    n = len(differences)
    if n < 2:
        raise ValueError(f"{n} differences have no standard error; two are needed")
    mean = math.fsum(differences) / n
    return mean, math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (n * (n - 1)))


def paired_t_interval(wins: int, losses: int, items: int, confidence: float) -> Interval:
    """Student's t over the differences +1 (`wins`), -1 (`losses`) and 0 (the rest), cut to [-1, 1].

    The closed form of `paired_difference` for such differences. `items` is at least 2.
    """
    mean = (wins - losses) / items
    squares = wins + losses - (wins - losses) ** 2 / items
    half = t_quantile((1 + confidence) / 2, items - 1) * math.sqrt(max(0.0, squares) / (items * (items - 1)))
    return Interval(max(-1.0, mean - half), min(1.0, mean + half))


def wilson_interval(passed: int, items: int, confidence: float) -> Interval:
    """Wilson's score interval for one accuracy (Wilson 1927); [0, 1] when there is no item."""
    if items == 0:
        return Interval(0.0, 1.0)
    z2 = NormalDist().inv_cdf((1 + confidence) / 2) ** 2
    centre = (passed + z2 / 2) / (items + z2)
    half = math.sqrt(z2 * (passed * (items - passed) / items + z2 / 4)) / (items + z2)
    low = 0.0 if passed == 0 else max(0.0, centre - half)
    return Interval(low, 1.0 if passed == items else min(1.0, centre + half))


def tango_interval(wins: int, losses: int, items: int, confidence: float) -> Interval:
    """Tango's score interval for a difference of paired proportions (Statist. Med. 17:891, 1998). `items` is at least 1."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    mean = (wins - losses) / items
    low = (
        -1.0
        if wins == 0 and losses == items
        else _bisect(lambda d: tango_score(wins, losses, items, d) - z, -1.0, mean)
    )
    high = 1.0 if wins == items else _bisect(lambda d: tango_score(wins, losses, items, d) + z, mean, 1.0)
    return Interval(low, high)


def tango_score(wins: int, losses: int, items: int, difference: float) -> float:
    """Tango's statistic for the hypothesis that the true difference is `difference`; it falls as `difference` grows.

    `q` is the maximum-likelihood probability of a loss under the hypothesis, the positive root of A q^2 + B q + C.
    """
    n, d = items, difference
    a, b, c = 2.0 * n, (2 * n - wins + losses) * d - wins - losses, -losses * d * (1 - d)
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    # The subtraction cancels where b > 0; the other form of the same root does not.
    q = (root - b) / (2 * a) if b <= 0 else (-2 * c / (root + b) if root + b > 0 else 0.0)
    variance = n * (2 * q + d * (1 - d))
    numerator = wins - losses - n * d
    if variance <= 0:
        return 0.0 if numerator == 0 else math.copysign(math.inf, numerator)
    return numerator / math.sqrt(variance)


def conditional_interval(wins: int, losses: int, items: int, confidence: float) -> Interval:
    """The exact interval for the share of wins among the discordant pairs (Clopper and Pearson 1934), as a difference.

    Its lower bound exceeds 0 exactly when McNemar's one-sided p is below (1 - confidence) / 2. It takes the share of
    discordant pairs as it was seen, so it is no interval by itself: [0, 0] when there is none.
    """
    m = wins + losses
    if m == 0:
        return Interval(0.0, 0.0)
    tail = (1 - confidence) / 2
    low = 0.0 if wins == 0 else _bisect(lambda x: beta_cdf(wins, losses + 1, x) - tail, 0.0, 1.0)
    high = 1.0 if losses == 0 else _bisect(lambda x: beta_cdf(wins + 1, losses, x) - (1 - tail), 0.0, 1.0)
    return Interval((2 * low - 1) * m / items, (2 * high - 1) * m / items)


def mcnemar_p(wins: int, losses: int) -> float:
    """Exact one-sided McNemar: P(Bin(wins + losses, 1/2) >= wins); 1 when there is no discordant pair."""
    return 1.0 if wins == 0 else beta_cdf(wins, losses + 1, 0.5)


# --- distributions -----------------------------------------------------------------------------------------------------


def t_cdf(t: float, df: float) -> float:
    """Student's t distribution function with `df` > 0 degrees of freedom."""
    if t == 0:
        return 0.5
    # Of the two complementary arguments the smaller is the accurate one.
    tail = (
        0.5 * beta_cdf(df / 2, 0.5, df / (df + t * t))
        if t * t > df
        else 0.5 - 0.5 * beta_cdf(0.5, df / 2, t * t / (df + t * t))
    )
    return 1 - tail if t > 0 else tail


def t_quantile(p: float, df: float) -> float:
    """The t with `t_cdf(t, df) == p`, for 0 < p < 1.

    Raises:
        ValueError: `p` outside (0, 1) or `df` not positive.
    """
    if not 0 < p < 1 or df <= 0:
        raise ValueError(f"no Student quantile for p={p}, df={df}; p must lie in (0, 1) and df be positive")
    if p < 0.5:
        return -t_quantile(1 - p, df)
    high = 1.0
    while t_cdf(high, df) < p:
        high *= 2
    return _bisect(lambda t: t_cdf(t, df) - p, 0.0, high)


def beta_cdf(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), a and b > 0, by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1 - front * _beta_fraction(b, a, 1 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Lentz's method, as modified by Thompson and Barnett (J. Comput. Phys. 64:490, 1986)."""
    tiny = 1e-300
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 100_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_zero(1 + term * d, tiny)
            c = _away_from_zero(1 + term / c, tiny)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            return value
    raise ArithmeticError(f"the continued fraction of I_x({a}, {b}) did not converge at x={x}")


def _away_from_zero(value: float, tiny: float) -> float:
    return tiny if abs(value) < tiny else value


def _bisect(f: Callable[[float], float], low: float, high: float) -> float:
    """Where the monotone `f` changes its sign between `low` and `high`, to the last bit."""
    rising = f(high) > f(low)
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if (f(middle) < 0) == rising:
            low = middle
        else:
            high = middle

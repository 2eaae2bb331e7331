"""The two outcomes of a verification, as different types: a judgement of the answer, and no judgement at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

MAX_EVIDENCE_KEYS = 32
MAX_EVIDENCE_CHARS = 4000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the answer deserves.

    `reward` is finite and in [0, 1]; a pass earns more than 0 and a failure less than 1 (partial credit). `evidence` says why,
    in a few short texts; it never holds the gold answer, so that it may be shown to whoever wrote the completion.

    Raises:
        ValueError: a reward that is NaN, infinite, outside [0, 1] or at odds with the status; evidence that is not short text.
    """

    status: Literal["pass", "fail"]
    reward: float
    evidence: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in ("pass", "fail"):
            raise ValueError(
                f"status {self.status!r} is not a verdict; expected 'pass' or 'fail' (an error is a NoVerdict)"
            )
        reward = self.reward
        if isinstance(reward, bool) or not isinstance(reward, (int, float)):
            raise ValueError(f"reward {reward!r} is not a number")
        if not (math.isfinite(reward) and 0 <= reward <= 1):
            raise ValueError(f"reward {reward!r} is not a finite number in [0, 1]")
        if self.status == "pass" and reward == 0:
            raise ValueError("a pass that earns 0 is no pass")
        if self.status == "fail" and reward == 1:
            raise ValueError("a failure that earns 1 is no failure")
        object.__setattr__(self, "reward", float(reward))
        object.__setattr__(self, "evidence", _checked(self.evidence))

    @property
    def passed(self) -> bool:
        return self.status == "pass"

    def to_json(self) -> dict[str, Any]:
        return {"status": self.status, "reward": self.reward, "evidence": dict(self.evidence)}


@dataclass(frozen=True, slots=True)
class NoVerdict:
    """The machinery failed (a sandbox died, a critic did not answer); nothing is known about the answer.

    It has no reward: whoever reads one gets `None`, which no loss can average. Retried, masked, and counted apart.
    """

    reason: str
    retryable: bool = True
    evidence: Mapping[str, str] = field(default_factory=dict)
    status: Literal["error"] = field(default="error", init=False)
    reward: None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError("a NoVerdict says what failed")
        object.__setattr__(self, "evidence", _checked(self.evidence))

    @property
    def passed(self) -> bool:
        return False

    def to_json(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "reward": None,
            "reason": self.reason,
            "retryable": self.retryable,
            "evidence": dict(self.evidence),
        }


def excerpt(text: str, limit: int = 200) -> str:
    """`text` as evidence: the end of it, since answers stand there, with lone surrogates replaced."""
    shown = text if len(text) <= limit else "…" + text[-(limit - 1) :]
    return shown.encode("utf-8", "replace").decode("utf-8")


def _checked(evidence: Mapping[str, str]) -> Mapping[str, str]:
    """A read-only copy that can be stored as JSON."""
    copy: dict[Any, Any] = dict(evidence)  # typed as text, and checked: it comes from plug-ins
    if len(copy) > MAX_EVIDENCE_KEYS:
        raise ValueError(f"{len(copy)} pieces of evidence; at most {MAX_EVIDENCE_KEYS}")
    for key, value in copy.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"evidence {key!r}: {value!r} is not text")
        if len(key) + len(value) > MAX_EVIDENCE_CHARS:
            raise ValueError(f"evidence {key[:40]!r} has {len(value)} characters; at most {MAX_EVIDENCE_CHARS}")
        try:
            (key + value).encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"evidence {key!a} holds a lone surrogate") from None
    return MappingProxyType(copy)

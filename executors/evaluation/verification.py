"""The verifier that a suite names, and what it says of completions.

Verifiers are another package that nothing here may import: they are found by entry point, this project's own also in a
source tree that was not installed. An item without a verdict (the machinery failed) is masked: it counts neither for nor
against the model, and more than `MAX_MASKED` of them make no report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, Protocol, cast

from executors.evaluation.suites import Item
from ledger.canonical import decimal_string
from ledger.errors import InfrastructureError, InputError, MissingExtra, NotFound

GROUP = "posttrain.verifiers"

FIRST_PARTY = {"exact-answer": "verifiers.answers:ExactAnswer"}
"""This project's own; an entry point cannot take one of these names."""

MAX_MASKED = Fraction(1, 100)
MAX_TRIES = 3


class Verifier(Protocol):
    """As much of a verifier as an evaluation needs; whatever `verify` returns has `status`, `reward` and perhaps `reason`."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def digest(self) -> str: ...

    def verify(self, task: Mapping[str, object], completion: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class Judged:
    """One item's verdict. `reward` is `None` when there is none; `reason` then says what failed."""

    item: str
    completion: str
    status: Literal["pass", "fail", "error"]
    reward: str | None
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"item": self.item, "completion": self.completion, "status": self.status, "reward": self.reward}


def load_verifier(name: str, config: Mapping[str, str]) -> Verifier:
    """The verifier called `name`, configured.

    Raises:
        NotFound: nothing has that name.
        InputError: two distributions claim it, it cannot be loaded, or it refuses its configuration.
        MissingExtra: its entry point names an extra that is not installed.
    """
    entry = _entry(name)
    try:
        made = cast("Callable[..., Any]", getattr(import_module(entry.module), entry.attr))(**config)
    except ModuleNotFoundError as error:
        if entry.extras:
            raise MissingExtra(f"verifier {name}", entry.extras[0]) from None
        raise InputError(f"verifier {name} ({entry.value}) needs the module {error.name}; install it") from error
    except (ImportError, AttributeError, TypeError) as error:
        raise InputError(f"verifier {name} ({entry.value}) cannot be loaded: {error}") from error
    if not all(hasattr(made, part) for part in ("name", "version", "digest", "verify")):
        raise InputError(
            f"verifier {name} ({entry.value}): {type(made).__name__} does not follow the verifiers' protocol"
        )
    return cast("Verifier", made)


def judge(verifier: Verifier, items: Sequence[Item], completions: Mapping[str, str]) -> list[Judged]:
    """A verdict for each item, in the order of the suite. `completions` maps item digests to texts.

    Raises:
        InfrastructureError: more than one in a hundred items got no verdict.
        InputError: the verifier cannot judge an item of this suite at all.
    """
    judged = [_judge(verifier, item, completions[item.digest]) for item in items]
    masked = [one for one in judged if one.status == "error"]
    if len(masked) > MAX_MASKED * len(items):
        raise InfrastructureError(
            f"verifier {verifier.name}@{verifier.version} gave no verdict on {len(masked)} of {len(items)} items, more than "
            f"1 %; nothing is reported. The first reason: {masked[0].reason}. Mend that, then evaluate again: the "
            "completions are kept"
        )
    return judged


def _judge(verifier: Verifier, item: Item, completion: str) -> Judged:
    """Try a failed machine again; what is no verdict after that is masked."""
    reason = ""
    for _ in range(MAX_TRIES):
        try:
            verdict = verifier.verify({"prompt": item.prompt, "answer": item.answer}, completion)
        except InputError as error:
            raise InputError(f"item {item.digest}: {error}") from error
        except Exception as error:  # it broke its promise not to raise: a fault of the machinery, not of the answer
            reason = f"{type(error).__name__}: {error}"
            break
        if verdict.status in ("pass", "fail"):
            return Judged(item.digest, completion, verdict.status, decimal_string(verdict.reward))
        reason = str(getattr(verdict, "reason", "no reason given"))
        if not getattr(verdict, "retryable", False):
            break
    return Judged(item.digest, completion, "error", None, reason)


def _entry(name: str) -> EntryPoint:
    if name in FIRST_PARTY:
        return EntryPoint(name, FIRST_PARTY[name], GROUP)
    found = {entry.value: entry for entry in entry_points(group=GROUP, name=name)}
    if not found:
        known = sorted(FIRST_PARTY.keys() | entry_points(group=GROUP).names)
        raise NotFound(f"no verifier is called {name!r}; known: {', '.join(known)}")
    if len(found) > 1:
        raise InputError(
            f"verifier {name!r} is declared more than once ({', '.join(sorted(found))}); uninstall all but one"
        )
    return next(iter(found.values()))

"""Errors of the ledger and of everything that speaks to a user.

    PosttrainError                 exit 4 unless a subclass says otherwise
    ├── CheckFailed                exit 1: a check said no (gate, leak, tamper)
    │   ├── LeakFound              a dataset overlaps a registered held-out suite
    │   └── TamperFound            stored bytes disagree with their digest or the log
    ├── InputError                 exit 2: wrong usage or input
    │   ├── CanonicalError         a value that has no canonical bytes
    │   ├── NotFound               a name or digest that nothing in the ledger has
    │   ├── MissingExtra           an optional dependency is not installed
    │   └── NewerLedger            written by a newer version than this one reads
    ├── RefusedError               exit 3: a rule or a permission refuses it
    │   ├── RuleBroken             an append that breaks an invariant
    │   └── BudgetExceeded         the projection exceeds what the budget has left
    ├── Conflict                   exit 3: a second writer was first
    │   ├── StaleVersion           the stream moved on since it was read
    │   └── KeyReused              one idempotency key, two different bodies
    └── InfrastructureError        exit 4: disk, network, process or sandbox failed

A message says what was wrong, with the value, and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class PosttrainError(Exception):
    """Base of every error that a boundary turns into one line and an exit code."""

    exit_code: ClassVar[int] = 4


class CheckFailed(PosttrainError):
    exit_code = 1


class LeakFound(CheckFailed):
    pass


class TamperFound(CheckFailed):
    pass


class InputError(PosttrainError):
    exit_code = 2


class CanonicalError(InputError):
    pass


class NotFound(InputError):
    pass


class MissingExtra(InputError):
    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'posttrain[{extra}]'")
        self.extra = extra


class NewerLedger(InputError):
    pass


class RefusedError(PosttrainError):
    exit_code = 3


class RuleBroken(RefusedError):
    pass


class BudgetExceeded(RefusedError):
    pass


class Conflict(PosttrainError):
    exit_code = 3


class StaleVersion(Conflict):
    pass


class KeyReused(Conflict):
    pass


class InfrastructureError(PosttrainError):
    exit_code = 4

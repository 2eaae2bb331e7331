"""Errors of the verifiers. None of them is a verdict.

ledger.errors.InputError
├── InvalidTask        the task cannot be judged by this verifier: no gold answer, or not one that it reads
├── InvalidConfig      a configuration key or value that the verifier does not have
└── UnknownVerifier    no verifier has that name (a ledger.errors.NotFound)
"""

from __future__ import annotations

from ledger.errors import InputError, NotFound


class InvalidTask(InputError):
    pass


class InvalidConfig(InputError):
    pass


class UnknownVerifier(NotFound):
    pass

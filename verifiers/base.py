"""The protocol of a verifier, on one page."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Protocol, runtime_checkable

from ledger.canonical import canonical_digest
from ledger.digest import sha256_digest
from verifiers.verdict import NoVerdict, Verdict

Task = Mapping[str, object]
"""What is to be solved, as plain data: `prompt` and what the verifier needs to judge, such as `answer`."""


@runtime_checkable
class Verifier(Protocol):
    """Judges completions. Built from keyword strings (a suite's `verifier_config`), immutable and stateless afterwards:
    the same task and completion always get the same verdict."""

    @property
    def name(self) -> str:
        """The name of its entry point."""

    @property
    def version(self) -> str:
        """Raised when verdicts change."""

    def digest(self) -> str:
        """The identity of code and configuration: equal digests give equal verdicts. See `identity`."""

    def check_task(self, task: Task) -> None:
        """Whether the task can be judged at all; called when a suite is registered.

        Raises:
            InvalidTask: the gold answer is missing, or is not of the kind that this verifier reads.
        """

    def verify(self, task: Task, completion: str) -> Verdict | NoVerdict:
        """The verdict on `completion`, any text of any length. An empty one fails.

        Raises:
            InvalidTask: as `check_task`. Nothing else: a fault of the machinery is returned as a `NoVerdict`.
        """


def identity(name: str, version: str, config: Mapping[str, str], *modules: ModuleType) -> str:
    """The digest of a verifier: its name, version, resolved configuration, and the source text of the `modules` that judge."""
    sources = {module.__name__: sha256_digest(inspect.getsource(module).encode("utf-8")) for module in modules}
    return canonical_digest({"name": name, "version": version, "config": dict(config), "sources": sources})

"""For tests of stores and of what reads a ledger.

`check_store` is what every store must do; a third-party store runs it in its own tests. `demo_history` records a chain from a
base to a served model with tiny, valid artifacts, in a fraction of a second.
"""

from __future__ import annotations

from ledger.testing.history import DemoHistory, demo_history
from ledger.testing.store import STORE_CHECKS, check_store, example_batch

__all__ = ["STORE_CHECKS", "DemoHistory", "check_store", "demo_history", "example_batch"]

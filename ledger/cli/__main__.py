"""`python -m ledger.cli`."""

from __future__ import annotations

from ledger.cli.app import main

main()

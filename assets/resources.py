"""What assets are given: the home of the ledger."""

from __future__ import annotations

from pathlib import Path

from dagster import ConfigurableResource

from ledger.home import Ledger, default_home


class LedgerResource(ConfigurableResource):  # type: ignore[type-arg]  # Dagster's own generic, unused here
    """Opens the ledger of a home directory; an empty `home` is `POSTTRAIN_HOME`, else `./.posttrain`."""

    home: str = ""

    def open(self) -> Ledger:
        return Ledger.open(Path(self.home) if self.home else default_home(), create=True)

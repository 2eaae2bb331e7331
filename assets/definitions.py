"""What Dagster loads: `dagster dev -m assets.definitions`.

The chain is the file that `POSTTRAIN_CHAIN` names, else the newest that `make demo` wrote into the home directory.
"""

from __future__ import annotations

import os
from pathlib import Path

from dagster import Definitions

from assets.chain import Chain
from assets.factory import chain_assets, chain_checks
from assets.resources import LedgerResource
from ledger.home import default_home


def definitions(chain: Chain | None, home: Path | None = None) -> Definitions:
    """Assets, checks and resources of a chain; only resources without one."""
    resources = {"ledger": LedgerResource(home=str(home) if home else "")}
    if chain is None:
        return Definitions(resources=resources)
    return Definitions(assets=chain_assets(chain), asset_checks=chain_checks(chain), resources=resources)


def configured_chain() -> Chain | None:
    """The chain to show, if there is one yet."""
    named = os.environ.get("POSTTRAIN_CHAIN")
    if named:
        return Chain(Path(named))
    written = sorted((default_home() / "demo").glob("*/chain.yaml"), key=lambda path: path.stat().st_mtime)
    return Chain(written[-1]) if written else None


defs = definitions(configured_chain())

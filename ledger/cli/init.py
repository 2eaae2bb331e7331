"""`posttrain init`."""

from __future__ import annotations

from ledger.budget import set_price
from ledger.cli.output import JsonFlag, emit, plain
from ledger.home import Ledger, default_home

CPU_PRICE = "0.05"  # per device and hour


def init(as_json: JsonFlag = False) -> None:
    """Create the home directory, the ledger and its keys. An existing home is left as it is."""
    existed = (default_home() / "ledger.db").is_file()
    ledger = Ledger.open(create=True)
    if ledger.log.last("price/cpu") is None:
        set_price(ledger, "cpu", CPU_PRICE)
    key = str(ledger.verifying_key())
    emit(
        {"home": str(ledger.home), "verifying_key": key, "created": not existed, "position": ledger.log.size()},
        lambda console: console.print(
            f"{'found' if existed else 'created'} {plain(ledger.home)}\nits tree heads are signed by {key}"
        ),
        as_json,
    )

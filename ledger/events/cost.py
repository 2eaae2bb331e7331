"""Prices, budgets and what was spent. One currency a ledger; amounts are decimal strings."""

from __future__ import annotations

from ledger.digest import Digest
from ledger.events.base import DecimalText, Name, Payload, Text
from ledger.events.runs import RunId


class PriceSet(Payload):
    """The price of one device for an hour."""

    device_kind: Name
    per_device_hour: DecimalText

    def stream(self) -> str:
        return f"price/{self.device_kind}"


class BudgetSet(Payload):
    """What a stage may spend from now on, in all."""

    stage: Name
    cap: DecimalText
    reason: Text

    def stream(self) -> str:
        return f"budget/{self.stage}"


class CostReserved(Payload):
    """The projected cost of a run, held back from the stage's budget before it starts."""

    stage: Name
    run_id: RunId
    amount: DecimalText
    device_kind: Name
    devices: int
    device_seconds: DecimalText
    per_device_hour: DecimalText

    def stream(self) -> str:
        return f"budget/{self.stage}"


class CostSettled(Payload):
    """What a run did cost; it replaces the reservation."""

    stage: Name
    run_id: RunId
    amount: DecimalText
    device_kind: Name
    device_seconds: DecimalText
    per_device_hour: DecimalText

    def stream(self) -> str:
        return f"budget/{self.stage}"


class LaunchBlocked(Payload):
    """A launch was refused because its projection exceeds what the budget has left."""

    stage: Name
    spec: Digest
    projected: DecimalText
    remaining: DecimalText

    def stream(self) -> str:
        return f"budget/{self.stage}"

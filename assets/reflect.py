"""From what a step did to what Dagster shows: the data version is the content digest, and a ledger hit says so."""

from __future__ import annotations

from typing import Any

from dagster import DataVersion, MaterializeResult, MetadataValue

from assets.steps import Step, Value


def reflected(step: Step) -> MaterializeResult[Any]:
    """The materialisation of a step."""
    return MaterializeResult(data_version=DataVersion(step.version), metadata=metadata(step))


def metadata(step: Step) -> dict[str, MetadataValue]:
    """A step's facts, typed so that the web interface plots numbers."""
    shown: dict[str, MetadataValue] = {
        "digest": MetadataValue.text(step.version),
        "reused": MetadataValue.bool(step.reused),
    }
    if step.position is not None:
        shown["ledger_position"] = MetadataValue.int(step.position)
    shown.update({key: _typed(value) for key, value in step.show.items()})
    return shown


def _typed(value: Value) -> MetadataValue:
    if isinstance(value, float):
        return MetadataValue.float(value)
    if isinstance(value, int):
        return MetadataValue.int(value)
    return MetadataValue.text(value if isinstance(value, str) else "; ".join(value))

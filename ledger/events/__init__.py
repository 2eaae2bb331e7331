"""The closed union of everything that can be recorded, one file a family.

`PAYLOADS` maps a type's name to its class; `parse_payload` is the only way from stored bytes back to a payload.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from ledger.errors import InputError, NewerLedger
from ledger.events.artifacts import (
    ArtifactErased,
    BaseRevisionPinned,
    DatasetVersionSealed,
    DecontaminationChecked,
    SourceRows,
    SuiteRegistered,
)
from ledger.events.base import Edge, Payload
from ledger.events.cost import BudgetSet, CostReserved, CostSettled, LaunchBlocked, PriceSet
from ledger.events.envelope import Event, NewEvent
from ledger.events.evaluation import EvaluationReported, GateDecided, GatePolicySet, PairedGain
from ledger.events.promotion import ModelPromoted, ModelQuarantined, ModelRegistered
from ledger.events.runs import (
    AttemptEnded,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointPart,
    CodeRevision,
    RunCanceled,
    RunCompleted,
    RunFailed,
    RunSubmitted,
)
from ledger.events.serving import DeploymentReady, DeploymentRequested, DeploymentStopped, TrafficShifted

__all__ = [
    "PAYLOADS", "ArtifactErased", "AttemptEnded", "AttemptStarted", "BaseRevisionPinned", "BudgetSet",
    "CheckpointCommitted", "CheckpointPart", "CodeRevision", "CostReserved", "CostSettled", "DatasetVersionSealed",
    "DecontaminationChecked", "DeploymentReady", "DeploymentRequested", "DeploymentStopped", "Edge", "EvaluationReported",
    "Event", "GateDecided", "GatePolicySet", "LaunchBlocked", "ModelPromoted", "ModelQuarantined", "ModelRegistered",
    "NewEvent", "PairedGain", "Payload", "PriceSet", "RunCanceled", "RunCompleted", "RunFailed", "RunSubmitted",
    "SourceRows", "SuiteRegistered", "TrafficShifted", "parse_payload",
]  # fmt: skip

PAYLOADS: dict[str, type[Payload]] = {
    cls.type_name(): cls
    for cls in (
        BaseRevisionPinned, DatasetVersionSealed, DecontaminationChecked, SuiteRegistered, ArtifactErased,
        RunSubmitted, AttemptStarted, AttemptEnded, RunCompleted, RunFailed, RunCanceled, CheckpointCommitted,
        EvaluationReported, GatePolicySet, GateDecided,
        ModelRegistered, ModelPromoted, ModelQuarantined,
        DeploymentRequested, DeploymentReady, DeploymentStopped, TrafficShifted,
        PriceSet, BudgetSet, CostReserved, CostSettled, LaunchBlocked,
    )
}  # fmt: skip


def parse_payload(type_name: str, schema_version: int, content: dict[str, Any]) -> Payload:
    """The payload of a stored event.

    Raises:
        NewerLedger: a type or schema version that this release does not know.
        InputError: the content does not fit its type.
    """
    cls = PAYLOADS.get(type_name)
    if cls is None or schema_version > cls.schema_version:
        raise NewerLedger(
            f"event type {type_name} version {schema_version} is unknown to this release; upgrade posttrain to read it"
        )
    try:
        return cls.model_validate(content, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{type_name}: field {place}: {first['msg']}") from None

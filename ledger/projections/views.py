"""The tables of `posttrain sql`, in SQL: two that hold raw events and edges, and views over them.

Every event type has a view by its own name in snake case (`checkpoint_committed`), with a column a field; the views that
people ask for (`runs`, `checkpoints`, `gates`, `costs`, …) are written by hand on top. Digests are text, fractions are exact
decimals, times are UTC.
"""

from __future__ import annotations

import re
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ledger.canonical import canonical_digest
from ledger.events import PAYLOADS, Payload
from ledger.events.base import DecimalText

DECIMAL = "DECIMAL(38, 12)"  # what `DecimalText` can hold in 12 decimals, exact in sums

TABLES = """
CREATE TABLE events (
    position BIGINT, stream VARCHAR, version BIGINT, event_id VARCHAR, type VARCHAR, schema_version BIGINT,
    recorded_at TIMESTAMP, actor VARCHAR, payload JSON
);
CREATE TABLE edges (position BIGINT, direction VARCHAR, role VARCHAR, node VARCHAR);
CREATE TABLE projection (definition VARCHAR, position BIGINT, leaf VARCHAR);
"""

VIEWS: dict[str, tuple[str, str]] = {
    "runs": (
        "every run with its state, as `posttrain runs` shows it",
        """
SELECT s.run_id, s.kind, s.stage, s.executor,
    CASE l.type WHEN 'RunSubmitted' THEN 'submitted' WHEN 'AttemptStarted' THEN 'running'
        WHEN 'RunCompleted' THEN 'completed' WHEN 'RunFailed' THEN 'failed' WHEN 'RunCanceled' THEN 'canceled'
        ELSE CASE l.outcome WHEN 'completed' THEN 'ended' WHEN 'canceled' THEN 'canceled' ELSE 'interrupted' END
    END AS state,
    s.seed, p.step, coalesce(a.attempts, 0) AS attempts, coalesce(p.checkpoints, 0) AS checkpoints, p.model,
    coalesce(a.device_seconds, 0) AS device_seconds, s.base, s.dataset, s.parent, s.model AS evaluated_model, s.suite,
    s.code->>'commit' AS code_commit, s.code->>'diff' AS code_diff, s.environment, s.spec, s.config,
    s.recorded_at AS submitted_at, u.updated_at, s.position
FROM run_submitted s
LEFT JOIN (
    SELECT payload->>'run_id' AS run_id, arg_max(type, position) AS type, arg_max(payload->>'outcome', position) AS outcome
    FROM events
    WHERE type IN ('RunSubmitted', 'AttemptStarted', 'AttemptEnded', 'RunCompleted', 'RunFailed', 'RunCanceled')
    GROUP BY ALL
) l ON l.run_id = s.run_id
LEFT JOIN (SELECT stream, max(recorded_at) AS updated_at FROM events GROUP BY ALL) u ON u.stream = 'run/' || s.run_id
LEFT JOIN (
    SELECT st.run_id, count(*) AS attempts, sum(en.device_seconds) AS device_seconds
    FROM attempt_started st LEFT JOIN attempt_ended en ON en.run_id = st.run_id AND en.attempt = st.attempt GROUP BY ALL
) a ON a.run_id = s.run_id
LEFT JOIN (
    SELECT run_id, max(step) AS step, count(*) FILTER (saved) AS checkpoints, arg_max(model, position) AS model
    FROM (
        SELECT run_id, step, model, position, true AS saved FROM checkpoint_committed
        UNION ALL SELECT run_id, step, model, position, false FROM run_completed
    ) GROUP BY ALL
) p ON p.run_id = s.run_id""",
    ),
    "attempts": (
        "every launch of a run and how it ended",
        """
SELECT s.run_id, s.attempt, s.launcher, s.host, s.devices, s.device_kind, s.resumed_from, s.from_step, e.outcome,
    e.exit_code, e.device_seconds, s.recorded_at AS started_at, e.recorded_at AS ended_at
FROM attempt_started s LEFT JOIN attempt_ended e ON e.run_id = s.run_id AND e.attempt = s.attempt""",
    ),
    "checkpoints": (
        "every committed checkpoint",
        """
SELECT run_id, step, checkpoint, model, resume, world_size, samples_seen, attempt,
    list_sum(json_extract(parts, '$[*].size_bytes')::BIGINT[]) AS size_bytes, recorded_at, position
FROM checkpoint_committed""",
    ),
    "evaluations": (
        "every evaluation report with its interval",
        f"""
SELECT report, run_id, model, suite, verifier, items, passed, masked, accuracy, (interval->>0)::{DECIMAL} AS low,
    (interval->>1)::{DECIMAL} AS high, confidence, method, recorded_at, position
FROM evaluation_reported""",
    ),
    "gates": (
        "every gate decision with the paired gain",
        f"""
SELECT gate_id, stage, decision, candidate, incumbent, (gain->>'estimate')::{DECIMAL} AS gain,
    (gain->'interval'->>0)::{DECIMAL} AS low, (gain->'interval'->>1)::{DECIMAL} AS high,
    (gain->>'confidence')::{DECIMAL} AS confidence, (gain->>'items')::BIGINT AS items, (gain->>'wins')::BIGINT AS wins,
    (gain->>'losses')::BIGINT AS losses, gain->>'method' AS method, reasons, suite, candidate_report, incumbent_report,
    policy_position, recorded_at, position
FROM gate_decided""",
    ),
    "promotions": (
        "every move of a stage's pointer; `live` is where it stands now",
        """
SELECT stage, model, previous, rollback, gate_id, reason, actor, recorded_at, position,
    position = max(position) OVER (PARTITION BY stage) AS live
FROM model_promoted""",
    ),
    "deployments": (
        "every deployment with its state; `traffic` says whether the stage's requests go there now",
        """
SELECT d.deployment_id, d.stage, CASE WHEN s.deployment_id IS NOT NULL THEN 'stopped'
        WHEN r.deployment_id IS NOT NULL THEN 'ready' ELSE 'requested' END AS state,
    coalesce(t.deployment_id = d.deployment_id AND s.deployment_id IS NULL, false) AS traffic, d.model, d.served_name,
    d.engine, d.promotion_position, r.endpoint, r.observed_weights, d.recorded_at AS requested_at,
    r.recorded_at AS ready_at, s.recorded_at AS stopped_at, d.position
FROM deployment_requested d
LEFT JOIN (SELECT DISTINCT ON (deployment_id) * FROM deployment_ready ORDER BY position DESC) r
    ON r.deployment_id = d.deployment_id
LEFT JOIN (SELECT DISTINCT ON (deployment_id) * FROM deployment_stopped ORDER BY position DESC) s
    ON s.deployment_id = d.deployment_id
LEFT JOIN (SELECT stage, arg_max(deployment_id, position) AS deployment_id FROM traffic_shifted GROUP BY ALL) t
    ON t.stage = d.stage""",
    ),
    "costs": (
        "what was reserved and what was charged, an event a row",
        """
SELECT position, recorded_at, 'reserved' AS kind, stage, run_id, amount, device_kind, device_seconds, per_device_hour
FROM cost_reserved
UNION ALL
SELECT position, recorded_at, 'settled', stage, run_id, amount, device_kind, device_seconds, per_device_hour
FROM cost_settled""",
    ),
    "bases": ("every pinned revision of every base", "SELECT * FROM base_revision_pinned"),
    "datasets": ("every sealed dataset version", "SELECT * FROM dataset_version_sealed"),
    "dataset_sources": (
        "what each dataset version was built from, a source a row",
        """
SELECT name AS dataset_name, dataset, source->>'name' AS source, source->>'uri' AS uri, source->>'licence' AS licence,
    source->>'content' AS content, (source->>'rows_read')::BIGINT AS rows_read,
    (source->>'rows_kept')::BIGINT AS rows_kept, position
FROM (SELECT *, unnest(json_extract(sources, '$[*]')) AS source FROM dataset_version_sealed)""",
    ),
    "suites": ("every registered suite", "SELECT * FROM suite_registered"),
    "models": ("every registered model version", "SELECT * FROM model_registered"),
}
"""Name → (what it holds, its query)."""


def event_view(name: str) -> str:
    """`CheckpointCommitted` → `checkpoint_committed`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def statements() -> list[str]:
    """Everything that makes an empty database the projection of an empty log."""
    made = [f"{statement};" for statement in TABLES.split(";") if statement.strip()]
    made += [f"CREATE VIEW {event_view(name)} AS {_event_query(name, cls)}" for name, cls in PAYLOADS.items()]
    made += [f"CREATE VIEW {name} AS {query.strip()}" for name, (_, query) in VIEWS.items()]
    return made


def definition() -> str:
    """The digest of the statements: a database that was made by others is thrown away."""
    return canonical_digest(statements())


def _event_query(name: str, cls: type[Payload]) -> str:
    hints = get_type_hints(cls, include_extras=True)
    columns = [_column(field, hints[field]) for field in cls.model_fields]
    return f"SELECT position, recorded_at, actor, {', '.join(columns)} FROM events WHERE type = '{name}'"


def _column(field: str, hint: Any) -> str:
    kind = _sql_type(hint)
    # A field may be called like a word of SQL (`commit`, `rows`), so every one is quoted.
    if kind == "JSON":
        return f"payload->'{field}' AS \"{field}\""
    text = f"payload->>'{field}'"
    return f'{text} AS "{field}"' if kind == "VARCHAR" else f'({text})::{kind} AS "{field}"'


def _sql_type(hint: Any) -> str:
    if get_origin(hint) in (UnionType, Union):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    if hint == DecimalText:
        return DECIMAL
    plain = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    if plain is str or get_origin(plain) is Literal:
        return "VARCHAR"
    return {bool: "BOOLEAN", int: "BIGINT"}.get(plain, "JSON")

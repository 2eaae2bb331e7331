"""From a model and a suite to `EvaluationReported`. `evaluate` is the whole story.

Each step is found again after a crash: the run in the ledger, its completions in the run's directory, the report by its bytes.
When a completed run's completions are gone before they were reported, the run is repeated, as a run of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executors.evaluation.executor import COMPLETIONS, EvaluationConfig, EvaluationExecutor
from executors.evaluation.suites import ITEMS, MAX_ITEMS_BYTES, Item, parse_items
from executors.evaluation.verification import Judged, Verifier, judge, load_verifier
from executors.pipe import Message
from executors.plans import WITHOUT_EFFECT, Resources, RunSpec, canonical_config
from executors.runs import materialise_run
from executors.stage import current_code
from ledger.artifacts import media_types
from ledger.canonical import canonical_bytes, decimal_string
from ledger.digest import short
from ledger.errors import Conflict, InfrastructureError
from ledger.events import AttemptEnded, EvaluationReported, Event, SuiteRegistered
from ledger.gate import wilson_interval
from ledger.home import Ledger
from ledger.references import resolve_model, resolve_suite

CONFIDENCE = "0.95"
METHOD = "greedy decoding; accuracy over items with a verdict; Wilson score interval"
PROJECTED = "projected_step_seconds"
MAX_COMPLETIONS_BYTES = 1 << 30
MAX_VERDICT_BYTES = 16 << 20

Watch = Callable[[Message], None]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The recorded report. `reused`: the ledger had it already."""

    event: Event
    reused: bool

    @property
    def report(self) -> EvaluationReported:
        assert isinstance(self.event.payload, EvaluationReported)
        return self.event.payload


def evaluate(
    ledger: Ledger,
    model: str,
    suite: str,
    *,
    config: EvaluationConfig | None = None,
    watch: Watch | None = None,
    budget_stage: str = "evaluation",
) -> Evaluated:
    """The report of a model on a suite, by this code in this environment: the recorded one, or a new one.

    Args:
        model, suite: names, digests or what else `ledger.references` resolves.
        watch: called with every message of the run.
        budget_stage: whose budget pays.

    Raises:
        NotFound: no such model, suite or verifier.
        BudgetExceeded, RefusedError: the ledger refuses the launch.
        InputError: the model or the suite is at fault.
        InfrastructureError: the run failed, its completions are not one for each item, or too few items got a verdict.
    """
    registered = registered_suite(ledger, resolve_suite(ledger, suite))
    verifier = load_verifier(registered.verifier, registered.verifier_config)
    spec = _specification(ledger, resolve_model(ledger, model), registered, verifier, config or EvaluationConfig())
    while True:
        known = _recorded(ledger, spec.run_id)
        if known is not None:
            return Evaluated(known, reused=True)
        outcome = materialise_run(ledger, _projected(ledger, spec), watch=watch, budget_stage=budget_stage)
        path = outcome.outputs.get(COMPLETIONS)
        if path is not None and path.is_file():
            return Evaluated(_report(ledger, spec, registered, verifier, path), reused=False)
        if outcome.state != "hit":
            raise InfrastructureError(f"run {spec.run_id} completed, but its {COMPLETIONS} is gone; evaluate again")
        spec = spec.model_copy(update={"repeat": spec.repeat + 1})


def _specification(
    ledger: Ledger, model: str, registered: SuiteRegistered, verifier: Verifier, config: EvaluationConfig
) -> RunSpec:
    code, environment = current_code(ledger)
    return RunSpec(
        stage="evaluation",
        kind="evaluation",
        executor=EvaluationExecutor.name,
        config=canonical_config(config),
        seed=0,
        resources=Resources().resolved(),
        model=model,
        suite=registered.suite,
        verifier=f"{verifier.name}@{verifier.version}",
        code=code,
        environment=environment,
    )


def _projected(ledger: Ledger, spec: RunSpec) -> RunSpec:
    """The same run with what it is expected to take, when nobody stated it: the longest evaluation of the suite so far, and
    never less than the executor's own guess, since the next model may be larger."""
    if spec.config[PROJECTED] is not None:
        return spec
    reported = {event.stream for event in ledger.log.used(f"suite:{spec.suite}") if event.type == "EvaluationReported"}
    payloads = [event.payload for stream in reported for event in ledger.log.stream(stream)]
    taken = [float(p.device_seconds) for p in payloads if isinstance(p, AttemptEnded) and p.outcome == "completed"]
    seconds = max([EvaluationExecutor.default_step_seconds, *taken])
    return spec.model_copy(update={"config": {**spec.config, PROJECTED: decimal_string(seconds)}})


def _report(ledger: Ledger, spec: RunSpec, registered: SuiteRegistered, verifier: Verifier, completions: Path) -> Event:
    """Judge the completions, store the report and record it."""
    items = parse_items(
        ledger.artifacts.read(registered.suite, ITEMS, max_bytes=MAX_ITEMS_BYTES), f"suite {registered.name}, {ITEMS}"
    )
    judged = judge(verifier, items, read_completions(completions, items))
    passed = sum(one.status == "pass" for one in judged)
    masked = sum(one.status == "error" for one in judged)
    answered = len(judged) - masked
    interval = wilson_interval(passed, answered, float(CONFIDENCE))
    numbers: dict[str, Any] = {
        "items": len(judged),
        "passed": passed,
        "masked": masked,
        "accuracy": decimal_string(passed / answered),
        "interval": (decimal_string(interval.low), decimal_string(interval.high)),
        "confidence": CONFIDENCE,
        "method": METHOD,
    }
    about = {"run_id": spec.run_id, "model": spec.model, "suite": spec.suite, "verifier": spec.verifier}
    config = {name: setting for name, setting in spec.config.items() if name not in WITHOUT_EFFECT}
    report = _stored(ledger, {**about, **numbers, "verifier_digest": verifier.digest(), "config": config}, judged)
    payload = EvaluationReported.model_validate({**about, **numbers, "report": report})
    try:
        return ledger.record(payload, idempotency_key=f"{spec.run_id}/report")
    except Conflict:
        # Another process reported the same run, with other masked items; the first report counts.
        known = _recorded(ledger, spec.run_id)
        if known is None:
            raise
        return known


def read_completions(path: Path, items: Sequence[Item]) -> dict[str, str]:
    """Item digest to completion, exactly one for each item.

    Raises:
        InfrastructureError: an item has none or two, a completion is of no item, or the file is damaged.
    """
    if path.stat().st_size > MAX_COMPLETIONS_BYTES:
        raise InfrastructureError(f"{path} has more than {MAX_COMPLETIONS_BYTES} bytes")
    known = {item.digest for item in items}
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line:
            continue
        item, completion = _completion(line, f"{path}, line {number}")
        if item not in known:
            raise InfrastructureError(f"{path}, line {number}: {item} is no item of the suite")
        if item in found:
            raise InfrastructureError(f"{path}, line {number}: item {item} has a second completion")
        found[item] = completion
    if missing := sorted(known - found.keys()):
        raise InfrastructureError(
            f"{path}: {len(missing)} of {len(known)} items have no completion, such as {short(missing[0])}"
        )
    return found


def _completion(line: bytes, place: str) -> tuple[str, str]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InfrastructureError(f"{place} is not JSON: {error}") from None
    item, completion = (content.get("item"), content.get("completion")) if isinstance(content, dict) else (None, None)
    if not isinstance(item, str) or not isinstance(completion, str):
        raise InfrastructureError(f"{place} is no completion; expected the texts item and completion")
    if not completion.isascii() and any("\ud800" <= character <= "\udfff" for character in completion):
        raise InfrastructureError(f"{place}: the completion holds a lone surrogate, which is no text")
    return item, completion


def _stored(ledger: Ledger, aggregate: Mapping[str, Any], judged: Sequence[Judged]) -> str:
    """The digest of the report artifact. The same verdicts of the same run have the same one."""
    files: dict[str, Path | bytes] = {
        "report.json": canonical_bytes(dict(aggregate)) + b"\n",
        "verdicts.jsonl": b"".join(canonical_bytes(one.to_json(), MAX_VERDICT_BYTES) + b"\n" for one in judged),
    }
    return ledger.artifacts.add_files(files, media_types.REPORT).digest


def _recorded(ledger: Ledger, run_id: str) -> Event | None:
    return ledger.log.last(f"run/{run_id}", "EvaluationReported")


def registered_suite(ledger: Ledger, suite: str) -> SuiteRegistered:
    """The registration of a suite's digest, as `ledger.references.resolve_suite` gives it."""
    found = [event.payload for event in ledger.log.made(f"suite:{suite}")]
    return next(payload for payload in reversed(found) if isinstance(payload, SuiteRegistered))

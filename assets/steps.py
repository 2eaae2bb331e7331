"""One function for each step of a chain. They compose what the command line calls too.

Each returns a `Step`: the digest that is the step's data version, whether the ledger held it already, and what to show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from assets.chain import Chain
from executors.evaluation.report import evaluate
from executors.pipe import Message
from executors.plans import RunSpec
from executors.runs import materialise_run
from executors.serving.deploy import deploy
from executors.stage import load_stage, resolve_stage
from ledger import budget, registry
from ledger.bases import pin_base
from ledger.datasets import build_dataset, load_suite_file, register_suite_file
from ledger.errors import NotFound, RefusedError
from ledger.events import (
    BaseRevisionPinned,
    DatasetVersionSealed,
    EvaluationReported,
    GateDecided,
    ModelPromoted,
    SuiteRegistered,
)
from ledger.home import Ledger
from ledger.references import resolve_base

Value = str | int | float | list[str]
Watch = Callable[[Message], None]


@dataclass(frozen=True)
class Step:
    """What a step did. `version` is a content digest."""

    version: str
    reused: bool
    position: int | None = None
    show: dict[str, Value] = field(default_factory=dict)


def pin(ledger: Ledger, chain: Chain) -> Step:
    base = chain.file.base
    pinned = pin_base(ledger, base.name, chain.at(base.path), source=base.source, licence=base.licence)
    payload = pinned.event.payload
    assert isinstance(payload, BaseRevisionPinned)
    show: dict[str, Value] = {
        "name": payload.name,
        "size_bytes": payload.size_bytes,
        "parameters": payload.parameters or 0,
    }
    return Step(payload.base, pinned.reused, pinned.event.position, show)


def suite(ledger: Ledger, chain: Chain) -> Step:
    registered = register_suite_file(ledger, chain.at(chain.file.suite))
    payload = registered.event.payload
    assert isinstance(payload, SuiteRegistered)
    show: dict[str, Value] = {"name": payload.name, "items": payload.items, "verifier": payload.verifier}
    return Step(payload.suite, registered.reused, registered.event.position, show)


def dataset(ledger: Ledger, chain: Chain) -> Step:
    sealed = build_dataset(ledger, chain.at(chain.file.dataset))
    payload = sealed.event.payload
    assert isinstance(payload, DatasetVersionSealed)
    show: dict[str, Value] = {
        "name": payload.name,
        "rows": payload.rows,
        "duplicates_removed": payload.duplicates_removed,
        "licences": sorted({source.licence for source in payload.sources}),
    }
    return Step(payload.dataset, sealed.reused, sealed.event.position, show)


def train(ledger: Ledger, chain: Chain, candidate: str, watch: Watch | None = None) -> Step:
    """Materialise the candidate's run; its version is the digest of the model that came out."""
    stage = load_stage(chain.at(chain.candidate(candidate).run))
    outcome = materialise_run(ledger, specification(ledger, chain, candidate), budget_stage=stage.payer, watch=watch)
    show: dict[str, Value] = {"run": outcome.run_id, "state": outcome.state, "step": outcome.step}
    if outcome.checkpoint:
        show["checkpoint"] = outcome.checkpoint
    return Step(outcome.model or outcome.run_id, outcome.state == "hit", None, show)


def report(ledger: Ledger, chain: Chain, model: str, watch: Watch | None = None) -> Step:
    """Evaluate a model on the chain's suite."""
    suite_digest = _suite(ledger, chain)
    evaluated = evaluate(ledger, model, suite_digest, watch=watch)
    payload = evaluated.event.payload
    assert isinstance(payload, EvaluationReported)
    low, high = payload.interval
    show: dict[str, Value] = {
        "accuracy": float(payload.accuracy),
        "interval": f"[{low}, {high}]",
        "items": payload.items,
    }
    return Step(payload.report, evaluated.reused, evaluated.event.position, show)


def gate(ledger: Ledger, chain: Chain, model: str) -> tuple[Step, GateDecided]:
    """Decide whether a model may replace what the stage serves; before the first promotion, the base.

    A model that the stage serves already keeps the decision that let it in.
    """
    apply_policy(ledger, chain)
    live = registry.live(ledger, chain.stage)
    promotion = live.payload if live else None
    if isinstance(promotion, ModelPromoted) and promotion.model == model:
        event = ledger.log.stream(f"gate/{promotion.gate_id}")[-1]
        reused = True
    else:
        incumbent = (
            promotion.model if isinstance(promotion, ModelPromoted) else resolve_base(ledger, chain.file.base.name)
        )
        if incumbent == resolve_base(ledger, chain.file.base.name):
            report(ledger, chain, incumbent)
        decided = registry.decide_gate(ledger, model, incumbent, chain.stage)
        event, reused = decided.event, decided.reused
    decision = event.payload
    assert isinstance(decision, GateDecided)
    low, high = decision.gain.interval
    show: dict[str, Value] = {
        "decision": decision.decision,
        "gain": float(decision.gain.estimate),
        "interval": f"[{low}, {high}]",
        "lower_bound": float(low),
        "reasons": list(decision.reasons),
    }
    return Step(decision.gate_id, reused, event.position, show), decision


def promote(ledger: Ledger, chain: Chain, model: str, reason: str) -> Step:
    """Move the stage's pointer to a model. The gate is read from the ledger here, whoever asks.

    Raises:
        RuleBroken: no passing gate decision lets this model through.
    """
    promoted = registry.promote(ledger, model, chain.stage, reason=reason)
    show: dict[str, Value] = {"stage": chain.stage, "actor": promoted.event.actor}
    return Step(model, promoted.reused, promoted.event.position, show)


def serve(ledger: Ledger, chain: Chain, say: Callable[[str], None] | None = None) -> Step:
    """Deploy what the stage's live promotion points to."""
    deployed = deploy(ledger, chain.stage, port=chain.file.port, watch=say)
    show: dict[str, Value] = {
        "endpoint": deployed.endpoint,
        "served_name": deployed.served_name,
        "model": deployed.model,
    }
    return Step(deployed.deployment_id, deployed.reused, None, show)


def set_budget(ledger: Ledger, chain: Chain) -> None:
    """The chain's budget, when it names one that is not in force yet."""
    settings = chain.file.budget
    if settings is not None and budget.status(ledger, settings.stage).cap is None:
        budget.set_budget(ledger, settings.stage, settings.cap, f"chain {chain.name}")


def specification(ledger: Ledger, chain: Chain, candidate: str) -> RunSpec:
    """What a candidate's run pins."""
    found = chain.candidate(candidate)
    spec = resolve_stage(ledger, load_stage(chain.at(found.run)))
    return spec.model_copy(update={"repeat": found.repeat}) if found.repeat else spec


def trained_model(ledger: Ledger, chain: Chain, candidate: str) -> str:
    """The model of a candidate's completed run, without running anything.

    Raises:
        NotFound: its run has not completed.
    """
    spec = specification(ledger, chain, candidate)
    completed = ledger.log.last(f"run/{spec.run_id}", "RunCompleted")
    model = getattr(completed.payload, "model", None) if completed else None
    if model is None:
        raise NotFound(f"candidate {candidate} has no completed run ({spec.run_id}); materialise its checkpoint first")
    return str(model)


def apply_policy(ledger: Ledger, chain: Chain) -> None:
    """Set the chain's gate policy where the stage has none.

    Raises:
        RefusedError: the stage has another policy; a chain does not change what its candidates are judged by.
    """
    settings = chain.file.gate
    wanted = (_suite_name(chain), settings.confidence, settings.min_gain, settings.min_items)
    found = registry.gate_policy(ledger, chain.stage)
    if found is None:
        registry.set_gate_policy(ledger, chain.stage, *wanted)
        return
    policy = found.policy
    if (policy.suite, policy.confidence, policy.min_gain, policy.min_items) != wanted:
        raise RefusedError(
            f"stage {chain.stage} has the gate policy of position {found.position}, and {chain.path.name} asks for another; "
            "make the chain file agree, or change the policy with `posttrain gate policy`"
        )


def _suite_name(chain: Chain) -> str:
    return load_suite_file(chain.at(chain.file.suite)).name


def _suite(ledger: Ledger, chain: Chain) -> str:
    event = ledger.log.last(f"suite/{_suite_name(chain)}", "SuiteRegistered")
    if event is None or not isinstance(event.payload, SuiteRegistered):
        raise NotFound(f"suite {_suite_name(chain)} is not registered; materialise the suite first")
    return event.payload.suite

"""One asset for each step of a chain. A body calls its step, which looks in the ledger first; the asset only reflects it.

    base ─────────────┐
    suite ── dataset ─┴─ CANDIDATE/model ── CANDIDATE/report (check: gate) ── CANDIDATE/promotion ── STAGE/deployment

The training asset has a retry policy because its body attaches or resumes: a killed worker costs one retry, no step twice.
"""

# Dagster reads the annotations of `context` and resources at run time, so they must not be postponed here.
from collections.abc import Callable
from typing import Any

from dagster import (
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    Backoff,
    Failure,
    MaterializeResult,
    RetryPolicy,
    asset,
    asset_check,
)

from assets import steps
from assets.chain import Candidate, Chain
from assets.reflect import metadata, reflected
from assets.resources import LedgerResource
from assets.steps import Step, Watch
from ledger.errors import InfrastructureError, PosttrainError
from ledger.home import Ledger

RETRIES = RetryPolicy(max_retries=3, delay=1, backoff=Backoff.LINEAR)

EXIT_CODE = "exit_code"
"""Under which a failed step says what the command line would have exited with."""

Body = Callable[[Ledger], Step]
Say = Callable[[str], None]


def key(chain: Chain, *parts: str) -> AssetKey:
    """`CHAIN/part/…`; dashes are not allowed in Dagster's names."""
    return AssetKey([part.replace("-", "_").replace(".", "_") for part in (chain.name, *parts)])


def chain_assets(chain: Chain, watch: Watch | None = None, say: Say | None = None) -> list[AssetsDefinition]:
    """Every asset of a chain. `watch` sees the messages of its runs, `say` gets a line for each step of a deployment."""
    base, suite, dataset = key(chain, "base"), key(chain, "suite"), key(chain, "dataset")
    made = [
        _asset(chain, base, [], "bytes", lambda ledger: steps.pin(ledger, chain)),
        _asset(chain, suite, [], "data", lambda ledger: steps.suite(ledger, chain)),
        _asset(chain, dataset, [suite], "data", lambda ledger: steps.dataset(ledger, chain)),
    ]
    for candidate in chain.file.candidates:
        made += _candidate(chain, candidate, watch)
    promotions = [key(chain, candidate.name, "promotion") for candidate in chain.file.candidates]
    deployment = key(chain, chain.stage, "deployment")
    made.append(_asset(chain, deployment, promotions, "serving", lambda ledger: steps.serve(ledger, chain, say)))
    return made


def _candidate(chain: Chain, candidate: Candidate, watch: Watch | None) -> list[AssetsDefinition]:
    name = candidate.name
    model, report, promotion = (key(chain, name, part) for part in ("model", "report", "promotion"))

    def promote(ledger: Ledger) -> Step:
        return steps.promote(
            ledger, chain, steps.trained_model(ledger, chain, name), f"candidate {name} of chain {chain.name}"
        )

    def evaluate(ledger: Ledger) -> Step:
        return steps.report(ledger, chain, steps.trained_model(ledger, chain, name), watch)

    inputs = [key(chain, "base"), key(chain, "dataset")]
    if candidate.after:
        inputs.append(key(chain, candidate.after, "promotion"))
    return [
        _asset(chain, model, inputs, "training", lambda ledger: steps.train(ledger, chain, name, watch), RETRIES),
        _asset(chain, report, [model, key(chain, "suite")], "evaluation", evaluate, RETRIES),
        _asset(chain, promotion, [report], "registry", promote),
    ]


def chain_checks(chain: Chain) -> list[AssetChecksDefinition]:
    """The gate of each candidate, as a check on its report that shows the interval."""
    return [_gate(chain, candidate.name) for candidate in chain.file.candidates]


def _gate(chain: Chain, name: str) -> AssetChecksDefinition:
    @asset_check(
        asset=key(chain, name, "report"),
        name="gate",
        blocking=True,
        description="The paired gain over what the stage serves.",
    )
    def gate(ledger: LedgerResource) -> AssetCheckResult:
        opened = ledger.open()
        step, decision = _line(lambda: steps.gate(opened, chain, steps.trained_model(opened, chain, name)))
        return AssetCheckResult(
            passed=decision.decision == "pass",
            severity=AssetCheckSeverity.ERROR,
            metadata=metadata(step),
            description="; ".join(decision.reasons) or f"gain {decision.gain.estimate}",
        )

    return gate


def _asset(
    chain: Chain, name: AssetKey, deps: list[AssetKey], kind: str, body: Body, retry: RetryPolicy | None = None
) -> AssetsDefinition:
    @asset(key=name, deps=deps, group_name=chain.name.replace("-", "_"), kinds={kind}, retry_policy=retry)
    def made(context: AssetExecutionContext, ledger: LedgerResource) -> MaterializeResult:  # type: ignore[type-arg]
        step = _line(lambda: body(ledger.open()))
        context.log.info(f"{name.to_user_string()}: {'reused' if step.reused else 'made'} {step.version}")
        return reflected(step)

    return made


def _line(call: Callable[[], Any]) -> Any:
    """A refusal is the run's failure with its one line; only a broken machine is worth a retry."""
    try:
        return call()
    except PosttrainError as error:
        retry = isinstance(error, InfrastructureError)
        raise Failure(str(error), metadata={EXIT_CODE: error.exit_code}, allow_retries=retry) from error

"""`posttrain serve` and `posttrain rollback`: what answers for a stage."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from executors.serving.audit import Finding, audit
from executors.serving.deploy import Deployed, deploy, rollback, stop
from ledger.cli.groups import default_group
from ledger.cli.output import JsonFlag, emit, example, json_requested, plain, stderr
from ledger.home import Ledger

serve = typer.Typer(
    cls=default_group("run"),
    no_args_is_help=True,
    help="Serve a stage's promoted model, audit what is served, stop it.",
    epilog=example("posttrain serve production", "posttrain serve audit", "posttrain serve stop production"),
)

Stage = Annotated[str, typer.Argument(metavar="STAGE", help="The stage, such as production.", show_default=False)]


@serve.command("run", epilog=example("posttrain serve production", "posttrain serve production --port 8500 --json"))
def run_command(
    stage: Stage,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Where the gateway listens; its last port, or 8400, without it.", show_default=False
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make the gateway answer for STAGE with its live promotion (the command when no other is named)."""
    _print(stage, deploy(Ledger.open(), stage, port=port, watch=_watch()), as_json)


@serve.command("audit", epilog=example("posttrain serve audit"))
def audit_command(as_json: JsonFlag = False) -> None:
    """Compare what runs, and the weights in its memory, with the ledger; exit 1 when they differ."""
    findings = audit(Ledger.open())
    emit([asdict(finding) for finding in findings], lambda console: _show_findings(console, findings), as_json)
    if findings:
        raise typer.Exit(1)


@serve.command("stop", epilog=example('posttrain serve stop production --reason "maintenance"'))
def stop_command(
    stage: Stage,
    reason: Annotated[str, typer.Option(help="Why; it is recorded.")] = "stopped from the command line",
    as_json: JsonFlag = False,
) -> None:
    """End the engines of STAGE, and the gateway when no other stage needs it."""
    stopped = stop(Ledger.open(), stage, reason)
    lines = [f"stopped {deployment_id}" for deployment_id in stopped] or [f"stage {stage} had no deployment"]
    emit({"stage": stage, "stopped": stopped}, lambda console: console.print("\n".join(lines)), as_json)


def rollback_command(
    stage: Stage,
    reason: Annotated[str, typer.Option(help="Why; it is recorded.", show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """Move STAGE back to the model before the live one, without a failed request."""
    _print(stage, rollback(Ledger.open(), stage, reason=reason, watch=_watch()), as_json)


def _watch() -> Callable[[str], None]:
    """Steps as lines on stderr; nothing with `--json`."""
    if json_requested.get():
        return lambda _line: None
    console = stderr()
    return lambda line: console.print(f"… {line}", style="dim")


def _print(stage: str, deployed: Deployed, as_json: bool) -> None:
    emit({"stage": stage, **asdict(deployed)}, lambda console: _show(console, stage, deployed), as_json)


def _show(console: Console, stage: str, deployed: Deployed) -> None:
    body = json.dumps({"model": stage, "messages": [{"role": "user", "content": "Hello"}]})
    grid = Table.grid(padding=(0, 2))
    grid.add_row("stage", plain(stage), style="bold")
    grid.add_row("model", deployed.model)
    grid.add_row("deployment", f"{deployed.deployment_id}{' (live already)' if deployed.reused else ''}")
    grid.add_row("served name", deployed.served_name)
    grid.add_row("endpoint", f"{deployed.endpoint}/v1")
    console.print(grid)
    console.print(
        f"\ncurl {deployed.endpoint}/v1/chat/completions -H 'content-type: application/json' -d '{body}'",
        style="dim",
        soft_wrap=True,
    )


def _show_findings(console: Console, findings: list[Finding]) -> None:
    if not findings:
        console.print("what runs is what the ledger says")
        return
    table = Table("what", "subject", "detail", "do", box=None, pad_edge=False)
    for finding in findings:
        table.add_row(finding.kind, finding.subject, finding.detail, finding.action)
    console.print(table)

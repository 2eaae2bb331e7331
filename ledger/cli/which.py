"""`posttrain which`: the answer of `ledger.which` as a tree."""

from __future__ import annotations

from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.tree import Tree

from ledger.cli.output import JsonFlag, emit, plain
from ledger.home import Ledger
from ledger.moments import position_at
from ledger.which import which


def which_command(
    stage: Annotated[str, typer.Argument(metavar="[STAGE]")] = "production",
    at: Annotated[str | None, typer.Option(help="As of a log position or a UTC time (RFC 3339).")] = None,
    timing: Annotated[bool, typer.Option("--timing", help="Print how long the query took.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Which model serves STAGE, how it was built, who promoted it, and the log position and root that prove it."""
    ledger = Ledger.open()
    started = perf_counter()
    answer = which(ledger, stage, position_at(ledger, at))
    took_ms = (perf_counter() - started) * 1000
    if timing:
        answer["query_us"] = round(took_ms * 1000)

    def render(console: Console) -> None:
        show_which(answer, console)
        if timing:
            console.print(f"query {took_ms:.1f} ms")

    emit(answer, render, as_json)


def show_which(answer: dict[str, Any], console: Console) -> None:
    """Draw the answer."""
    tree = Tree(f"{plain(answer['stage'])} serves model {answer['model']}")
    _base(tree, answer)
    _training(tree, answer)
    _approval(tree, answer)
    _deployment(tree, answer["deployment"], answer["model"])
    proof = tree.add(f"log position {answer['log']['position']}")
    proof.add(f"root {answer['log']['root']}")
    console.print(tree, soft_wrap=True)


def _base(tree: Tree, answer: dict[str, Any]) -> None:
    base, dataset = answer["base"], answer["dataset"]
    if base:
        branch = tree.add(f"base {plain(base['name'])} {base['digest']}")
        branch.add(plain(f"from {base['source']}, licence {base['licence'] or 'not stated'}"))
    if answer.get("parent"):
        tree.add(f"parent model {answer['parent']}")
    if dataset:
        branch = tree.add(f"dataset {plain(dataset['name'])} {dataset['digest']}")
        branch.add(f"{dataset['rows']:,} rows, compared with {len(dataset['checked_suites'])} held-out suites")
        for source in dataset["sources"]:
            branch.add(plain(f"{source['name']}: {source['rows']:,} rows, {source['licence']}"))


def _training(tree: Tree, answer: dict[str, Any]) -> None:
    run, code, config, checkpoint = (answer[key] for key in ("run", "code", "config", "checkpoint"))
    if not run:
        return
    branch = tree.add(
        plain(f"run {run['run_id']} ({run['stage']}, {run['kind']}, {run['executor']}, {run['attempts']} attempts)")
    )
    branch.add(plain(f"code {code['commit']} {'with changes' if code['dirty'] else 'clean'}, diff {code['diff']}"))
    values = branch.add(f"configuration {config['digest']}")
    values.add(
        plain(", ".join(f"{key} {value}" for key, value in config["values"].items() if not isinstance(value, dict)))
    )
    branch.add(f"seed {answer['seed']}")
    branch.add(f"environment {answer['environment']}")
    branch.add(f"tokenizer {answer['tokenizer']}, chat template {answer['chat_template']}")
    tree.add(f"checkpoint step {checkpoint['step']} {checkpoint['digest']} (resume {checkpoint['resume']})")


def _approval(tree: Tree, answer: dict[str, Any]) -> None:
    evaluation, gate, promotion = answer["evaluation"], answer["gate"], answer["promotion"]
    if evaluation:
        low, high = evaluation["interval"]
        branch = tree.add(f"evaluation report {evaluation['report']}")
        accuracy = f"accuracy {evaluation['accuracy']} [{low}, {high}] at {evaluation['confidence']}"
        branch.add(plain(f"{accuracy} over {evaluation['items']:,} items, {evaluation['verifier']}"))
        branch.add(f"suite {evaluation['suite']}")
    low, high = gate["interval"]
    branch = tree.add(f"gate {gate['gate_id']} {gate['decision']}")
    branch.add(
        f"gain {gate['gain']} [{low}, {high}] at {gate['confidence']} over {gate['items']:,} items ({plain(gate['method'])})"
    )
    branch.add(f"against {gate['incumbent']}")
    word = "rolled back to" if promotion["rollback"] else "promoted"
    place = f"at {promotion['recorded_at']}, position {promotion['position']}"
    tree.add(plain(f"{word} by {promotion['actor']} {place}: {promotion['reason']}"))


def _deployment(tree: Tree, deployment: dict[str, Any] | None, model: str) -> None:
    if deployment is None:
        tree.add("not deployed")
        return
    if deployment["model"] != model:
        tree.add(f"traffic still goes to model {deployment['model']}", style="bold yellow")
    branch = tree.add(
        plain(f"deployment {deployment['deployment_id']} {deployment['state']}: {deployment['served_name']}")
    )
    branch.add(plain(f"endpoint {deployment['endpoint']}, engine {deployment['engine']}"))
    branch.add(f"weights read back {deployment['observed_weights']}")

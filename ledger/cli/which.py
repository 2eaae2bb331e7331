"""`posttrain which`: the answer of `ledger.which` as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from ledger.cli.output import JsonFlag, emit, plain
from ledger.home import Ledger
from ledger.moments import position_at
from ledger.which import which

NOT_STATED = "not stated"
SETTINGS_A_LINE = 4


def which_command(
    stage: Annotated[str, typer.Argument(metavar="STAGE")] = "production",
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
    """Draw the answer, on any console: nothing in it is read as markup or reaches the terminal as a control character."""
    tree = Tree(_label(f"{answer['stage']} serves model", answer["model"]))
    _base(tree, answer)
    _dataset(tree, answer["dataset"])
    _training(tree, answer)
    _approval(tree, answer)
    _deployment(tree, answer["deployment"], answer["model"])
    log = answer["log"]
    proof = tree.add(_label("log", f"position {log['position']}"))
    proof.add(_label("root", f"{log['root']} (hex {log['root_hex']})"))
    proof.add(_label("signed tree head", "yes" if log["head"] else "none at this very position"))
    console.print(tree, soft_wrap=True)


def _label(name: str, text: object = "") -> Text:
    return Text.assemble((plain(name), "bold"), " ", plain(text))


def _base(tree: Tree, answer: dict[str, Any]) -> None:
    base = answer["base"]
    if base:
        branch = tree.add(_label("base", f"{base['name']} {base['digest']}"))
        branch.add(_label("source", f"{base['source']}, licence {base['licence'] or NOT_STATED}"))
        if base["upstream_revision"]:
            branch.add(_label("upstream revision", base["upstream_revision"]))
    if answer.get("parent"):
        tree.add(_label("parent model", answer["parent"]))


def _dataset(tree: Tree, dataset: dict[str, Any] | None) -> None:
    if dataset is None:
        return
    branch = tree.add(_label("dataset", f"{dataset['name']} {dataset['digest']}"))
    branch.add(_label("rows", f"{dataset['rows']:,}, compared with {len(dataset['checked_suites'])} held-out suites"))
    for source in dataset["sources"]:
        branch.add(_label("source", f"{source['name']}: {source['rows']:,} rows, licence {source['licence']}"))


def _training(tree: Tree, answer: dict[str, Any]) -> None:
    run, code, config, checkpoint = (answer[key] for key in ("run", "code", "config", "checkpoint"))
    if run is None:
        tree.add(_label("run", "none: the model is a base as it was pinned"))
        return
    about = f"{run['stage']}, {run['kind']} by {run['executor']}, {run['attempts']} attempts"
    branch = tree.add(_label("run", f"{run['run_id']} ({about})"))
    state = "with changes" if code["dirty"] else "clean"
    branch.add(_label("code", f"{code['commit']} {state}, diff {code['diff']}"))
    settings = branch.add(_label("configuration", config["digest"]))
    values = [f"{key} {setting}" for key, setting in _flat(config["values"])]
    for start in range(0, len(values), SETTINGS_A_LINE):  # a line that is too long would be cut, not wrapped
        settings.add(Text(plain(", ".join(values[start : start + SETTINGS_A_LINE]))))
    branch.add(_label("seed", answer["seed"]))
    branch.add(_label("environment", answer["environment"]))
    branch.add(_label("tokenizer", answer["tokenizer"] or NOT_STATED))
    branch.add(_label("chat template", answer["chat_template"] or "none"))
    tree.add(
        _label("checkpoint", f"step {checkpoint['step']:,} {checkpoint['digest']} (resume {checkpoint['resume']})")
    )


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, setting in settings.items():
        if isinstance(setting, dict):
            yield from _flat(setting, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", setting


def _approval(tree: Tree, answer: dict[str, Any]) -> None:
    evaluation, gate, promotion = answer["evaluation"], answer["gate"], answer["promotion"]
    if evaluation:
        branch = tree.add(_label("evaluation", f"report {evaluation['report']}"))
        over = f"over {evaluation['items']:,} items by {evaluation['verifier']}"
        branch.add(_label("accuracy", f"{evaluation['accuracy']} {_interval(evaluation)} {over}"))
        branch.add(_label("suite", evaluation["suite"]))
    branch = tree.add(_label("gate", f"{gate['gate_id']} {gate['decision']}"))
    branch.add(_label("gain", f"{gate['gain']} {_interval(gate)} over {gate['items']:,} items ({gate['method']})"))
    branch.add(_label("incumbent", gate["incumbent"]))
    word = "rolled back" if promotion["rollback"] else "promoted"
    branch = tree.add(_label(word, f"by {promotion['actor']} at {promotion['recorded_at']}"))
    branch.add(_label("position", promotion["position"]))
    branch.add(_label("reason", promotion["reason"]))
    branch.add(_label("previous model", promotion["previous"] or "none"))


def _interval(measured: dict[str, Any]) -> str:
    low, high = measured["interval"]
    return f"[{low}, {high}] at {measured['confidence']}"


def _deployment(tree: Tree, deployment: dict[str, Any] | None, model: str) -> None:
    if deployment is None:
        tree.add(_label("deployment", "none"))
        return
    branch = tree.add(_label("deployment", f"{deployment['deployment_id']} {deployment['state']}"))
    branch.add(_label("served name", f"{deployment['served_name']} by {deployment['engine']}"))
    branch.add(_label("engine at", deployment["endpoint"] or "none"))
    branch.add(_label("observed weights", deployment["observed_weights"] or "never read back"))
    if deployment["model"] != model:
        branch.add(Text(f"it serves another model: {plain(deployment['model'])}", style="bold yellow"))

"""`posttrain serve`, `serve audit`, `serve stop` and `rollback`; and one whole story with real engines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from executors.cli.serve import rollback_command, serve
from executors.serving.audit import audit
from executors.serving.client import complete
from executors.serving.deploy import deploy, rollback
from executors.serving.places import Places
from executors.serving.weights import directory_digest
from ledger.errors import InputError, RuleBroken
from ledger.home import Ledger
from tests.executors.serving.chain import STAGE, promoted, with_policy
from tests.executors.serving.hammer import Hammer

Models = dict[str, Path]
CHAT = [{"role": "user", "content": "1+1="}]


@pytest.fixture
def first(ledger: Ledger, models: Models) -> str:
    return promoted(ledger, "first", models["first"], 100, with_policy(ledger))


@pytest.fixture
def run() -> Callable[..., tuple[int, str]]:
    app = typer.Typer()
    app.add_typer(serve, name="serve")
    app.command("rollback")(rollback_command)

    def invoke(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, words)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout

    return invoke


def test_serve_audit_rollback_and_stop(
    ledger: Ledger, models: Models, first: str, fake: Callable[..., None], run: Callable[..., tuple[int, str]]
) -> None:
    deploy(ledger, STAGE, port=0)
    code, text = run("serve", STAGE, "--json")
    answer = json.loads(text)
    assert (code, answer["stage"], answer["model"], answer["reused"]) == (0, STAGE, first, True)
    code, text = run("serve", STAGE)
    assert code == 0
    assert f"curl {answer['endpoint']}/v1/chat/completions" in text

    second = promoted(ledger, "second", models["second"], 150, first)
    code, text = run("serve", "audit", "--json")
    assert (code, [finding["kind"] for finding in json.loads(text)]) == (1, ["not-promoted"])
    assert json.loads(run("serve", STAGE, "--json")[1])["model"] == second
    assert run("serve", "audit") == (0, "what runs is what the ledger says\n")

    code, text = run("rollback", STAGE, "--reason", "worse on long sums", "--json")
    assert (code, json.loads(text)["model"]) == (0, first)
    code, text = run("serve", "stop", STAGE, "--json")
    assert (code, len(json.loads(text)["stopped"])) == (0, 1)
    assert run("serve", "stop", STAGE)[1] == f"stage {STAGE} had no deployment\n"


def test_mistakes_are_errors_of_the_tree(ledger: Ledger, run: Callable[..., tuple[int, str]]) -> None:
    with pytest.raises(RuleBroken, match="posttrain promote MODEL --to nowhere"):
        run("serve", "nowhere")
    with pytest.raises(InputError):
        run("serve", "UPPER")
    with pytest.raises(RuleBroken, match="nothing to roll back"):
        run("rollback", STAGE, "--reason", "x")
    assert run("rollback", STAGE)[0] == 2
    assert run("serve", STAGE, "--port", "0")[0] == 2


def test_real_engines_are_exchanged_without_a_failed_request(ledger: Ledger, models: Models, first: str) -> None:
    second = promoted(ledger, "second", models["second"], 150, first)
    before = deploy(ledger, STAGE, port=0)
    text = complete(before.endpoint, STAGE, CHAT, max_tokens=6, temperature=0).text
    with Hammer(before.endpoint, STAGE, clients=2) as hammer:
        hammer.wait_for(second)
        after = rollback(ledger, STAGE, reason="worse")
        hammer.wait_for(first)
    assert hammer.failures == []
    assert (before.model, after.model) == (second, first)
    assert (hammer.models[0], hammer.models[-1], set(hammer.models)) == (second, first, {first, second})

    answer = complete(after.endpoint, STAGE, CHAT, max_tokens=6, temperature=0)
    assert (answer.model, answer.deployment) == (first, after.deployment_id)
    assert answer.text
    assert answer.text != text
    places = Places(ledger.home)
    assert [name for name, place in places.engines().items() if place.alive()] == [after.deployment_id]
    assert directory_digest(places.model(first)) == directory_digest(models["first"])
    assert audit(ledger) == []

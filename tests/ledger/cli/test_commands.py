"""Each command of the ledger on a real history: what it prints, as JSON and for people, and its exit code."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from ledger.cli.app import COMMANDS, app
from ledger.cli.runs import age
from ledger.digest import sha256_digest, short
from ledger.home import Ledger
from ledger.testing.history import ITEMS, DemoHistory
from tests.ledger.cli.conftest import Run


def every_command() -> list[tuple[str, ...]]:
    """The words of every command, in groups too."""
    top: Any = get_command(app)
    context = top.make_context("posttrain", [], resilient_parsing=True)
    found = []
    for name in top.list_commands(context):
        command = top.load(name)
        inner = getattr(command, "commands", None)
        found += [(name,)] if inner is None else [(name,), *((name, sub) for sub in inner)]
    return found


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_help_ends_with_an_example_and_json_is_everywhere(run: Run, words: tuple[str, ...]) -> None:
    answer = run(*words, "--help")
    assert answer.code == 0
    lines = [line.strip() for line in answer.out.splitlines() if line.strip()]
    is_group = any("Commands" in line for line in lines)
    if not is_group or words[0] in ("gate", "runs", "serve"):
        examples = lines[max(i for i, line in enumerate(lines) if line in ("Example:", "Examples:")) + 1 :]
        assert examples
        assert all(line.startswith("posttrain " + words[0]) for line in examples)
    if not is_group:
        assert "--json" in answer.out


def test_the_table_of_commands_is_what_the_modules_have() -> None:
    top: Any = get_command(app)
    for entry in COMMANDS:
        command = top.load(entry.name)
        assert command.name == entry.name
        assert command.help
        if not hasattr(command, "commands"):
            assert entry.example


def test_init_twice_changes_nothing(run: Run, home: Path) -> None:
    first, second = run("init", "--json").json, run("init", "--json").json
    assert first["created"] is True
    assert second == first | {"created": False}
    assert first["home"] == str(home)
    assert [event.type for event in Ledger.open().log.read()] == ["PriceSet"]
    assert run("budget", "price", "cpu", "0.07").code == 0
    assert run("init").code == 0
    assert Ledger.open().log.size() == 2  # a price that somebody set stays


def test_which_names_everything_with_digests(run: Run, demo: DemoHistory) -> None:
    answer = run("which", "production", "--json", "--timing")
    found = answer.json
    assert answer.code == 0
    assert (found["stage"], found["model"]) == ("production", demo.model)
    assert (found["base"]["name"], found["base"]["digest"]) == ("demo-base", demo.base)
    assert (found["dataset"]["digest"], found["dataset"]["rows"]) == (demo.dataset, ITEMS)
    assert found["dataset"]["sources"] == [{"name": "sums", "licence": "CC0-1.0", "rows": ITEMS}]
    assert found["code"] == demo.code.model_dump()
    assert found["config"]["values"] == {"learning_rate": "0.001", "steps": 20}
    assert (found["seed"], found["environment"]) == (7, demo.environment)
    assert (found["run"]["run_id"], found["checkpoint"]["digest"]) == (demo.run_id, demo.checkpoint)
    assert found["checkpoint"]["step"] == 20
    assert (found["evaluation"]["report"], found["evaluation"]["accuracy"]) == (demo.report, "0.75")
    assert (found["gate"]["gate_id"], found["gate"]["decision"]) == (demo.gate_id, "pass")
    assert (found["promotion"]["actor"], found["promotion"]["position"]) == ("ada", demo.promotion_position)
    assert found["deployment"]["served_name"] == demo.served_name
    assert found["log"]["position"] == len(demo.events)
    assert len(bytes.fromhex(found["log"]["root_hex"])) == 32
    assert found["query_us"] > 0


def test_which_as_a_tree_shows_the_same(run: Run, demo: DemoHistory) -> None:
    out = run("which", "--timing").out
    for shown in (
        f"production serves model {demo.model}", f"base demo-base {demo.base}", f"dataset sums {demo.dataset}",
        demo.code.commit, demo.code.diff, "learning_rate 0.001, steps 20", "seed 7", demo.environment, demo.run_id,
        f"step 20 {demo.checkpoint}", demo.report, "0.75 [0.6, 0.9]", demo.gate_id, "by ada at ", demo.served_name,
        f"position {len(demo.events)}",
    ):  # fmt: skip
        assert shown in out, shown
    assert re.search(r"query \d+\.\d ms\n$", out)


def test_which_as_of_a_position(run: Run, demo: DemoHistory) -> None:
    before = run("which", "--at", str(demo.promotion_position - 1))
    assert (before.code, before.out) == (2, "")
    then = run("which", "--at", str(demo.promotion_position), "--json").json
    assert (then["model"], then["deployment"]) == (demo.model, None)
    assert run("which", "--at", "yesterday").code == 2


def test_runs_newest_first(run: Run, demo: DemoHistory) -> None:
    rows = run("runs", "--json").json
    assert [row["position"] for row in rows] == sorted((row["position"] for row in rows), reverse=True)
    trained = next(row for row in rows if row["run_id"] == demo.run_id)
    assert trained == {
        "run_id": demo.run_id, "kind": "sft", "stage": "sft", "executor": "fake", "state": "completed", "seed": 7, "step": 20,
        "attempts": 1, "checkpoints": 1, "model": demo.model, "submitted_at": trained["submitted_at"],
        "updated_at": trained["updated_at"], "position": trained["position"],
    }  # fmt: skip
    table = run("runs").out
    assert table.splitlines()[0].split() == ["run", "stage", "kind", "executor", "state", "step", "attempts", "age"]
    assert len(run("runs", "--limit", "1", "--json").json) == 1
    assert "2 older" in run("runs", "--limit", "1").out


def test_a_run_by_its_first_digits(run: Run, demo: DemoHistory) -> None:
    shown = run("runs", "show", demo.run_id[:8], "--json").json
    assert shown["submitted"]["config"] == {"learning_rate": "0.001", "steps": 20}
    assert [event["type"] for event in shown["events"]] == [
        "RunSubmitted", "AttemptStarted", "CheckpointCommitted", "AttemptEnded", "RunCompleted",
    ]  # fmt: skip
    text = run("runs", "show", demo.run_id).out
    assert demo.base in text
    assert "learning_rate 0.001" in text
    assert short(demo.checkpoint) in text
    assert run("runs", "show", "r-ffffffffffffffff").code == 2


def test_ages_have_one_unit() -> None:
    from datetime import UTC, datetime

    now = datetime(2026, 1, 2, tzinfo=UTC)
    ages = {at: age(at, now) for at in ("2026-01-02T00:00:00Z", "2026-01-01T23:58:01.5Z", "2026-01-01T00:00:00Z")}
    assert list(ages.values()) == ["0 s", "1 min", "1 d"]
    assert age("2026-01-03T00:00:00Z", now) == "0 s"  # another machine's clock


def test_checkpoints(run: Run, demo: DemoHistory) -> None:
    (saved,) = run("checkpoint", "list", demo.run_id, "--json").json
    assert (saved["step"], saved["checkpoint"]) == (20, demo.checkpoint)
    shown = run("checkpoint", "show", f"{demo.run_id}:20", "--json").json
    assert {part["part"] for part in shown["parts"]} == {"model", "optimizer", "scheduler", "rng", "loader"}
    assert "model/model.safetensors" in shown["files"]
    assert demo.checkpoint in run("checkpoint", "show", short(demo.checkpoint)).out
    assert run("checkpoint", "show", f"{demo.run_id}:21").code == 2


def test_data_and_bases(run: Run, demo: DemoHistory) -> None:
    assert [event["type"] for event in run("data", "list", "--json").json] == [
        "DatasetVersionSealed",
        "SuiteRegistered",
    ]
    assert run("data", "show", "sums", "--json").json["payload"]["dataset"] == demo.dataset
    assert demo.suite in run("data", "show", "held-out").out
    assert run("data", "check", "sums").code == 0
    assert run("data", "show", "nothing").code == 2
    answer = run("data", "check", "nowhere/rows.jsonl")
    assert (answer.code, "no file nowhere/rows.jsonl" in answer.err) == (2, True)
    assert run("base", "list", "--json").json[0]["payload"]["base"] == demo.base
    assert run("base", "verify", "demo-base").code == 0


def test_pin_build_and_leak(run: Run, copy: DemoHistory, tmp_path: Path) -> None:
    model = tmp_path / "model"
    Ledger.open().artifacts.materialise(copy.model, model)
    pinned = run("base", "pin", "second", str(model), "--licence", "CC0-1.0", "--json").json
    assert (pinned["payload"]["base"], pinned["reused"]) == (copy.model, False)
    assert run("base", "pin", "second", str(model), "--json").json["reused"] is True
    (model / "config.json").write_text("{}")
    differs = run("base", "verify", "second", str(model), "--json")
    assert (differs.code, [problem["name"] for problem in differs.json]) == (1, ["config.json"])
    assert run("base", "pin", "third", str(tmp_path / "nowhere")).code == 2
    (tmp_path / "rows.jsonl").write_text('{"prompt": "90 + 90 = ", "response": "180"}\n')
    (tmp_path / "recipe.yaml").write_text(
        "name: mine\nsources:\n  - {name: rows, path: rows.jsonl, licence: CC0-1.0}\n"
    )
    assert run("data", "build", str(tmp_path / "recipe.yaml"), "--json").json["payload"]["rows"] == 1
    (tmp_path / "rows.jsonl").write_text('{"prompt": "3 + 3 = ", "response": "6"}\n')
    leaked = run("data", "build", str(tmp_path / "recipe.yaml"), "--json")
    assert (leaked.code, leaked.json["error"]["kind"]) == (1, "LeakFound")
    assert run("data", "check", str(tmp_path / "rows.jsonl")).code == 1


def test_a_gate_that_says_no_is_1_and_its_promotion_3(run: Run, copy: DemoHistory) -> None:
    passed = run("gate", copy.model, "--against", "demo-base", "--json")
    assert (passed.code, passed.json["reused"], passed.json["payload"]["gate_id"]) == (0, True, copy.gate_id)
    # Nothing named: against what the stage serves, which is the model itself.
    same = run("gate", copy.run_id)
    assert same.code == 1
    assert "paired gain  0, interval [" in same.out
    assert "\nfailed\n" in same.out
    worse = run("gate", "demo-base", "--against", copy.model, "--json")
    assert (worse.code, worse.json["payload"]["decision"]) == (1, "fail")
    refused = run("promote", "demo-base", "--to", "production", "--reason", "because", "--json")
    assert refused.code == 3
    assert refused.json["error"]["kind"] == "RuleBroken"
    assert run("which", "--json").json["model"] == copy.model


def test_gate_policies(run: Run, copy: DemoHistory) -> None:
    assert "held-out" in run("gate", "policy", "production").out
    assert run("gate", "policy", "staging").code == 2
    set_ = run("gate", "policy", "staging", "--suite", "held-out", "--min-items", "10", "--json").json
    assert set_ == run("gate", "policy", "staging", "--json").json
    assert set_["payload"]["min_items"] == 10
    assert run("gate", "policy", "staging", "--suite", "held-out", "--confidence", "2").code == 2
    assert run("gate", copy.model, "--against", "demo-base", "--stage", "staging").code == 0
    promoted = run("promote", copy.model, "--to", "staging", "--reason", "to look at it", "--json").json
    assert (promoted["payload"]["reason"], promoted["reused"]) == ("to look at it", False)


def test_budgets_prices_and_costs(run: Run, copy: DemoHistory) -> None:
    assert run("budget", "show", "sft", "--json").json == [
        {"stage": "sft", "cap": "10", "spent": "0.005", "reserved": "0", "remaining": "9.995"}
    ]
    assert run("budget", "set", "sft", "25.00", "--reason", "more").code == 0
    assert run("budget", "set", "sft", "a lot").code == 2
    assert run("budget", "price", "cuda", "2.50", "--json").json["payload"]["per_device_hour"] == "2.5"
    (row,) = run("cost", "--json").json
    assert (row["run_id"], row["spent"], row["device_seconds"]) == (copy.run_id, "0.005", "180")
    assert run("cost").out.splitlines()[-1].split() == ["total", "0.005", "0"]


def test_the_log_is_shown_and_followed(run: Run, demo: DemoHistory) -> None:
    lines = [json.loads(line) for line in run("log", "tail", "-n", "3", "--json").out.splitlines()]
    assert [line["position"] for line in lines] == [len(demo.events) - 2, len(demo.events) - 1, len(demo.events)]
    assert run("log", "tail", "-n", "0").out == ""
    assert run("log", "show", "1", "--json").json["payload"]["name"] == "demo-base"
    assert json.loads(run("log", "show", "1").out)["type"] == "BaseRevisionPinned"
    assert run("log", "show", "999").code == 2
    verified = run("log", "verify", "--json")
    assert (verified.code, verified.json["events"], verified.json["findings"]) == (0, len(demo.events), [])
    assert run("fsck", "--json").json == []


def test_a_changed_event_is_found_by_its_place(run: Run, copy: DemoHistory, home: Path) -> None:
    with sqlite3.connect(home / "ledger.db") as database:
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]
        for name in names:
            database.execute(f"DROP TRIGGER {name}")
        database.execute(
            "UPDATE events SET body = CAST(replace(body, 'better', 'BETTER') AS BLOB) WHERE position = ?", (27,)
        )
    verified = run("log", "verify", "--json")
    assert verified.code == 1
    assert 27 in {finding["position"] for finding in verified.json["findings"]}
    assert "position 27: stage/production" in run("fsck").out
    assert run("fsck").code == 1
    assert run("which").code == 1


def test_a_changed_artifact_is_found_by_its_place(run: Run, copy: DemoHistory, home: Path) -> None:
    digest = Ledger.open().artifacts.manifest(copy.model).files["model.safetensors"].digest.removeprefix("sha256:")
    (blob,) = home.rglob(digest)
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[:-1] + b"\xff")
    answer = run("fsck", "--json")
    assert answer.code == 1
    assert any("model.safetensors" in finding["place"] for finding in answer.json)
    assert run("fsck", "--skip-artifacts").code == 0
    assert run("log", "verify").code == 0


def test_lineage(run: Run, demo: DemoHistory) -> None:
    up = run("lineage", "production", "--json").json
    assert up["complete"] is True
    kinds = {node["kind"] for node in up["nodes"]}
    assert {"promotion", "gate", "model", "run", "base", "dataset", "code", "config", "environment", "report"} <= kinds
    nodes = {node["node"] for node in up["nodes"]}
    assert f"base:{demo.base}" in nodes
    assert {edge["source"] for edge in up["edges"]} | {edge["target"] for edge in up["edges"]} == nodes
    tree = run("lineage", "production").out
    assert tree.startswith("promotion production at position ")
    assert f"base demo-base {short(demo.base)}" in tree
    assert tree.rstrip().endswith("complete")
    down = run("lineage", "sums", "--down", "--format", "json").json
    assert {"run", "model", "gate", "promotion"} <= {node["kind"] for node in down["nodes"]}
    assert run("lineage", "production", "--up", "--down").code == 2
    assert run("lineage", "nothing-like-it").code == 2


def test_sql_formats(run: Run, demo: DemoHistory) -> None:
    pytest.importorskip("duckdb")
    query = "SELECT run_id, state, step, config FROM runs WHERE kind = 'sft'"
    answer = run("sql", query, "--json").json
    assert answer["position"] == len(demo.events)
    assert [column["name"] for column in answer["columns"]] == ["run_id", "state", "step", "config"]
    config = {"learning_rate": "0.001", "steps": 20}
    assert answer["rows"] == [{"run_id": demo.run_id, "state": "completed", "step": 20, "config": config}]
    csv = run("sql", query, "--format", "csv").out.splitlines()
    assert csv == [
        "run_id,state,step,config",
        f'{demo.run_id},completed,20,"{{""learning_rate"": ""0.001"", ""steps"": 20}}"',
    ]
    assert "1 row, as of position" in run("sql", query).out
    assert run("sql").code == 0
    assert run("sql", "DELETE FROM events").code == 3
    assert run("sql", "SELECT").code == 2


def test_a_model_reference_that_means_nothing_says_what_is_known(run: Run, demo: DemoHistory) -> None:
    answer = run("promote", "nothing", "--to", "production")
    assert answer.code == 2
    assert "demo-base" in answer.err
    assert run("promote", sha256_digest(b"unknown"), "--to", "production").code == 2

"""Ancestors and descendants, complete or saying why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.errors import NotFound
from ledger.home import Ledger
from ledger.lineage import Lineage, trace
from ledger.references import resolve_node
from ledger.testing import DemoHistory, demo_history


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger.open(tmp_path_factory.mktemp("home"), create=True, actor="ada")


@pytest.fixture(scope="module")
def demo(ledger: Ledger) -> DemoHistory:
    return demo_history(ledger)


def links(lineage: Lineage) -> set[tuple[str, str, str]]:
    return {(link.source, link.role, link.target) for link in lineage.links}


def test_up_from_the_model(ledger: Ledger, demo: DemoHistory) -> None:
    found = trace(ledger, f"model:{demo.model}")
    run = f"run:{demo.run_id}"
    spec = next(node for node in found.nodes if node.startswith("config:"))
    assert links(found) >= {
        (run, "run", f"model:{demo.model}"),
        (f"base:{demo.base}", "base", run),
        (f"dataset:{demo.dataset}", "dataset", run),
        (f"code:{demo.code.node()}", "code", run),
        (f"environment:{demo.environment}", "environment", run),
        (spec, "config", run),
    }
    assert f"checkpoint:{demo.checkpoint}" not in found.nodes  # a sibling, not an ancestor
    assert f"suite:{demo.suite}" not in found.nodes
    assert (found.complete, found.reason, found.as_of) == (True, "", len(demo.events))
    assert found.nodes[run].label == f"sft {demo.run_id} (sft, seed 7)"
    assert found.nodes[f"base:{demo.base}"].label.startswith("demo-base ")
    assert found.nodes[f"code:{demo.code.node()}"].position is None


def test_up_from_what_serves(ledger: Ledger, demo: DemoHistory) -> None:
    found = trace(ledger, f"promotion:production/{demo.gate_id}")
    assert {
        f"gate:{demo.gate_id}", f"report:{demo.report}", f"report:{demo.base_report}", f"suite:{demo.suite}",
        f"model:{demo.base}", f"model:{demo.model}", f"dataset:{demo.dataset}", f"base:{demo.base}",
        "verifier:exact-answer@1",
    } <= set(found.nodes)  # fmt: skip
    assert found.complete
    kinds = {node.kind for node in found.nodes.values()}
    assert kinds == {
        "promotion", "gate", "report", "suite", "model", "dataset", "base", "verifier", "run", "code", "config",
        "environment",
    }  # fmt: skip


def test_down_from_the_base(ledger: Ledger, demo: DemoHistory) -> None:
    found = trace(ledger, f"base:{demo.base}", "down")
    assert {
        f"run:{demo.run_id}", f"model:{demo.model}", f"checkpoint:{demo.checkpoint}", f"report:{demo.report}",
        f"gate:{demo.gate_id}", f"promotion:production/{demo.gate_id}", f"deployment:{demo.deployment_id}",
    } <= set(found.nodes)  # fmt: skip
    assert f"dataset:{demo.dataset}" not in found.nodes
    assert (found.root, found.direction) == (f"base:{demo.base}", "down")


def test_down_from_a_base_called_by_its_name_reaches_its_runs(ledger: Ledger, demo: DemoHistory) -> None:
    found = trace(ledger, resolve_node(ledger, "demo-base"), "down")
    assert f"run:{demo.run_id}" in found.nodes
    assert f"model:{demo.model}" in found.nodes


def test_up_and_down_agree(ledger: Ledger, demo: DemoHistory) -> None:
    payloads = [event.payload for event in demo.events]
    everything = {edge.node for payload in payloads for edge in (*payload.inputs(), *payload.outputs())}
    up = {node: set(trace(ledger, node).nodes) for node in everything}
    down = {node: set(trace(ledger, node, "down").nodes) for node in everything}
    for node in everything:
        assert {other for other in everything if node in up[other]} == down[node]


def test_as_of(ledger: Ledger, demo: DemoHistory) -> None:
    submitted = next(e.position for e in demo.events if e.type == "RunSubmitted")
    then = trace(ledger, f"base:{demo.base}", "down", at=submitted)
    assert set(then.nodes) == {f"base:{demo.base}", f"run:{demo.run_id}"}
    assert then.as_of == submitted
    with pytest.raises(NotFound, match=f"no event up to position {submitted} speaks of model:"):
        trace(ledger, f"model:{demo.model}", at=submitted)


def test_a_limit(ledger: Ledger, demo: DemoHistory) -> None:
    whole = trace(ledger, f"model:{demo.model}")
    part = trace(ledger, f"model:{demo.model}", limit=len(whole.nodes) - 1)
    assert (len(part.nodes), part.complete) == (len(whole.nodes) - 1, False)
    assert part.reason == f"stopped after {len(part.nodes)} nodes"
    assert all(link.source in part.nodes and link.target in part.nodes for link in part.links)
    exact = trace(ledger, f"model:{demo.model}", limit=len(whole.nodes))
    assert (exact.complete, exact.reason) == (True, "")


@pytest.mark.parametrize("node", ["model:sha256:" + "0" * 64, "", "model:", "tea:x"])
def test_an_unknown_node(ledger: Ledger, demo: DemoHistory, node: str) -> None:
    with pytest.raises(NotFound, match="speaks of"):
        trace(ledger, node)


def test_nothing_is_recorded_by_asking(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, create=True, actor="ada")
    with pytest.raises(NotFound):
        trace(ledger, "model:x")
    assert ledger.log.size() == 0

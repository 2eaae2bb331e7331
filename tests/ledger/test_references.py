"""From what people write to a digest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger import references
from ledger.errors import InputError, NotFound, PosttrainError
from ledger.events import BaseRevisionPinned
from ledger.home import Ledger
from ledger.testing import DemoHistory, demo_history

Write = Callable[[DemoHistory], str]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger.open(tmp_path_factory.mktemp("home"), create=True, actor="ada")


@pytest.fixture(scope="module")
def demo(ledger: Ledger) -> DemoHistory:
    made = demo_history(ledger)
    for last in "ab":  # two digests that begin alike
        twin = BaseRevisionPinned(
            name=f"twin-{last}", base="sha256:" + "f" * 63 + last, source="x", size_bytes=1, files=1,
            tokenizer=made.tokenizer,
        )  # fmt: skip
        ledger.record(twin)
    return made


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (lambda d: d.model, "model"),
        (lambda d: d.model[7:15], "model"),
        (lambda d: d.model[7:70], "model"),
        (lambda d: "production", "model"),
        (lambda d: "arithmetic", "model"),
        (lambda d: "arithmetic@1", "model"),
        (lambda d: d.run_id, "model"),
        (lambda d: d.run_id[:6], "model"),
        (lambda d: f"{d.run_id}:20", "model"),
        (lambda d: "demo-base", "base"),
        (lambda d: d.base[7:17], "base"),
    ],
)
def test_a_model(ledger: Ledger, demo: DemoHistory, text: Write, field: str) -> None:
    assert references.resolve_model(ledger, text(demo)) == getattr(demo, field)


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (lambda d: "nothing", NotFound, "no model called 'nothing'; known: production, demo-base"),
        (lambda d: "sha256:" + "0" * 64, NotFound, "no model in the ledger has digest"),
        (lambda d: "0" * 8, NotFound, "no model in the ledger has digest 00000000"),
        (lambda d: "f" * 10, InputError, "is the beginning of 2 model digests; give more digits"),
        (lambda d: "arithmetic@2", NotFound, "no model called"),
        (lambda d: "arithmetic@0", NotFound, "no model called"),
        (lambda d: "arithmetic@x", NotFound, "no model called"),
        (lambda d: f"{d.run_id}:19", NotFound, "has no checkpoint at step 19; steps saved: 20"),
        (lambda d: "r-ffffffff", NotFound, "no run called"),
        (lambda d: "", NotFound, "no model called"),
        (lambda d: "../../etc", NotFound, "no model called"),
        (lambda d: "%", NotFound, "no model called"),
        (lambda d: "\udcff", InputError, "not valid Unicode"),
        (lambda d: d.dataset, NotFound, "no model in the ledger has digest"),
    ],
)
def test_no_model(ledger: Ledger, demo: DemoHistory, text: Write, kind: type[PosttrainError], says: str) -> None:
    with pytest.raises(kind, match=says):
        references.resolve_model(ledger, text(demo))


def test_a_checkpoint(ledger: Ledger, demo: DemoHistory) -> None:
    for text in (demo.checkpoint, demo.checkpoint[7:15], demo.run_id, f"{demo.run_id}:20"):
        assert references.resolve_checkpoint(ledger, text).checkpoint == demo.checkpoint
    with pytest.raises(NotFound, match="no checkpoint in the ledger"):
        references.resolve_checkpoint(ledger, demo.model)


def test_things_with_names(ledger: Ledger, demo: DemoHistory) -> None:
    cases = (
        (references.resolve_base, "demo-base", demo.base),
        (references.resolve_dataset, "sums", demo.dataset),
        (references.resolve_suite, "held-out", demo.suite),
    )
    for resolve, name, digest in cases:
        assert {resolve(ledger, text) for text in (name, digest, digest[7:20])} == {digest}
        with pytest.raises(NotFound, match="called 'nothing'; known: "):
            resolve(ledger, "nothing")
    assert references.resolve_run(ledger, demo.run_id[:7]) == demo.run_id
    with pytest.raises(InputError, match="r- is the beginning of 3 run ids"):
        references.resolve_run(ledger, "r-")


@pytest.mark.parametrize(
    ("text", "node"),
    [
        (lambda d: f"dataset:{d.dataset}", lambda d: f"dataset:{d.dataset}"),
        (lambda d: "production", lambda d: f"promotion:production/{d.gate_id}"),
        (lambda d: d.run_id, lambda d: f"run:{d.run_id}"),
        (lambda d: d.gate_id, lambda d: f"gate:{d.gate_id}"),
        (lambda d: d.deployment_id, lambda d: f"deployment:{d.deployment_id}"),
        (lambda d: d.model, lambda d: f"model:{d.model}"),
        (lambda d: "sums", lambda d: f"dataset:{d.dataset}"),
        (lambda d: "held-out", lambda d: f"suite:{d.suite}"),
        (lambda d: f"{d.run_id}:20", lambda d: f"model:{d.model}"),
    ],
)
def test_a_node(ledger: Ledger, demo: DemoHistory, text: Write, node: Write) -> None:
    assert references.resolve_node(ledger, text(demo)) == node(demo)


@pytest.mark.parametrize("text", ["nothing", "model:x", "g-0", "d-0", "", ":"])
def test_no_node(ledger: Ledger, demo: DemoHistory, text: str) -> None:
    with pytest.raises(NotFound, match="nothing in the ledger is called"):
        references.resolve_node(ledger, text)

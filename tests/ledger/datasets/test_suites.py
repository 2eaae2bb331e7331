"""Suites: registered once, judged by a verifier that exists, and held against what was sealed before."""

from __future__ import annotations

import json

import pytest

from ledger.datasets import register_suite_file, suites
from ledger.digest import sha256_digest
from ledger.errors import InputError, NotFound, RuleBroken
from ledger.events import ArtifactErased, CodeRevision, RunSubmitted

HELD_OUT = "Mia has 5 figs. She buys 3 more and sells 2. How many figs does she have now?"
TRAINED = "Tom has 4 nuts. He loses 1. How many nuts does he have now?"


def submit(project, dataset: str) -> None:
    spec = sha256_digest(dataset.encode())
    code = CodeRevision(commit="tree", diff=spec, dirty=False)
    project.ledger.record(
        RunSubmitted(
            run_id=f"r-{spec[7:23]}", kind="sft", stage="s", executor="fake", spec=spec, config={}, seed=1, dataset=dataset,
            code=code, environment=spec,
        )
    )  # fmt: skip


def test_a_suite_is_stored_and_registered_once(project):
    registered = project.suite("held-out", HELD_OUT, "What is 4-1-7?")
    payload = registered.event.payload
    assert (payload.name, payload.items, payload.verifier, registered.reused) == ("held-out", 2, "exact-answer", False)
    lines = project.ledger.artifacts.read(payload.suite, "items.jsonl").decode().splitlines()
    assert json.loads(lines[0]) == {"prompt": HELD_OUT, "answer": "7"}
    assert json.loads(project.ledger.artifacts.read(payload.suite, "suite.json")) == {
        "name": "held-out", "verifier": "exact-answer", "verifier_config": {}, "items": 2,
    }  # fmt: skip
    again = project.suite("held-out", HELD_OUT, "What is 4-1-7?")
    assert (again.reused, again.event.position, project.types()) == (True, 1, ["SuiteRegistered"])
    assert not project.suite("held-out", HELD_OUT).reused


def test_questions_that_differ_by_an_operator_are_two_items(project):
    assert project.suite("sums", "4-1-7=", "4+1-7=", "4-1+7=").event.payload.items == 3


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], r"held-out\.jsonl: no items; an empty suite measures nothing"),
        ([("a b c", "1"), ("x", "2"), ("A, b c!", "3")], r"held-out\.jsonl:3: the same prompt as line 1"),
        (
            [("a", "1"), ("b", "seven")],
            r"held-out\.jsonl:2: the gold answer 'seven' cannot be judged exactly: not a number",
        ),
        ([("a", "")], r"held-out\.jsonl:1: field 'answer' is empty"),
        ([("?!", "1")], r"held-out\.jsonl:1: the prompt has no word"),
    ],
)
def test_items_that_no_suite_can_have(project, rows, problem):
    project.rows("held-out.jsonl", ({"prompt": prompt, "answer": answer} for prompt, answer in rows))
    text = "name: held-out\nitems: held-out.jsonl\nverifier: exact-answer\nlicence: MIT\nsource: here\n"
    with pytest.raises(InputError, match=problem):
        register_suite_file(project.ledger, project.file("suite.yaml", text))
    assert project.types() == []


def test_the_verifier_has_to_exist_and_to_accept_its_configuration(project):
    project.rows("items.jsonl", [{"prompt": HELD_OUT, "answer": "6"}])
    head = "name: s\nitems: items.jsonl\nlicence: MIT\nsource: here\n"
    with pytest.raises(NotFound, match=r"no verifier is called 'exact'; known: exact-answer"):
        register_suite_file(project.ledger, project.file("suite.yaml", head + "verifier: exact\n"))
    settings = "verifier: exact-answer\nverifier_config: {mode: fast}\n"
    with pytest.raises(InputError, match="exact-answer has no setting 'mode'"):
        register_suite_file(project.ledger, project.file("suite.yaml", head + settings))
    with pytest.raises(InputError, match=r"suite\.yaml:5: verifer: unknown key \(did you mean 'verifier'\?\)"):
        register_suite_file(project.ledger, project.file("suite.yaml", head + "verifer: exact-answer\n"))


def test_items_can_have_other_fields(project):
    project.rows("gsm.jsonl", [{"question": "How many are 2 and 5?", "answer": "2+5=7\n#### 7"}])
    text = "name: gsm\nitems: gsm.jsonl\nprompt_field: question\nverifier: exact-answer\nlicence: MIT\nsource: here\n"
    assert register_suite_file(project.ledger, project.file("suite.yaml", text)).event.payload.items == 1


def test_a_version_that_holds_a_new_suite_s_items_cannot_be_trained_on(project):
    leaked = project.build(TRAINED, HELD_OUT).event.payload.dataset
    clean = project.build(TRAINED, name="other").event.payload.dataset
    registered = project.suite("held-out", HELD_OUT)
    assert registered.leaked == (leaked,)
    checks = [e.payload for e in project.ledger.log.read(types=("DecontaminationChecked",))][-2:]
    assert [(c.name, c.outcome, c.matches) for c in checks] == [("train", "leaked", 1), ("other", "clean", 0)]
    assert checks[0].examples[0].endswith(" row:2")
    with pytest.raises(RuleBroken, match="failed decontamination and cannot be an input of a run"):
        submit(project, leaked)
    submit(project, clean)
    assert project.suite("held-out", HELD_OUT).leaked == (leaked,)


def test_a_later_clean_suite_does_not_clear_a_version(project):
    leaked = project.build(TRAINED, HELD_OUT).event.payload.dataset
    project.suite("held-out", HELD_OUT)
    later = project.suite("another", "What are the three laws of robotics")
    assert later.leaked == ()  # of this suite it holds nothing
    with pytest.raises(RuleBroken, match="failed decontamination"):
        submit(project, leaked)


def test_a_row_in_two_suites_counts_for_the_new_one_too(project):
    leaked = project.build(*(f"{HELD_OUT} {n}" for n in range(7)), TRAINED).event.payload.dataset
    project.suite("first", *(f"{HELD_OUT} {n}" for n in range(7)))
    assert project.suite("second", TRAINED, f"{HELD_OUT} 6").leaked == (leaked,)
    check = project.ledger.log.last("dataset/train", "DecontaminationChecked").payload
    assert (check.matches, [example.partition(" ")[2] for example in check.examples]) == (
        8, ["row:7", "row:8", "row:1", "row:2", "row:3"],
    )  # fmt: skip


def test_a_suite_without_the_item_clears_it_when_it_replaces_the_old(project):
    dataset = project.build(TRAINED, HELD_OUT).event.payload.dataset
    project.suite("held-out", HELD_OUT)
    assert project.suite("held-out", "What are the three laws of robotics").leaked == ()
    submit(project, dataset)


def test_a_registration_whose_checks_were_lost_is_completed_by_the_next(project, monkeypatch):
    leaked = project.build(HELD_OUT).event.payload.dataset
    with monkeypatch.context() as patch:
        patch.setattr(suites, "_look_back", lambda *_: iter(()))
        project.suite("held-out", HELD_OUT)
    again = project.suite("held-out", HELD_OUT)
    assert (again.reused, again.leaked) == (True, (leaked,))


def test_an_erased_version_does_not_stop_a_registration(project):
    dataset = project.build(HELD_OUT).event.payload.dataset
    freed = project.ledger.artifacts.erase(dataset)
    project.ledger.record(ArtifactErased(artifact=dataset, reason="asked for", size_bytes=freed))
    assert project.suite("held-out", HELD_OUT).leaked == ()

"""Builds: what is sealed, what is removed, what is refused, and that nothing is recorded twice or half."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ledger.canonical import canonical_digest
from ledger.datasets import build as building
from ledger.datasets import build_dataset, check_dataset, check_sealed, list_datasets, load_recipe, sealed_rows
from ledger.datasets.rows import read_rows
from ledger.errors import InputError, LeakFound, StaleVersion
from ledger.events import DatasetVersionSealed, DecontaminationChecked

HELD_OUT = "Mia has 5 figs. She buys 3 more and sells 2. How many figs does she have now?"
TRAINED = "Tom has 4 nuts. He loses 1. How many nuts does he have now?"


def test_a_sealed_version_holds_rows_with_source_and_licence(project):
    project.rows("good.jsonl", [{"q": "What is 1+1?", "a": "2"}, {"q": "What is 1+2?", "a": "3"}])
    project.rows(
        "weak.jsonl.gz", [{"prompt": "what is 1 + 1", "response": "2"}, {"prompt": "What is 2+2?", "response": "5"}]
    )
    recipe = project.file(
        "recipe.yaml",
        """\
name: sums
sources:
- {name: good, path: good.jsonl, licence: CC0-1.0, prompt_field: q, response_field: a}
- {name: weak, path: weak.jsonl.gz, licence: MIT, generated_by: a model}
""",
    )
    counted = []
    sealed = build_dataset(project.ledger, recipe, progress=counted.append)
    payload = sealed.event.payload
    assert not sealed.reused
    assert (payload.name, payload.rows, payload.duplicates_removed, sum(counted)) == ("sums", 3, 1, 4)
    assert [(s.name, s.licence, s.generated_by, s.rows_read, s.rows_kept) for s in payload.sources] == [
        ("good", "CC0-1.0", None, 2, 2),
        ("weak", "MIT", "a model", 2, 1),
    ]
    assert payload.recipe == canonical_digest(load_recipe(recipe).to_json())
    files = project.ledger.artifacts.manifest(payload.dataset).files
    assert sorted(files) == ["dataset.json", "recipe.json", "rows.jsonl"]
    lines = project.ledger.artifacts.read(payload.dataset, "rows.jsonl").decode().splitlines()
    assert lines[0] == '{"licence":"CC0-1.0","prompt":"What is 1+1?","response":"2","source":"good"}'
    assert [json.loads(line)["source"] for line in lines] == ["good", "good", "weak"]
    assert json.loads(project.ledger.artifacts.read(payload.dataset, "dataset.json")) == {
        "format": "prompt-response", "name": "sums", "rows": 3,
    }  # fmt: skip
    assert next(iter(sealed_rows(project.ledger, payload.dataset))).prompt == "What is 1+1?"
    assert project.types() == ["DecontaminationChecked", "DatasetVersionSealed"]


def test_the_same_build_again_records_nothing(project):
    project.suite("held-out", HELD_OUT)
    first = project.build(TRAINED)
    size = project.ledger.log.size()
    again = project.build(TRAINED)
    assert (again.reused, again.checked_again, again.event.position) == (True, False, first.event.position)
    assert project.ledger.log.size() == size
    assert project.build(TRAINED, TRAINED.replace("4", "6")).event.payload.dataset != first.event.payload.dataset
    assert len(list_datasets(project.ledger)) == 2


def test_the_digest_does_not_depend_on_place_or_time(project, tmp_path_factory):
    other = type(project)(tmp_path_factory.mktemp("elsewhere"))
    assert project.build(TRAINED).event.payload.dataset == other.build(TRAINED).event.payload.dataset


def test_only_exact_duplicates_go(project):
    project.rows("source.jsonl", [
        {"prompt": "a b?", "response": "1"}, {"prompt": "A  b", "response": " 1 "}, {"prompt": "a b", "response": "2"},
        {"prompt": "5-0=", "response": "5"}, {"prompt": "5+0=", "response": "5"}, {"prompt": "a b", "response": "2"},
    ])  # fmt: skip
    payload = build_dataset(project.ledger, project.recipe("source.jsonl")).event.payload
    assert (payload.rows, payload.duplicates_removed) == (4, 2)
    assert [row.number for row in sealed_rows(project.ledger, payload.dataset)] == [1, 2, 3, 4]


def test_a_source_that_would_vanish_stops_the_build(project):
    same = [{"prompt": "same", "response": "same"}]
    project.rows("ok.jsonl", [{"prompt": f"p{n}", "response": "r"} for n in range(5)])
    project.rows("bad.jsonl", same * 200)
    with pytest.raises(InputError, match=r"bad\.jsonl: 199 of the 200 rows of source bad are duplicates"):
        build_dataset(project.ledger, project.recipe("ok.jsonl", "bad.jsonl"))
    assert project.types() == []
    sealed = build_dataset(project.ledger, project.recipe("ok.jsonl", "bad.jsonl", more='removal_cap: "1"\n'))
    assert sealed.event.payload.rows == 6
    project.rows("few.jsonl", same * 99)
    assert build_dataset(project.ledger, project.recipe("few.jsonl", name="few")).event.payload.rows == 1
    project.rows("half.jsonl", [{"prompt": f"h{n % 60}", "response": "r"} for n in range(120)])
    with pytest.raises(InputError, match="60 of the 120 rows"):
        build_dataset(project.ledger, project.recipe("half.jsonl", more="removal_cap: 0.4\n"))


def test_a_leak_is_recorded_and_nothing_is_sealed(project):
    suite = project.suite("held-out", "Something else with enough words in it", HELD_OUT).event.payload.suite
    project.rows("clean.jsonl", [{"prompt": TRAINED, "response": "3"}])
    project.rows("dirty.jsonl", [
        {"prompt": "an innocent question", "response": "x"},
        {"prompt": f"Q: {HELD_OUT.lower()}", "response": "no idea"},
    ])  # fmt: skip
    recipe = project.recipe("clean.jsonl", "dirty.jsonl")
    item = canonical_digest({"prompt": HELD_OUT, "answer": "7"})
    for _ in range(2):  # asked twice, recorded once
        with pytest.raises(LeakFound) as caught:
            build_dataset(project.ledger, recipe)
        assert caught.value.exit_code == 1
        assert str(caught.value) == (
            f"dataset train: 1 row overlaps a held-out suite: dirty line 2 holds item {item[7:19]} of held-out; "
            "remove them from the sources and build again. Nothing was sealed"
        )
    assert project.types() == ["SuiteRegistered", "DecontaminationChecked"]
    check = project.ledger.log.event(2).payload
    assert isinstance(check, DecontaminationChecked)
    assert (check.outcome, check.matches, check.suites, check.examples) == ("leaked", 1, (suite,), (f"{item} dirty:2",))
    assert not project.ledger.artifacts.has(check.dataset)
    project.rows("dirty.jsonl", [{"prompt": "an innocent question", "response": "x"}])
    assert build_dataset(project.ledger, recipe).event.payload.checked_suites == (suite,)


def test_all_leaks_are_counted_and_five_are_named(project):
    project.suite("held-out", *(f"{HELD_OUT} {n}" for n in range(9)))
    with pytest.raises(LeakFound, match=r"9 rows overlap .* source line 5 holds .*, …; remove"):
        project.build(*(f"{HELD_OUT} {n}" for n in range(9)))


def test_a_suite_that_came_later_is_checked_by_the_next_build(project):
    project.suite("first", HELD_OUT)
    project.build(TRAINED)
    project.suite("second", "What are the three laws of robotics")
    assert project.types() == [
        "SuiteRegistered", "DecontaminationChecked", "DatasetVersionSealed", "SuiteRegistered", "DecontaminationChecked",
    ]  # fmt: skip
    again = project.build(TRAINED)
    assert (again.reused, again.checked_again) == (True, False)  # the registration has looked back already


def test_a_suite_that_is_registered_during_a_build_is_not_missed(project, monkeypatch):
    real, calls = building.held_out_index, []

    def registering(ledger):
        answer = real(ledger)
        calls.append(answer)
        if len(calls) == 1:
            project.suite("late", HELD_OUT)
        return answer

    monkeypatch.setattr(building, "held_out_index", registering)
    with pytest.raises(LeakFound):
        project.build(HELD_OUT)
    assert len(calls) == 2
    assert "DatasetVersionSealed" not in project.types()


def test_two_builds_at_once_seal_once(project):
    project.rows("source.jsonl", ({"prompt": f"question {n}", "response": "r"} for n in range(2000)))
    recipe = project.recipe("source.jsonl")
    code = (
        "import sys; from pathlib import Path; from ledger.home import Ledger; from ledger.datasets import build_dataset\n"
        "print(build_dataset(Ledger.open(Path(sys.argv[1])), Path(sys.argv[2])).reused)"
    )
    root = Path(__file__).resolve().parents[3]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, project.ledger.home, recipe], cwd=root, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate()[0].strip() for process in started]
    assert sorted(said) == ["False", "True"]
    assert project.types() == ["DecontaminationChecked", "DatasetVersionSealed"]


def test_builds_that_are_killed_leave_a_ledger_that_the_next_one_completes(project):
    project.rows("source.jsonl", ({"prompt": f"question {n}", "response": "r"} for n in range(3000)))
    recipe = project.recipe("source.jsonl")
    code = (
        "import sys; from pathlib import Path; from ledger.home import Ledger; from ledger.datasets import build_dataset\n"
        "ledger = Ledger.open(Path(sys.argv[1])); print('go', flush=True); build_dataset(ledger, Path(sys.argv[2]))"
    )
    root, rng = Path(__file__).resolve().parents[3], random.Random(2)
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", code, project.ledger.home, recipe], cwd=root, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.3))
        process.kill()
        process.communicate()
        assert project.types() in ([], ["DecontaminationChecked", "DatasetVersionSealed"])
    payload = build_dataset(project.ledger, recipe).event.payload
    assert isinstance(payload, DatasetVersionSealed)
    assert project.types() == ["DecontaminationChecked", "DatasetVersionSealed"]
    assert project.ledger.artifacts.problems(payload.dataset) == []


def test_a_build_that_never_gets_its_turn_says_so(project, monkeypatch):
    def outrun(*_):
        raise StaleVersion("moved")

    monkeypatch.setattr(building, "_build_once", outrun)
    with pytest.raises(StaleVersion, match="others keep changing dataset train"):
        project.build(TRAINED)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name: x\nsources: []\n", r"recipe\.yaml:2: sources: tuple should have at least 1 item"),
        ("name: X Y\nsources: [{name: a, path: a, licence: MIT}]\n", r"recipe\.yaml:1: name: string should match"),
        ("name: x\nsources: [{name: a, path: a}]\n", r"recipe\.yaml:2: sources\[0\]\.licence: required key is missing"),
        (
            "name: x\nsources: [{name: a, path: a, licence: ' '}]\n",
            r"sources\[0\]\.licence: string should have at least 1",
        ),
        (
            "name: x\nsources: [{name: a, path: a, licence: MIT}, {name: a, path: b, licence: MIT}]\n",
            "two sources are called 'a'",
        ),
        (
            "name: x\nremoval_cap: 1.5\nsources: [{name: a, path: a, licence: MIT}]\n",
            r"recipe\.yaml:2: removal_cap: .* not 1\.5",
        ),
        (
            "name: x\nformat: chat\nsources: [{name: a, path: a, licence: MIT}]\n",
            r"recipe\.yaml:2: format: input should be",
        ),
        ("name: x\nsources: [{name: a, path: absent.jsonl, licence: MIT}]\n", r"absent\.jsonl does not exist"),
    ],
)
def test_a_wrong_recipe(project, text, problem):
    with pytest.raises(InputError, match=problem):
        build_dataset(project.ledger, project.file("recipe.yaml", text))
    assert project.types() == []


def test_a_source_without_rows(project):
    project.file("source.jsonl", "\n\n")
    with pytest.raises(InputError, match=r"recipe\.yaml: its sources hold no row"):
        build_dataset(project.ledger, project.recipe("source.jsonl"))


def test_checking_records_nothing(project):
    project.suite("held-out", HELD_OUT)
    file = project.rows("rows.jsonl", [{"prompt": TRAINED, "response": "x"}, {"prompt": HELD_OUT, "response": "x"}])
    dataset = project.build(TRAINED).event.payload.dataset
    size = project.ledger.log.size()
    checked = check_dataset(project.ledger, read_rows(file, "prompt", "response"), "rows.jsonl")
    assert (checked.rows, [(m.source, m.row) for m in checked.matches]) == (2, [("rows.jsonl", 2)])
    assert check_sealed(project.ledger, dataset).matches == ()
    assert project.ledger.log.size() == size

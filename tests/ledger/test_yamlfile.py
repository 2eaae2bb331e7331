"""YAML files: what is accepted, and that each mistake is one line that names the file, the line and the key."""

from __future__ import annotations

import os
import re
import time
from decimal import Decimal
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from ledger.errors import InputError
from ledger.yamlfile import MAX_BYTES, load_yaml


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Config(Part):
    steps: int = Field(gt=0)
    rate: Decimal = Decimal("0.1")
    betas: tuple[Decimal, ...] = ()

    @field_validator("rate")
    @classmethod
    def small(cls, rate: Decimal) -> Decimal:
        if rate > 1:
            raise ValueError("a learning rate above 1\ndiverges")
        return rate


class Cat(Part):
    kind: Literal["cat"]
    lives: int


class Dog(Part):
    kind: Literal["dog"]
    bark: str


class Stage(Part):
    name: str
    config: Config
    pet: Cat | Dog | None = Field(default=None, discriminator="kind")
    others: tuple[Config, ...] = ()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def load(content: str | bytes) -> Stage:
        path = Path("stage.yaml")
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return load_yaml(path, Stage)

    return load


def refusal(load, content: str | bytes) -> str:
    with pytest.raises(InputError) as caught:
        load(content)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


def test_a_valid_file_becomes_a_strict_frozen_model(load):
    stage = load("name: first\nconfig:\n  steps: 3\n  rate: 3e-4\n  betas: [0.9, 0.95]\npet: {kind: dog, bark: loud}\n")
    assert stage == Stage(
        name="first",
        config=Config(steps=3, rate=Decimal("0.0003"), betas=(Decimal("0.9"), Decimal("0.95"))),
        pet=Dog(kind="dog", bark="loud"),
    )


def test_the_old_guesses_of_yaml_are_text(load):
    for text in ("no", "on", "yes", "1:30", "2026-11-29", "0o", "1_000"):
        assert load(f"name: {text}\nconfig: {{steps: 1}}\n").name == text
    assert load("name: x\nconfig: {steps: 0x10}").config.steps == 16


def test_a_byte_order_mark_and_windows_line_ends_are_read(load):
    assert load(b"\xef\xbb\xbfname: x\r\nconfig:\r\n  steps: 2\r\n").config.steps == 2


def test_an_unknown_key_names_its_line_and_the_key_that_was_meant(load):
    assert refusal(load, "name: x\n\nconfig:\n  steps: 1\n\n  # why\n  stepz: 3\n") == (
        "stage.yaml:7: config.stepz: unknown key (did you mean 'steps'?)"
    )
    assert refusal(load, "name: x\nconfig:\n  steps: 1\n  zzz: 3\n") == (
        "stage.yaml:4: config.zzz: unknown key (known keys: betas, rate, steps)"
    )


def test_unknown_keys_in_lists_and_unions_find_their_model(load):
    head = "name: x\nconfig: {steps: 1}\n"
    assert refusal(load, head + "others:\n  - steps: 1\n  - steps: 2\n    ratee: 1\n") == (
        "stage.yaml:6: others[1].ratee: unknown key (did you mean 'rate'?)"
    )
    assert refusal(load, head + "pet:\n  kind: dog\n  bark: w\n  barks: w\n") == (
        "stage.yaml:6: pet.barks: unknown key (did you mean 'bark'?)"
    )


def test_a_missing_key_is_reported_where_it_belongs(load):
    assert refusal(load, "name: x\nconfig:\n  rate: 0.1\n") == "stage.yaml:2: config.steps: required key is missing"


def test_wrong_values_are_shown(load):
    assert refusal(load, "name: x\nconfig:\n  steps: -1\n  rate: fast\n") == (
        "stage.yaml:3: config.steps: input should be greater than 0, not -1; "
        "stage.yaml:4: config.rate: input should be a valid decimal, not 'fast'"
    )
    assert refusal(load, "name: x\nconfig: 3\n") == "stage.yaml:2: config: input should be an object, not 3"
    assert refusal(load, "name: x\nconfig:\n") == "stage.yaml:2: config: input should be an object, not null"
    assert refusal(load, "name: x\nconfig:\n  steps: 1\n  rate: 2\n") == (
        r"stage.yaml:4: config.rate: a learning rate above 1\ndiverges"
    )


def test_at_most_five_problems_and_the_number_of_the_rest(load):
    message = refusal(load, "name: x\nconfig: {steps: 1}\n" + "".join(f"zz{index}: 1\n" for index in range(8)))
    assert message.count("unknown key") == 5
    assert message.endswith("; and 3 more problems")


@pytest.mark.parametrize(
    ("content", "start"),
    [
        ("name: a: b\n", "stage.yaml:1:8: not valid YAML: mapping values are not allowed here"),
        ("name: x\n\tconfig: 1\n", "stage.yaml:2:1: not valid YAML: found character '\\t'"),
        ("name: [1, 2\n", "stage.yaml:2:1: not valid YAML: expected ',' or ']'"),
        ("name: x\n---\nname: y\n", "stage.yaml:2:1: not valid YAML: a second document begins here"),
        ("name: x\nname: y\n", "stage.yaml:2: name: key repeated; it is already on line 1"),
        ("config:\n  steps: 1\n  'steps': 2\n", "stage.yaml:3: config.steps: key repeated"),
        ("name: &a x\n", "stage.yaml:1: anchor '&a' is not supported"),
        ("name: *a\n", "stage.yaml:1: alias '*a' is not supported"),
        ("name: x\n1: y\n", "stage.yaml:2: 1: a key must be text; quote it: '1'"),
        ("? [a, b]\n: 1\n", "stage.yaml:1: a key must be text, not a list"),
        ("name: !!python/object/apply:os.system ['true']\n", "stage.yaml:1: tag 'tag:yaml.org,2002:python/object"),
        ("name: !!binary aGk=\n", "stage.yaml:1: tag 'tag:yaml.org,2002:binary' is not supported"),
        ("- a\n", "stage.yaml:1: expected 'key: value' lines at the top, found a list"),
        ("just text\n", "stage.yaml:1: expected 'key: value' lines at the top, found a single value"),
        ("", "stage.yaml: is empty"),
        ("# nothing\n---\n", "stage.yaml: is empty"),
        ("name: x\nb: \x07\n", "stage.yaml:2: character U+0007 is not allowed in YAML"),
        ("name: .nan\n", "stage.yaml:1: name: '.nan' is not a finite number"),
        ("name: 1e999\n", "stage.yaml:1: name: '1e999' is not a finite number"),
        ("name: " + "9" * 5000, "stage.yaml:1: name: an integer of 5000 digits"),
        ('name: "\\ud800"\n', "stage.yaml:1: name: a lone surrogate is not text"),
        (b"name: x\nb: \xff\n", "stage.yaml:2: byte 0xff is not UTF-8"),
        ("name: " + "[" * 100_000, "stage.yaml:1: nested deeper than 32"),
        ("name: x\n" + "#" * MAX_BYTES, "stage.yaml: larger than 1000000 bytes"),
    ],
)  # fmt: skip
def test_malformed_files_are_refused_in_one_line(load, content, start):
    assert refusal(load, content).startswith(start)


def test_a_key_cannot_write_to_the_terminal(load):
    message = refusal(load, 'name: x\nconfig: {steps: 1}\n"a\\e[31m\\nb": 1\n')
    assert r"a\x1b[31m\nb: unknown key" in message
    assert "\x1b" not in message


def test_what_is_not_a_file_is_refused_without_reading_it(tmp_path: Path):
    with pytest.raises(InputError, match="no such file"):
        load_yaml(tmp_path / "absent.yaml", Stage)
    with pytest.raises(InputError, match="is a directory"):
        load_yaml(tmp_path, Stage)
    with pytest.raises(InputError, match="is not a file name"):
        load_yaml(Path("a\0b"), Stage)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is not a regular file"):
        load_yaml(pipe, Stage)


def test_cost_grows_with_the_size_and_not_faster(load):
    def seconds(rows: int) -> float:
        started = time.process_time()
        refusal(load, "name: x\nconfig: {steps: 1}\nothers:\n" + "- {steps: 0, rate: {a: [1, 2]}}\n" * rows)
        return time.process_time() - started

    seconds(50)
    assert seconds(4000) / seconds(1000) < 10


def test_problem_lines_match_the_documented_form(load):
    message = refusal(load, "nam: x\nconfig: {stepz: 1}\n")
    assert all(re.match(r"stage\.yaml:\d+: [\w.\[\]]+: ", problem) for problem in message.split("; "))

"""Stage files: every mistake at its line, every name as a digest, every setting with its value."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors import registry, stage
from executors.fake import FakeConfig
from executors.plans import Resources, canonical_config
from executors.registry import executor_names, load_executor
from executors.runs import materialise_run
from executors.stage import Stage, load_stage, resolve_stage
from ledger import budget
from ledger.digest import sha256_digest
from ledger.errors import InfrastructureError, InputError, MissingExtra, NotFound
from ledger.home import Ledger
from tests.executors.specs import CODE, pin_base, seal_dataset

TEXT = """\
stage: sft
kind: sft
executor: fake
base: tiny
dataset: sums
seed: 7
resources:
  processes: 2
config:
  steps: 4
  rate: 1e-4
"""


@pytest.fixture
def ledger(home: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr(stage, "code_revision", lambda _: CODE)
    return Ledger.open(home, create=True, actor="tester")


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_stage_becomes_a_specification_that_pins_everything(ledger: Ledger, tmp_path: Path) -> None:
    base, dataset = pin_base(ledger), seal_dataset(ledger)
    spec = resolve_stage(ledger, load_stage(write(tmp_path / "sft.yaml", TEXT)))
    assert (spec.base, spec.dataset, spec.parent, spec.seed) == (base, dataset, None, 7)
    assert spec.resources == Resources(processes=2, device="cpu")
    assert (spec.config["steps"], spec.config["rate"], spec.config["checkpoint_every"]) == (4, "0.0001", 2)
    assert spec.tokenizer == sha256_digest(b'{"tokens": []}')
    assert spec.chat_template == sha256_digest(b"{{ messages }}")
    assert spec.code == CODE
    lock = ledger.artifacts.read(spec.environment, "data.json")
    assert b'"packages":["' in lock
    assert resolve_stage(ledger, load_stage(tmp_path / "sft.yaml")).run_id == spec.run_id
    changed = write(tmp_path / "other.yaml", TEXT.replace("1e-4", "1.5e-4"))
    assert resolve_stage(ledger, load_stage(changed)).run_id != spec.run_id


def test_a_run_reads_its_inputs_and_a_model_can_be_the_parent_of_the_next(ledger: Ledger, tmp_path: Path) -> None:
    pin_base(ledger)
    seal_dataset(ledger)
    budget.set_price(ledger, "cpu", "0")
    first = materialise_run(ledger, resolve_stage(ledger, load_stage(write(tmp_path / "sft.yaml", TEXT))))
    text = TEXT.replace("base: tiny", f"parent: {first.run_id}")
    spec = resolve_stage(ledger, load_stage(write(tmp_path / "next.yaml", text)))
    assert (spec.base, spec.parent, spec.tokenizer) == (None, first.model, None)
    second = materialise_run(ledger, spec)
    assert second.model != first.model
    parents = [event.payload.type_name() for event in ledger.log.used(f"model:{first.model}")]
    assert parents == ["RunSubmitted"]


@pytest.mark.parametrize(
    ("wrong", "instead", "line"),
    [
        ("  steps: 4", "  stepz: 4", r"sft\.yaml:10: config\.stepz: unknown key \(did you mean 'steps'\?\)"),
        ("  steps: 4", "  steps: 0", r"sft\.yaml:10: config\.steps: .* greater than or equal to 1"),
        ("seed: 7", "seed: -1", r"sft\.yaml:6: seed: "),
        ("  processes: 2", "  device: tpu", r"sft\.yaml:8: resources\.device: .*'auto', 'cpu' or 'cuda'"),
        ("stage: sft", "stage: ../up", r"sft\.yaml:1: stage: "),
        ("base: tiny\n", "", r"name either a base or a parent"),
        ("base: tiny\n", "base: tiny\nparent: x\n", r"name either a base or a parent"),
        ("executor: fake", "executor: fakir", r"executor 'fakir' is unknown \(did you mean 'fake'\?\); known: .*fsdp"),
        ("dataset: sums", "datasets: sums", r"sft\.yaml:5: datasets: unknown key \(did you mean 'dataset'\?\)"),
    ],
)
def test_a_mistake_is_reported_at_its_line(tmp_path: Path, wrong: str, instead: str, line: str) -> None:
    path = write(tmp_path / "sft.yaml", TEXT.replace(wrong, instead))
    with pytest.raises(InputError, match=line):
        load_stage(path)


@pytest.mark.parametrize(("name", "what"), [("base: tiny", "base"), ("dataset: sums", "dataset")])
def test_a_name_that_the_ledger_does_not_know_is_not_found(
    ledger: Ledger, tmp_path: Path, name: str, what: str
) -> None:
    pin_base(ledger)
    seal_dataset(ledger)
    path = write(tmp_path / "sft.yaml", TEXT.replace(name, f"{what}: nowhere"))
    with pytest.raises(NotFound, match=f"no {what} called 'nowhere'"):
        resolve_stage(ledger, load_stage(path))


def test_settings_given_in_python_are_checked_as_well(ledger: Ledger) -> None:
    pin_base(ledger)
    with pytest.raises(InputError, match=r"config\.steps: .*\(executor fake\)"):
        resolve_stage(ledger, Stage(stage="s", kind="sft", executor="fake", base="tiny", config={"steps": "many"}))


def test_fractions_are_exact_decimal_texts() -> None:
    config = canonical_config(FakeConfig(rate=1e-12, step_seconds=2.5e-7))
    assert (config["rate"], config["step_seconds"]) == ("0.000000000001", "0.00000025")
    assert FakeConfig.model_validate(config) == FakeConfig(rate=1e-12, step_seconds=2.5e-7)


def test_the_registry_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"fake", "fsdp", "evaluate"} <= set(executor_names())
    assert load_executor("fake").name == "fake"
    targets = {
        "needs-torch": "tests.executors.needs_torch:Executor",
        "broken": "executors.fake:NoSuchClass",
        "stranger": "executors.fake:FakeConfig",
    }
    monkeypatch.setattr(registry, "_targets", lambda: targets)

    def missing(_module: str) -> None:
        raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")

    for name in ("broken", "stranger"):
        with pytest.raises(InfrastructureError, match=f"executor {name} .* "):
            load_executor(name)
    monkeypatch.setattr(registry, "import_module", missing)
    with pytest.raises(MissingExtra, match=r"executor needs-torch needs .*posttrain\[train\]"):
        load_executor("needs-torch")

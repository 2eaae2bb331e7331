"""The fake executor passes the conformance kit, and the kit notices executors that do not conform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executors import testing
from executors.base import LaunchPlan, Resources, RunSpec
from executors.fake import FakeExecutor
from tests.executors.specs import fake_spec

SLOW = {"steps": 40, "checkpoint_every": 2, "step_seconds": 0.02}


def test_the_fake_conforms(tmp_path: Path) -> None:
    testing.check_executor(FakeExecutor(), fake_spec, tmp_path, slow=SLOW)


def test_the_kit_notices_a_resume_that_starts_over(tmp_path: Path) -> None:
    class Forgetful(FakeExecutor):
        def resume(self, plan: LaunchPlan, checkpoint: object) -> LaunchPlan:
            return plan

    with pytest.raises(AssertionError, match=r"resumed from step \d+, it saved steps \[2, "):
        testing.check_kill_and_resume(testing.Kit(Forgetful(), fake_spec, tmp_path, {}), SLOW)


def test_the_kit_notices_a_checkpoint_that_lacks_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The RNG is not restored: the resumed trajectory is another one, and the kit says which files differ."""
    child = tmp_path / "lossy_child.py"
    child.write_text(
        "import random\nfrom executors import fake_child\n"
        "whole = fake_child.restore\n"
        "def lossy(path):\n    state = whole(path)\n    state.rng = random.Random(0)\n    return state\n"
        "fake_child.restore = lossy\nfake_child.main()\n"
    )

    class Lossy(FakeExecutor):
        def command(self, config: Any, resources: Resources) -> tuple[str, ...]:
            return (*super().command(config, resources)[:2], str(child))

    with pytest.raises(
        AssertionError, match=r"the run ends otherwise: model/weights\.json, optimizer\.json, rng\.json"
    ):
        testing.check_kill_and_resume(testing.Kit(Lossy(), fake_spec, tmp_path / "runs", {}), SLOW)


def test_the_kit_notices_a_plan_that_is_not_pure(tmp_path: Path) -> None:
    class Moody(FakeExecutor):
        count = 0

        def command(self, config: Any, resources: Resources) -> tuple[str, ...]:
            Moody.count += 1
            return (*super().command(config, resources), str(Moody.count))

    with pytest.raises(AssertionError, match="plan is not deterministic"):
        testing.check_plan(testing.Kit(Moody(), fake_spec, tmp_path / "runs", {}), {})


def test_a_spec_is_its_content() -> None:
    """The identity covers what decides the result, and nothing else."""
    first = fake_spec()
    assert RunSpec.model_validate(first.model_dump()).run_id == first.run_id
    assert fake_spec(steps=7).run_id != first.run_id
    for change in ({"seed": 2}, {"base": "sha256:" + "1" * 64}, {"repeat": 1}, {"verifier": "exact"}):
        assert first.model_copy(update=change).run_id != first.run_id, change
    assert first.model_copy(update={"stage": "another"}).run_id == first.run_id
    assert fake_spec(projected_step_seconds=9.0).run_id == first.run_id
    assert RunSpec.from_submitted(first.submitted()) == first
    repeat = first.model_copy(update={"repeat": 3})
    assert RunSpec.from_submitted(repeat.submitted()) == repeat


def test_the_projection_follows_steps_processes_and_what_the_settings_state() -> None:
    spec = fake_spec(steps=10, projected_step_seconds=0.5)
    plan = FakeExecutor().plan(spec, Resources(processes=2, device="cpu"))
    assert plan.projection.device_seconds == 10

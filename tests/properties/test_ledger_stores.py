"""Whatever is appended in whatever order, the two stores hold the same history and give the same answers."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ledger import log as log_module
from ledger.errors import PosttrainError
from ledger.events import BaseRevisionPinned, BudgetSet, CostReserved, ModelQuarantined, NewEvent, Payload, PriceSet
from ledger.fsck import verify_log
from ledger.log import Log
from ledger.store.memory import MemoryStore
from ledger.store.sqlite import SqliteStore
from ledger.tree_head import SigningKey
from tests.ledger.payloads import RUN, digest

KEY = SigningKey.generate()
NAMES = st.sampled_from(["a", "a.b", "a-b", "b"])
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=5)
AMOUNTS = st.integers(0, 5).map(str)


@st.composite
def payloads(draw: st.DrawFn) -> Payload:
    name, amount, number = draw(NAMES), draw(AMOUNTS), draw(st.integers(1, 3))
    made: dict[str, Payload] = {
        "price": PriceSet(device_kind=name, per_device_hour=amount),
        "budget": BudgetSet(stage=name, cap=amount, reason=draw(TEXTS)),
        "reserve": CostReserved(
            stage=name, run_id=RUN, amount=amount, device_kind=name, devices=1, device_seconds="1", per_device_hour="1"
        ),
        "base": BaseRevisionPinned(
            name=name, base=digest(number), source="", size_bytes=1, files=1, tokenizer=digest(9)
        ),
        "quarantine": ModelQuarantined(model=digest(number), reason=amount),
    }  # fmt: skip
    return made[draw(st.sampled_from(sorted(made)))]


NEW = st.builds(
    NewEvent,
    payloads(),
    expected_version=st.none() | st.none() | st.integers(0, 2),
    idempotency_key=st.none() | st.sampled_from(["k1", "k2"]),
)


class TwoStores(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.memory = Log(MemoryStore(), KEY, "ada")
        self.sqlite = Log(SqliteStore(self.directory / "ledger.db", create=True), KEY, "ada")
        self.tick = 0

    def teardown(self) -> None:
        self.sqlite.store.close()
        shutil.rmtree(self.directory)

    @rule(new=st.lists(NEW, min_size=1, max_size=4))
    def append(self, new: list[NewEvent]) -> None:
        assert self._answer(self.memory, new) == self._answer(self.sqlite, new)
        self.tick += 1

    @rule(upto=st.integers(0, 12), after=st.integers(0, 12), limit=st.none() | st.integers(0, 3), name=NAMES)
    def ask(self, upto: int, after: int, limit: int | None, name: str) -> None:
        answers = []
        for log in (self.memory, self.sqlite):
            with log.as_of(upto) as history:
                answers.append(
                    [
                        history.size(),
                        list(history.read(after, limit=limit)),
                        list(history.read(after, types=("PriceSet", "BudgetSet"), limit=limit)),
                        history.stream(f"price/{name}"),
                        history.last(f"budget/{name}"),
                        history.last(f"budget/{name}", "BudgetSet"),
                        history.streams(f"price/{name}"),
                        [history.made(f"model:{digest(n)}") for n in (1, 2, 3)],
                        [history.used(f"model:{digest(n)}") for n in (1, 2, 3)],
                    ]
                )
        assert answers[0] == answers[1]

    @invariant()
    def the_same_log(self) -> None:
        if self.memory.size():
            assert self.memory.head() == self.sqlite.head()
        assert self.memory.size() == self.sqlite.size()

    @rule()
    def verify(self) -> None:
        reports = [verify_log(log, KEY.verifying_key()) for log in (self.memory, self.sqlite)]
        assert reports[0] == reports[1]
        assert reports[0].findings == ()

    def _answer(self, log: Log, new: list[NewEvent]) -> Any:
        """What an append answers, with ids and times that both logs share."""
        numbers = iter(range(100))
        patched = {
            "new_event_id": lambda: f"{self.tick}-{next(numbers)}",
            "utc_now": lambda: f"2026-01-01T{self.tick:09}Z",
        }
        kept = {name: getattr(log_module, name) for name in patched}
        vars(log_module).update(patched)
        try:
            return log.append_many(new)
        except PosttrainError as error:
            return type(error), str(error)
        finally:
            vars(log_module).update(kept)


TestTwoStores = TwoStores.TestCase
TestTwoStores.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)

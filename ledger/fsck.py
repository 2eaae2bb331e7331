"""Checking the log and everything under it against itself. Nothing is repaired; every finding has its place.

`verify_log` recomputes hashes, order and signatures; `fsck` adds columns, edges, rules and artifacts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ledger import rules
from ledger.digest import short
from ledger.errors import PosttrainError, RuleBroken, TamperFound
from ledger.events import Event
from ledger.events.codec import ENVELOPE, from_body, to_edges
from ledger.history import History
from ledger.home import Ledger
from ledger.log import Log
from ledger.merkle import Frontier, leaf_hash, root_hash
from ledger.store.base import HeadRow, Reader, Row
from ledger.subtrees import WIDTH
from ledger.tree_head import TreeHead, VerifyingKey, open_note

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it was recorded. `position` is the event it concerns, `None` for none in particular."""

    position: int | None
    place: str
    what: str


@dataclass(frozen=True, slots=True)
class LogReport:
    """What `verify_log` found; the log is as it was signed when `findings` is empty."""

    size: int
    root: bytes
    heads: int
    findings: tuple[Finding, ...]


def verify_log(log: Log, key: VerifyingKey, progress: Progress | None = None) -> LogReport:
    """Recompute every leaf hash, the order, the tree and every signed head."""
    with log.store.reader() as reader:
        return _Verification(reader, key, progress).run()


class _Verification:
    def __init__(self, reader: Reader, key: VerifyingKey, progress: Progress | None) -> None:
        self._reader = reader
        self._key = key
        self._progress = progress
        self.findings: list[Finding] = []
        self._frontier = Frontier()  # over the bodies
        self._recorded = Frontier()  # over the stored leaf hashes; differs from the other only after a changed body
        self._position = 0
        self._torn = False  # from here on no root can fit; what broke it was reported
        self._versions: dict[str, int] = {}
        self._ids: set[str] = set()
        self._last_at = ""

    def run(self) -> LogReport:
        heads = self._reader.heads(0)
        head = next(heads, None)
        count = 0
        for row in self._reader.rows(0, None, (), None):
            self._event(row)
            if self._progress:
                self._progress(1)
            while head is not None and head.size <= row.position:
                self._head(head)
                count, head = count + 1, next(heads, None)
        size = self._position
        if head is not None:
            self._found(size, "log", f"a signed head says {head.size} events, {size} are there: the log was truncated")
        newest = self._reader.head()
        if size and (newest is None or newest.size < size):
            signed = newest.size if newest else 0
            self._found(signed + 1, "log", f"events after {signed} are under no signed head")
        self._subtrees()
        return LogReport(size, self._frontier.root(), count, tuple(self.findings))

    def _event(self, row: Row) -> None:
        if row.position != self._position + 1:
            self._found(
                self._position + 1, row.stream, f"position {self._position + 1} is missing, {row.position} follows"
            )
            self._torn = True
        self._position = row.position
        leaf = leaf_hash(row.body)
        if leaf != row.leaf:
            self._found(row.position, row.stream, "the body was changed: it does not have the recorded leaf hash")
        self._frontier = self._frontier.extended([leaf])
        self._recorded = self._recorded.extended([row.leaf])
        try:
            event = from_body(row.body, row.position)
        except PosttrainError as error:
            self._found(row.position, row.stream, str(error))
            return
        self._columns(row, event)
        self._order(event)

    def _columns(self, row: Row, event: Event) -> None:
        changed = [name for name in ENVELOPE if getattr(row, name) != getattr(event, name)]
        if changed:
            self._found(row.position, row.stream, f"column {', '.join(changed)} differs from the hashed body")

    def _order(self, event: Event) -> None:
        version = self._versions.get(event.stream, 0) + 1
        if event.version != version:
            self._found(event.position, event.stream, f"version {event.version} of its stream where {version} was due")
        self._versions[event.stream] = event.version
        if event.event_id in self._ids:
            self._found(event.position, event.stream, f"event id {event.event_id} is there twice")
        self._ids.add(event.event_id)
        if event.recorded_at < self._last_at:
            self._found(event.position, event.stream, f"recorded at {event.recorded_at}, before the event it follows")
        self._last_at = max(self._last_at, event.recorded_at)

    def _head(self, row: HeadRow) -> None:
        place = f"tree head {row.size}"
        try:
            head: TreeHead = open_note(row.note, self._key)
        except TamperFound as error:
            self._found(row.size, place, str(error))
            return
        if (head.size, head.root) != (row.size, row.root):
            self._found(row.size, place, "its columns differ from the signed note")
            return
        if not self._torn and head.root not in (self._frontier.root(), self._recorded.root()):
            self._found(row.size, place, "the signed root is not the root of the events; nor can any later one be")
            self._torn = True

    def _subtrees(self) -> None:
        """Every stored subtree against the level below it, the lowest against the leaves."""
        level, width = 1, WIDTH
        while width <= self._frontier.size:
            for stored in self._reader.subtrees(level):
                start, place = stored.index * width, f"subtree {level}/{stored.index}"
                if start + width > self._position:
                    self._found(self._position, place, "a hash is stored for leaves that are not there")
                elif root_hash(self._below(level, stored.index)) != stored.hash:
                    self._found(start + 1, place, "the stored hash is not that of its leaves")
            level, width = level + 1, width * WIDTH

    def _below(self, level: int, index: int) -> list[bytes]:
        if level == 1:
            return self._reader.leaves(index * WIDTH, (index + 1) * WIDTH)
        children = [self._reader.subtree(level - 1, child) for child in range(index * WIDTH, (index + 1) * WIDTH)]
        return [child for child in children if child is not None]

    def _found(self, position: int | None, place: str, what: str) -> None:
        self.findings.append(Finding(position, place, what))


def fsck(ledger: Ledger, *, artifacts: bool = True, progress: Progress | None = None) -> list[Finding]:
    """Everything that can be recomputed: the log, its edges, the rules over the whole history, and all artifacts' bytes.

    `progress` is called with 1 for every event.
    """
    findings = list(verify_log(ledger.log, ledger.verifying_key(), progress).findings)
    broken = {finding.position for finding in findings}
    with ledger.log.store.reader() as reader:
        for row in reader.rows(0, None, (), None):
            if row.position not in broken:
                findings += _replay(reader, row)
        for edge in reader.stray_edges():
            if edge.position not in broken:
                findings.append(Finding(edge.position, f"edge to {edge.node}", "an edge of an event that is not there"))
    if artifacts:
        findings += _artifacts(ledger, broken)
    return findings


def _replay(reader: Reader, row: Row) -> Iterator[Finding]:
    event = from_body(row.body, row.position)
    if sorted(map(str, reader.edges_at(row.position))) != sorted(map(str, to_edges(event))):
        yield Finding(row.position, row.stream, "its stored edges are not those that its payload declares")
    try:
        rules.check(event.payload, History(reader, row.position - 1))
    except RuleBroken as error:
        yield Finding(row.position, row.stream, f"breaks a rule: {error}")
    except TamperFound:
        pass  # an event that it rests on is reported at its own position
    except PosttrainError as error:  # an edge that leads nowhere
        yield Finding(row.position, row.stream, f"its rules cannot be checked: {error}")


def _artifacts(ledger: Ledger, broken: set[int | None]) -> Iterator[Finding]:
    """Every artifact that an event made, against its digest, once; erased ones may be gone."""
    erased = {getattr(event.payload, "artifact", None) for event in _readable(ledger, broken, ("ArtifactErased",))}
    seen: set[str] = set()
    types = (
        "BaseRevisionPinned",
        "DatasetVersionSealed",
        "SuiteRegistered",
        "CheckpointCommitted",
        "EvaluationReported",
        "RunSubmitted",
    )
    for event in _readable(ledger, broken, types):
        for digest in _made_bytes(event):
            if digest in seen or digest in erased:
                continue
            seen.add(digest)
            for problem in ledger.artifacts.problems(digest):
                place = f"artifact {short(digest)} {problem.name or 'manifest'} (blob {problem.blob})"
                yield Finding(event.position, place, problem.what)


def _made_bytes(event: Event) -> list[str]:
    kinds = {"base", "dataset", "suite", "checkpoint", "model", "report"}
    made = [edge.node.partition(":") for edge in event.payload.outputs()]
    digests = [identity for kind, _, identity in made if kind in kinds]
    environment = getattr(event.payload, "environment", None)
    return digests + ([environment] if isinstance(environment, str) else [])


def _readable(ledger: Ledger, broken: set[int | None], types: tuple[str, ...]) -> Iterator[Event]:
    with ledger.log.store.reader() as reader:
        for row in reader.rows(0, None, types, None):
            if row.position not in broken:
                yield from_body(row.body, row.position)

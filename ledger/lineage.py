"""Lineage: ancestors and descendants over the typed edges that events declare, each answer saying whether it is complete."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from ledger import events as ev
from ledger.digest import short
from ledger.errors import NotFound
from ledger.events import Event
from ledger.history import History
from ledger.home import Ledger

Direction = Literal["up", "down"]
MAX_NODES = 100_000


@dataclass(frozen=True, slots=True)
class Node:
    """A node with what its first event says of it; `position` is `None` for what no event made (code, configuration)."""

    node: str
    kind: str
    label: str
    position: int | None
    recorded_at: str | None


@dataclass(frozen=True, slots=True)
class Link:
    """`source` went into `target` in the given role, by the event at `position`."""

    source: str
    role: str
    target: str
    position: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """The closure from `root`, upwards (what it was made of) or downwards (what was made of it)."""

    root: str
    direction: Direction
    nodes: dict[str, Node]
    links: tuple[Link, ...]
    complete: bool
    reason: str  # why it is incomplete, else empty
    as_of: int  # the position that the answer holds for


def trace(
    ledger: Ledger, node: str, direction: Direction = "up", at: int | None = None, limit: int = MAX_NODES
) -> Lineage:
    """The lineage of a node as of a position.

    Raises:
        NotFound: no event speaks of the node.
    """
    with ledger.log.as_of(at) as history:
        if not history.edges_of(node, True) and not history.edges_of(node, False):
            raise NotFound(f"no event up to position {history.size()} speaks of {node}")
        return _walk(history, node, direction, limit)


def _walk(history: History, root: str, direction: Direction, limit: int) -> Lineage:
    nodes: dict[str, Node] = {}
    links: dict[tuple[str, str, str], Link] = {}
    queue, complete = deque([root]), True
    while queue:
        node = queue.popleft()
        if node in nodes:
            continue
        if len(nodes) >= limit:
            complete = False
            break
        nodes[node] = describe(history, node)
        for link in _links(history, node, direction):
            links.setdefault((link.source, link.role, link.target), link)
            queue.append(link.source if direction == "up" else link.target)
    reason = "" if complete else f"stopped after {limit} nodes"
    kept = tuple(link for link in links.values() if link.source in nodes and link.target in nodes)
    return Lineage(root, direction, nodes, kept, complete, reason, history.size())


def _links(history: History, node: str, direction: Direction) -> list[Link]:
    up = direction == "up"
    found = []
    for here in history.edges_of(node, up):
        others = [edge for edge in history.edges_at(here.position) if (edge.direction == "in") == up]
        for other in others:
            if other.node == node:
                continue
            source, target = (other.node, node) if up else (node, other.node)
            found.append(Link(source, other.role if up else here.role, target, here.position))
    return found


def describe(history: History, node: str) -> Node:
    """What the event that made the node says of it."""
    kind, _, identity = node.partition(":")
    made = history.edges_of(node, True)
    if not made:
        return Node(node, kind, _plain_label(identity), None, None)
    # A rollback makes its promotion again, and is what stands; anything else is what it was first.
    event = history.event(made[-1 if kind == "promotion" else 0].position)
    return Node(node, kind, _label(event, kind, identity), event.position, event.recorded_at)


def _plain_label(identity: str) -> str:
    commit, _, diff = identity.partition("+sha256:")
    if diff:
        return f"{commit[:12]}+{diff[:12]}"
    return short(identity) if identity.startswith("sha256:") else identity


def _label(event: Event, kind: str, identity: str) -> str:
    payload = event.payload
    plain = _plain_label(identity)
    match payload:
        case ev.BaseRevisionPinned() | ev.DatasetVersionSealed() | ev.SuiteRegistered():
            return f"{payload.name} {plain}"
        case ev.RunSubmitted():
            return f"{payload.stage} {identity} ({payload.kind}, seed {payload.seed})"
        case ev.CheckpointCommitted():
            return f"{plain} step {payload.step}"
        case ev.EvaluationReported():
            return f"{plain} accuracy {payload.accuracy} [{payload.interval[0]}, {payload.interval[1]}]"
        case ev.GateDecided():
            low, high = payload.gain.interval
            return f"{identity} {payload.decision}: {payload.gain.estimate} [{low}, {high}]"
        case ev.ModelPromoted():
            return f"{payload.stage} at position {event.position} by {event.actor}"
        case ev.DeploymentRequested():
            return f"{payload.served_name} ({identity})"
        case _:
            return plain

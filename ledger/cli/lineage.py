"""`posttrain lineage`: ancestors or descendants as a tree, JSON or a drawing."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from ledger.cli.output import JsonFlag, emit, plain, write
from ledger.errors import InputError
from ledger.home import Ledger
from ledger.lineage import Lineage, trace
from ledger.moments import position_at
from ledger.references import resolve_node


class Format(StrEnum):
    tree = "tree"
    json = "json"
    dot = "dot"


def lineage(
    reference: Annotated[
        str, typer.Argument(metavar="REF", help="A stage, model, run, dataset, suite or node.", show_default=False)
    ],
    up: Annotated[bool, typer.Option("--up", help="What it was made of (the default).")] = False,
    down: Annotated[bool, typer.Option("--down", help="What was made of it.")] = False,
    form: Annotated[Format, typer.Option("--format", help="How to show it.")] = Format.tree,
    at: Annotated[str | None, typer.Option(help="As of a log position or a UTC time (RFC 3339).")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Everything that REF was made from, or led to. The answer says whether it is complete."""
    if up and down:
        raise InputError("--up and --down exclude each other; choose one")
    ledger = Ledger.open()
    found = trace(ledger, resolve_node(ledger, reference), "down" if down else "up", position_at(ledger, at))
    if form is Format.dot and not as_json:
        write(to_dot(found))
    else:
        emit(to_json(found), lambda console: _show(found, console), as_json or form is Format.json)


def to_json(found: Lineage) -> dict[str, object]:
    return {
        "root": found.root,
        "direction": found.direction,
        "as_of": found.as_of,
        "complete": found.complete,
        "reason": found.reason,
        "nodes": [asdict(node) for node in found.nodes.values()],
        "edges": [asdict(link) for link in found.links],
    }


def to_dot(found: Lineage) -> str:
    """Graphviz; labels are quoted, so no name can leave its string."""
    lines = ["digraph lineage {", "  rankdir=BT;", '  node [shape=box, fontname="sans-serif"];']
    for node in found.nodes.values():
        lines.append(f"  {_quoted(node.node)} [label={_quoted(node.kind + chr(10) + node.label)}];")
    for link in found.links:
        lines.append(f"  {_quoted(link.source)} -> {_quoted(link.target)} [label={_quoted(link.role)}];")
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    parts = (plain(part).replace("\\", "\\\\").replace('"', '\\"') for part in text.split("\n"))
    return '"' + "\\n".join(parts) + '"'


def _show(found: Lineage, console: Console) -> None:
    root = found.nodes[found.root]
    tree = Tree(_branch(root.kind, root.label))
    _grow(tree, found)
    console.print(tree, soft_wrap=True)
    state = "complete" if found.complete else f"INCOMPLETE: {found.reason}"
    console.print(f"{len(found.nodes)} nodes as of position {found.as_of}, {state}")


def _grow(tree: Tree, found: Lineage) -> None:
    """Every node once with what is behind it; where it comes again, only its name."""
    behind: dict[str, set[tuple[str, str]]] = {}
    for link in found.links:
        here, there = (link.target, link.source) if found.direction == "up" else (link.source, link.target)
        behind.setdefault(here, set()).add((link.role, there))
    drawn = {found.root}
    # A stack of its own: a chain of runs may be longer than Python's recursion.
    open_branches = [(tree, iter(sorted(behind.get(found.root, ()))))]
    while open_branches:
        parent, links = open_branches[-1]
        role, node = next(links, (None, ""))
        if role is None:
            open_branches.pop()
            continue
        about, again = found.nodes[node], node in drawn
        mark = " (above)" if again and behind.get(node) else ""
        branch = parent.add(_branch(about.kind, f"{about.label}{mark}", role))
        if not again:
            drawn.add(node)
            open_branches.append((branch, iter(sorted(behind.get(node, ())))))


def _branch(kind: str, label: str, role: str | None = None) -> Text:
    # As one word where role and kind are the same, which they mostly are.
    name = kind if role is None or role == kind else f"{role}: {kind}"
    return Text.assemble((plain(name), "bold"), " ", plain(label))

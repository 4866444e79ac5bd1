"""No module of the package imports itself in a circle, also not by an import inside a function.

An import inside a function keeps a heavy or optional package out of a process that does not use it. It must not hide
that two modules need each other: drawn with the imports inside functions too, the graph of modules has no cycle.
Imports for type checkers alone (``if TYPE_CHECKING``) run nowhere and do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "core": "ringtune",
    "timeline": "ringtune.timeline",
    "tuner": "ringtune.tuner",
    "dashboard": "ringtune.dashboard",
    "benchmarks": "ringtune.benchmarks",
}

ACCEPTED = {
    ("ringtune.session", "ringtune.bootstrap.opening"): "Session.open is public; what opens a session has to make one",
}
"""Edges that close a cycle and may stay: importer, imported, and why."""


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for folder, package in PACKAGES.items():
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT / folder).with_suffix("").parts
            names = inside[:-1] if inside[-1] == "__init__" else inside
            found[".".join((package, *names))] = path
    return found


def running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one, without those that only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from running_nodes(child)


def imported(source: str, known: set[str]) -> set[str]:
    """The known modules that a source imports, at its top level or inside a function."""
    found = set()
    for node in running_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else node.module)
    return found & known


@cache
def _imports() -> dict[str, frozenset[str]]:
    found = modules()
    known = set(found)
    return {name: frozenset(imported(path.read_text(encoding="utf-8"), known) - {name}) for name, path in found.items()}


def graph() -> dict[str, set[str]]:
    """Importers and what they import."""
    return {name: set(targets) for name, targets in _imports().items()}


def cycle_in(edges: dict[str, set[str]]) -> list[str]:
    """One cycle of a graph, its first node repeated at the end; empty where there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_import_closes_a_cycle() -> None:
    edges = graph()
    for importer, target in ACCEPTED:
        edges[importer].discard(target)
    cycle = cycle_in(edges)
    assert not cycle, "each is imported by the next: " + " -> ".join(cycle)


def test_every_accepted_edge_still_closes_a_cycle() -> None:
    for edge in ACCEPTED:
        edges = graph()
        for importer, target in ACCEPTED.keys() - {edge}:
            edges[importer].discard(target)
        assert edge[1] in edges[edge[0]] and cycle_in(edges), f"{edge} closes no cycle any more: take it off the list"


def test_an_import_inside_a_function_counts_and_one_for_type_checkers_does_not() -> None:
    lazy = "def call():\n    from ringtune.b import thing\n    return thing\n"
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ringtune.b\n"
    known = {"ringtune.a", "ringtune.b"}
    assert cycle_in({"ringtune.a": imported(lazy, known), "ringtune.b": {"ringtune.a"}})
    assert not cycle_in({"ringtune.a": imported(typed, known), "ringtune.b": {"ringtune.a"}})
    assert imported("from ringtune import b", known) == {"ringtune.b"}

"""The stub of the native module, which the build makes of it, knows all that the module has."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.conftest import needs


def names_of(node: ast.Module | ast.ClassDef) -> set[str]:
    """The names that a module or class of a stub declares."""
    named = [one for one in node.body if isinstance(one, ast.ClassDef | ast.FunctionDef)]
    assigned = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
    return {one.name for one in named} | {one.id for one in assigned if isinstance(one, ast.Name)}


def public(names: object) -> set[str]:
    return {name for name in vars(names) if not name.startswith("_")}


def test_every_public_name_of_the_native_module_stands_in_its_stub() -> None:
    native = needs("ringtune._native")
    stub = ast.parse(Path(native.__file__).with_name("_native.pyi").read_text(encoding="utf-8"))
    assert public(native) <= names_of(stub)
    declared = {one.name: names_of(one) for one in stub.body if isinstance(one, ast.ClassDef)}
    missing = {
        f"{name}.{member}"
        for name, value in vars(native).items()
        if isinstance(value, type)
        for member in public(value) - declared[name]
    }
    assert not missing

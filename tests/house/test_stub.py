"""The stub of the native module, which the build makes of it, knows all that the module has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from ringtune import runtime
from tests.conftest import needs


def names_of(node: ast.Module | ast.ClassDef) -> set[str]:
    """The names that a module or class of a stub declares."""
    named = [one for one in node.body if isinstance(one, ast.ClassDef | ast.FunctionDef)]
    assigned = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
    return {one.name for one in named} | {one.id for one in assigned if isinstance(one, ast.Name)}


def public(names: object) -> set[str]:
    return {name for name in vars(names) if not name.startswith("_")}


def stub() -> ast.Module:
    native = needs("ringtune._native")
    return ast.parse(Path(native.__file__).with_name("_native.pyi").read_text(encoding="utf-8"))


def test_every_public_name_of_the_native_module_stands_in_its_stub() -> None:
    native = needs("ringtune._native")
    known = stub()
    assert public(native) <= names_of(known)
    declared = {one.name: names_of(one) for one in known.body if isinstance(one, ast.ClassDef)}
    missing = {
        f"{name}.{member}"
        for name, value in vars(native).items()
        if isinstance(value, type)
        for member in public(value) - declared[name]
    }
    assert not missing


def members_of(module: ast.Module) -> dict[str, str]:
    """Arguments and results of the members of the class `Runtime`, as they are written; without the first."""
    (found,) = [one for one in module.body if isinstance(one, ast.ClassDef) and one.name == "Runtime"]
    methods = [one for one in found.body if isinstance(one, ast.FunctionDef)]
    return {one.name: _signature(one) for one in methods if one.name != "__init__"}


def _signature(method: ast.FunctionDef) -> str:
    arguments = method.args
    if arguments.args and arguments.args[0].arg == "self":
        arguments.args = arguments.args[1:]
    is_property = any(isinstance(one, ast.Name) and one.id == "property" for one in method.decorator_list)
    result = "" if method.returns is None else ast.unparse(method.returns)
    result = _OWNED.sub("Any", result)
    return f"{'property' if is_property else ''}({ast.unparse(arguments)}) -> {result}".replace("Ticket", "int")


_OWNED = re.compile(r"numpy\.typing\.NDArray\[numpy\.uint8\]|Annotated\[NDArray\[numpy\.uint8\], .*\]")
"""An array of bytes, of which the session's callers know only that it is a buffer."""


def test_the_session_asks_of_the_runtime_what_it_has() -> None:
    """`ringtune.runtime.Runtime` says what a session uses, with the arguments of the native class."""
    asked = members_of(ast.parse((Path(runtime.__file__)).read_text(encoding="utf-8")))
    assert asked and asked.items() <= members_of(stub()).items()

"""The plan of the house: which room may import which, read from the sources without running them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Room: what it may import of ringtune, by the name's beginning; its own package is always allowed.
ROOMS: dict[str, tuple[str, ...]] = {
    "core": (),
    "timeline": (
        "ringtune.errors",
        "ringtune.knobs",
        "ringtune.layout",
        "ringtune.output_file",
        "ringtune.standard_streams",
        "ringtune._native",
    ),  # the last one within bounds: see below
    "tuner": ("ringtune", "!dashboard", "!benchmarks"),
    "dashboard": ("ringtune", "!benchmarks"),
    "benchmarks": ("ringtune",),
}
# Layers of the timeline by folder or module: each may import those before it. Modules that are not named are the shell.
TIMELINE = (
    "vocabulary", "units", "frames", "distinct", "spans", "database", "reading", "analysis", "merging", "runs",
    "importing",
)  # fmt: skip
UPPER = ("timeline", "tuner", "dashboard", "benchmarks")
# `import ringtune` and reading a trace must work with Python alone; these are heavy or may be absent.
HEAVY = {
    "torch", "torchvision", "jax", "optax", "tensorflow", "dash", "plotly", "optuna", "scipy", "sklearn", "cupy",
    "mpi4py",
}  # fmt: skip

NATIVE = (
    "base",
    "trace",
    "merging",
    "transport",
    "device",
    "collective",
    "fusion",
    "control",
    "runtime",
    "frameworks",
    "bind",
)
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([a-z_0-9]+)/', re.MULTILINE)


def python_files(room: str) -> list[Path]:
    return sorted(path for path in (ROOT / room).rglob("*.py") if "__pycache__" not in path.parts)


def imported_names(path: Path) -> list[tuple[int, str]]:
    """All imported module names with their lines, inside functions and TYPE_CHECKING blocks too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            # `from ringtune import layout` imports ringtune.layout as far as arrows are concerned.
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "ringtune" else [module]
            found += [(node.lineno, "." * node.level + name) for name in names]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module":
            found += [(node.lineno, argument.value) for argument in node.args if _is_text(argument)]
    return found


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def room_of(name: str) -> str:
    """The room a name under ``ringtune`` belongs to."""
    second = name.split(".")[1] if "." in name else ""
    return second if second in UPPER else "core"


def allowed(room: str, name: str) -> bool:
    """Whether a file of `room` may import `name`."""
    if name.startswith("."):
        return False  # imports across folders are absolute; within one too, so that a search finds them
    if name.split(".")[0] != "ringtune":
        return name.split(".")[0] not in ("core", *UPPER)
    target = room_of(name)
    if target == room:
        return True
    may = ROOMS[room]
    if f"!{target}" in may:
        return False
    return any(name == prefix or name.startswith(prefix + ".") for prefix in may if not prefix.startswith("!"))


@pytest.mark.parametrize("room", ROOMS)
def test_python_arrows_run_down(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {room} must not import {name}"
        for path in python_files(room)
        for line, name in imported_names(path)
        if not allowed(room, name)
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_command_line_names_upper_rooms() -> None:
    pattern = re.compile(r"""["']ringtune\.(timeline|tuner|dashboard|benchmarks)\b""")
    wrong = [
        str(path.relative_to(ROOT))
        for path in python_files("core")
        if path != ROOT / "core" / "cli.py" and pattern.search(path.read_text(encoding="utf-8"))
    ]
    assert not wrong


_KNOWS_RUNTIME = {"core/session.py", "core/tickets.py", "core/torch/persistent.py"}
"""The session, and the persistent collectives of torch, which compiled code starts."""


def test_the_session_is_the_one_way_into_the_runtime() -> None:
    """`session.runtime` stands nowhere, nor another object's `_runtime`, nor a second door to it."""
    wrong = []
    for path in (path for room in ROOMS for path in python_files(room)):
        name = str(path.relative_to(ROOT))
        if name in _KNOWS_RUNTIME:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Attribute):
                continue
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if node.attr in ("runtime", "lend_runtime") or (node.attr == "_runtime" and not own):
                wrong.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def test_the_timeline_can_do_without_native_code() -> None:
    """One file knows the native writer, and asks for it only where it is about to be used."""
    naming = {path.name for path in python_files("timeline") for _, name in imported_names(path) if "_native" in name}
    assert naming <= {"native_writer.py"}
    tree = ast.parse((ROOT / "timeline" / "merging" / "native_writer.py").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [node for node in imports if "ringtune._native" in ast.unparse(node)]


def test_the_layers_of_the_timeline_import_only_those_below() -> None:
    wrong = []
    for path in python_files("timeline"):
        own = path.relative_to(ROOT / "timeline").with_suffix("").parts[0]
        if own not in TIMELINE:
            continue
        below = {*TIMELINE[: TIMELINE.index(own)], own}
        for line, name in imported_names(path):
            target = name.split(".")[2] if name.startswith("ringtune.timeline.") else own
            if target not in below:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {own} must not import {name}")
    assert not wrong, "\n".join(wrong)


def top_level_imports(path: Path) -> set[str]:
    """Roots of what a module imports when it is imported itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("room", ["core", "timeline"])
def test_light_rooms_import_nothing_heavy(room: str) -> None:
    front_ends = {"torch", "jax", "tensorflow"}  # each the front end of its framework
    wrong = {
        str(path.relative_to(ROOT)): sorted(top_level_imports(path) & HEAVY)
        for path in python_files(room)
        if not front_ends & set(path.relative_to(ROOT / room).parts[:-1])
    }
    assert not {name: found for name, found in wrong.items() if found}


@pytest.mark.parametrize("folder", NATIVE)
def test_native_includes_run_down(folder: str) -> None:
    below = NATIVE[: NATIVE.index(folder) + 1]
    wrong = [
        f"{path.relative_to(ROOT)} includes {target}/"
        for path in sorted((ROOT / "native" / folder).rglob("*"))
        if path.suffix in (".h", ".cc", ".cu")
        for target in _INCLUDE.findall(path.read_text(encoding="utf-8"))
        if target not in below
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_binding_knows_python() -> None:
    pattern = re.compile(r"#\s*include\s+[<\"](Python\.h|nanobind/)")
    wrong = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "native").rglob("*"))
        if path.suffix in (".h", ".cc", ".cu", ".cuh") and path.parent.name != "bind"
        if pattern.search(path.read_text(encoding="utf-8"))
    ]
    assert not wrong

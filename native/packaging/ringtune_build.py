"""PEP 517 backend of ringtune: scikit-build-core behind one check for a C++20 compiler.

Without it a machine with no compiler gets a page of CMake output; with it, one sentence, and before pip has fetched
anything. Everything but the check is scikit_build_core.build.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from scikit_build_core import build as _backend
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

# The order in which CMake looks; $CXX, when set, is the only candidate, for CMake too.
_CANDIDATES = ("c++", "g++", "clang++")
# What the runtime leans on: concepts, <=>, std::span, std::jthread's stop token.
_PROBE = """
#include <compare>
#include <concepts>
#include <span>
#include <stop_token>
template <std::integral T> constexpr T twice(T value) { return value * 2; }
static_assert(twice(2) == 4 && (1 <=> 2) < 0);
int main() { int values[2] = {}; return static_cast<int>(std::span(values).size()) - 2; }
"""
_ADVICE = "Install one (Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++) or name one in CXX."


def _compiles_cpp20(compiler: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cc")
        source.write_text(_PROBE, encoding="utf-8")
        command = [*compiler, "-std=c++20", "-c", str(source), "-o", str(source.with_suffix(".o"))]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _require_compiler() -> None:
    """Ends the build with one sentence when no C++20 compiler is found.

    Raises:
        SystemExit: pip prints its message; an exception would add a traceback.
    """
    named = os.environ.get("CXX", "").strip()
    candidates = [shlex.split(named)] if named else [[name] for name in _CANDIDATES]
    present = [candidate for candidate in candidates if shutil.which(candidate[0])]
    if any(_compiles_cpp20(candidate) for candidate in present):
        return
    if named and not present:
        problem = f"CXX names {named!r}, which is not there"
    elif present:
        problem = f"{' '.join(present[0])} cannot compile C++20 (GCC 11 or Clang 14 can)"
    else:
        problem = f"none of {', '.join(_CANDIDATES)} is on PATH"
    raise SystemExit(f"ringtune needs a C++20 compiler to build its native runtime: {problem}. {_ADVICE}")


def get_requires_for_build_wheel(config_settings: dict[str, str | list[str]] | None = None) -> list[str]:
    """Build requirements of a wheel; checks the compiler before pip fetches any of them."""
    _require_compiler()
    return _backend.get_requires_for_build_wheel(config_settings)


def get_requires_for_build_editable(config_settings: dict[str, str | list[str]] | None = None) -> list[str]:
    """Build requirements of an editable install; checks the compiler before pip fetches any of them."""
    _require_compiler()
    return _backend.get_requires_for_build_editable(config_settings)


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, str | list[str]] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds a wheel (checked again: with --no-build-isolation pip asks for no requirements)."""
    _require_compiler()
    return _backend.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, str | list[str]] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds an editable wheel (checked again: with --no-build-isolation pip asks for no requirements)."""
    _require_compiler()
    return _backend.build_editable(wheel_directory, config_settings, metadata_directory)

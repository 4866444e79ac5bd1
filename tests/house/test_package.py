"""The package as a user gets it: lazy imports, entry points, the backend's one sentence."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringtune import cli

ROOT = Path(__file__).parents[2]


def modules_after(code: str) -> set[str]:
    """Names of all modules loaded in a fresh interpreter after `code`."""
    program = f"{code}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=280)
    return set(json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code", ["import ringtune; ringtune.__version__", "import ringtune.timeline", "import ringtune.cli"]
)
def test_import_is_light(code: str) -> None:
    loaded = modules_after(code)
    assert not {"ringtune._native", "torch", "dash", "optuna", "plotly"} & loaded


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_command_exists(name: str) -> None:
    module = cli.COMMANDS[name].target.partition(":")[0]
    assert importlib.util.find_spec(module) is not None


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_command_has_help(name: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "ringtune.cli", name, "--help"], capture_output=True, text=True, timeout=280, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"Usage: ringtune {name}")


def test_readme_holds_the_table_of_variables() -> None:
    from ringtune.check import variables_markdown

    readme = (ROOT / "core" / "README.md").read_text(encoding="utf-8")
    assert variables_markdown() in readme, "put the output of `ringtune check --markdown` into core/README.md"


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("no-such-compiler", "CXX names 'no-such-compiler', which is not there"),
        ("false", "false cannot compile C++20 (GCC 11 or Clang 14 can)"),
    ],
)
def test_missing_compiler_is_one_sentence(compiler: str, message: str) -> None:
    environ = {**os.environ, "CXX": compiler, "PYTHONPATH": str(ROOT / "native" / "packaging")}
    result = subprocess.run(
        [sys.executable, "-c", "import ringtune_build; ringtune_build.get_requires_for_build_wheel()"],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert message in result.stderr

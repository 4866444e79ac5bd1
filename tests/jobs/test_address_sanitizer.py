"""Jobs whose native parts are built with AddressSanitizer: what touches memory oddly, and what dies half-way.

The tests named here run once more, in a pytest of their own. `make test-long` builds the module.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "module-address"

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

# In every Python process of the job, the server that ranks are forked from and the launcher's ranks among them.
SITE = """
import importlib.util
import sys


class Sanitized:
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, {module!r}) if name == "ringtune._native" else None


sys.meta_path.insert(0, Sanitized())
"""

OPTIONS = [
    # Python and PyTorch keep memory until the process ends.
    "detect_leaks=0",
    # A rank asks for more than there is and expects an error, not the end.
    "allocator_may_return_null=1",
    # Reports of ranks, which may be killed or hidden behind a pytest that passes, are files.
    "log_path={folder}/report",
]

SELECTED = {
    "tensors that change": ["tests/jobs/test_odd_tensors.py", "tests/jobs/test_uneven.py"],
    "repeated calls": ["tests/jobs/test_fast_path.py", "tests/jobs/test_fast_path_groups.py", "tests/jobs/test_out.py"],
    "step schedules": ["tests/jobs/test_step_schedules.py"],
    # The limit of the process's memory in the one that is left out is no size that the sanitizer can live with.
    "faults": ["tests/jobs/test_faults.py", "-k", "not an_error_inside_one_runtime and not idle_rank_uses"],
    "alltoall and sets": ["tests/jobs/test_alltoall.py", "tests/jobs/test_process_sets.py"],
    "process groups": ["tests/jobs/test_distributed_memory.py", "tests/jobs/test_distributed_timeouts.py"],
    "arrays": ["tests/jobs/test_numpy.py"],
    "compression": ["tests/jobs/test_compression.py"],
    "elastic": ["tests/launch/test_elastic.py"],
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment in which Python finds the sanitized module."""
    found = list(BUILD.glob("_native.*.so"))
    assert found, f"there is no module in {BUILD}: `make build/module-address.stamp` builds it"
    (tmp_path / "sitecustomize.py").write_text(SITE.format(module=str(found[0])))
    # PyTorch's C++ library comes later than the sanitizer, which looks for its throw when the process starts.
    libraries = [_library("libasan.so"), _library("libstdc++.so.6")]
    return {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": ":".join(OPTIONS).format(folder=tmp_path),
        "UBSAN_OPTIONS": f"halt_on_error=1:print_stacktrace=1:log_path={tmp_path}/report",
    }


def _library(name: str) -> str:
    return subprocess.check_output(["c++", f"-print-file-name={name}"], text=True).strip()


def _reports(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob("report*")))


@pytest.mark.parametrize("selection", list(SELECTED))
def test_no_memory_is_touched_that_should_not_be(selection: str, environ: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=600", "-m", "not long"]
    done = subprocess.run([*command, *SELECTED[selection]], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert _reports(tmp_path) == ""
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_report_is_seen(environ: dict[str, str], tmp_path: Path) -> None:
    """Of the very module, and of memory that another library has allocated."""
    script = "import numpy, ringtune._native as native, torch\nassert 'module-address' in native.__file__\n"
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True)
    assert (done.returncode, _reports(tmp_path)) == (0, ""), done.stderr
    script += "import ctypes\ntensor = torch.empty(64, dtype=torch.uint8)\nctypes.memset(tensor.data_ptr(), 0, 128)\n"
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in _reports(tmp_path)

"""The scripts of the guides, as their readers start them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import pages

pytestmark = pytest.mark.slow

SAID = {
    ("spark", "pyspark"): "[(0, ",
    ("ray", "ray"): "[(0, [1.0, 1.0, 1.0]), (1, [1.0, 1.0, 1.0])]",
    ("dask", "distributed"): "[(0, [2.0, 2.0, 2.0]), (1, [2.0, 2.0, 2.0])]",
}


@pytest.mark.parametrize(("guide", "module"), SAID)
def test_the_script_of_a_guide_runs(guide: str, module: str, tmp_path: Path) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed; `make test-engines` makes an environment")
    script = next(block for block in pages.read(pages.GUIDE / f"{guide}.md").blocks() if block.title)
    (tmp_path / script.title).write_text(script.text, encoding="utf-8")
    command = [sys.executable, script.title]
    # The names of Ray's sockets may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
                   "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder,
                   "RAY_worker_niceness": "0"}  # fmt: skip
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False
        )
    assert done.returncode == 0, done.stderr
    assert SAID[guide, module] in done.stdout

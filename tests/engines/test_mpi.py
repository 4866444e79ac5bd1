"""Training by the mpiexec of MPICH, Intel MPI or Open MPI that is installed beside this Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines import cases

ROOT = Path(__file__).parents[2]
HANG_S = 240.0  # a bound on hangs, not a measure
HYDRA, OPEN_MPI = Path(sys.prefix, "bin", "mpiexec.hydra"), Path(sys.prefix, "bin", "mpirun")
if HYDRA.exists():
    LIBRARY, FLAGS, GOES_ON = "libmpi.so.12", [str(HYDRA)], ["-disable-auto-cleanup"]
else:
    # As root, and with more ranks than cores.
    LIBRARY, FLAGS = "libmpi.so.40", [str(OPEN_MPI), "--allow-run-as-root", "--oversubscribe"]
    GOES_ON = ["--enable-recovery"]
if not Path(sys.prefix, "lib", LIBRARY).exists():
    pytest.skip("no MPI beside this Python; `make test-engines` makes an environment", allow_module_level=True)

pytestmark = pytest.mark.slow


def start(
    folder: Path, *words: object, flags: list[str] | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Start a command on two ranks; MPI's library is that beside this Python, for mpi4py too."""
    own = Path(sys.prefix, "lib")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "LD_LIBRARY_PATH": str(own),
               "MPI4PY_LIBMPI": str(own / LIBRARY), **variables}  # fmt: skip
    return subprocess.run(
        [*FLAGS, *(flags or []), "-n", "2", *map(str, words)], cwd=folder, env=environ, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip


def call(function: str, *arguments: object) -> list[object]:
    """Return the words of a rank that calls a function of `cases` and leaves what it returns in ``found-<rank>``."""
    text = (
        # So hydra tells of a death; the signal would end who does not know it.
        "import json, signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "from tests.engines import cases\n"
        f"found = cases.{function}{arguments}\n"
        "open(f'found-{found[\"rank\"]}', 'w').write(json.dumps(found))\n"
    )
    return [sys.executable, "-c", text]


@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_training_reaches_the_loss_of_one_process(transport: str, tmp_path: Path, alone: float) -> None:
    trace, run = tmp_path / "trace.json", tmp_path / "run"
    variables = {"RINGTUNE_TRANSPORT": transport, "RINGTUNE_TIMELINE": str(trace), "RINGTUNE_RUN_DIR": str(run)}
    done = start(tmp_path, *call("train"), **variables)
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"found-{rank}").read_text()) for rank in (0, 1)]
    assert [one["loss"] for one in found] == pytest.approx([alone, alone], rel=1e-9)
    cases.merged(trace)
    cases.seen_in_the_dashboard(run)


def test_a_killed_rank_is_named_on_the_other(tmp_path: Path, noticed: Callable[[Path], None]) -> None:
    # By itself mpiexec ends the other rank at once, before or after it has said what it saw.
    done = start(tmp_path, *call("die_on", 1, str(tmp_path)), flags=GOES_ON)
    assert done.returncode != 0
    assert "PeerLost: rank 1" in (tmp_path / "error-0").read_text()
    noticed(tmp_path)


def test_the_launcher_under_mpiexec_is_refused_in_one_sentence(tmp_path: Path) -> None:
    done = start(tmp_path, sys.executable, "-m", "ringtune.cli", "run", "--no-run-dir", "true")
    assert done.returncode != 0
    assert "has started this 2 times: start it once" in done.stderr

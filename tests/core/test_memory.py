"""The most memory of a process: its own, and none of the process that started it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ringtune.meters import memory

MIB = 1 << 20
HOLDS = """
import sys
import numpy as np
from ringtune.meters.memory import peak_bytes
np.ones(int(sys.argv[1]), dtype=np.uint8)  # and lets it go
print(peak_bytes())
"""


def held_by_child(size: int) -> int:
    done = subprocess.run([sys.executable, "-c", HOLDS, str(size)], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_what_was_let_go_counts() -> None:
    assert held_by_child(300 * MIB) >= 300 * MIB


def test_what_the_starting_process_holds_does_not_count() -> None:
    ballast = np.ones(800 * MIB, dtype=np.uint8)
    assert held_by_child(1) < 400 * MIB
    assert ballast[-1] == 1
    assert memory.peak_bytes() >= 800 * MIB


def test_a_kernel_that_says_less(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    assert memory.peak_bytes() > 10 * MIB
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t   12345 kB\n")
    assert memory.peak_bytes() == 12345 * 1024

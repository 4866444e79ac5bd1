"""Clocks set wrong and drifting on purpose, across network namespaces: each host in a time namespace of its own, its
clock slowed or hurried by a library that stands before the C library's.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ringtune.timeline.analysis.summary import summarize
from ringtune.timeline.reading.reader import read
from ringtune.timeline.spans import Trace
from tests.conftest import find_tool, missing
from tests.namespaces import machines

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 2.5
AHEAD_S = (0, 1000)
DRIFT_PPM = (0, 400)

_CLOCK = r"""
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
extern "C" int clock_gettime(clockid_t clock, struct timespec* out) noexcept {
  using Function = int (*)(clockid_t, struct timespec*);
  static const Function real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "clock_gettime"));
  static const long long ppm = atoll(getenv("TEST_CLOCK_PPM"));
  static const long long zero = [] { timespec now{}; real(CLOCK_MONOTONIC, &now);
                                     return now.tv_sec * 1000000000LL + now.tv_nsec; }();
  const int result = real(clock, out);
  if (clock != CLOCK_MONOTONIC || result != 0) return result;
  long long now = out->tv_sec * 1000000000LL + out->tv_nsec;
  now += (now - zero) / 1000 * ppm / 1000;
  out->tv_sec = now / 1000000000LL;
  out->tv_nsec = now % 1000000000LL;
  return 0;
}
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """The merged timeline of two hosts whose clocks disagree by 1000 s and 400 us a second."""
    folder = tmp_path_factory.mktemp("drift")
    (folder / "clock.cc").write_text(_CLOCK)
    library = folder / "clock.so"
    built = [
        find_tool("compiler"),
        "-std=c++17",
        "-O1",
        "-shared",
        "-fPIC",
        "-o",
        str(library),
        str(folder / "clock.cc"),
    ]
    subprocess.run([*built, "-ldl"], check=True, timeout=280)
    with machines(2) as spaces:
        if subprocess.run(["unshare", "-T", "--monotonic", "1", "true"], capture_output=True, check=False).returncode:
            missing("no time namespaces here")
        store = f"{next(iter(spaces))}:29500"
        ranks = []
        for rank, space in enumerate(spaces.values()):
            settings = {
                "LD_PRELOAD": str(library),
                "TEST_CLOCK_PPM": str(DRIFT_PPM[rank]),
                "RINGTUNE_RANK": str(rank),
                "RINGTUNE_SIZE": "2",
                "RINGTUNE_HOSTNAME": f"host-{rank}",
                "RINGTUNE_STORE": store,
                "RINGTUNE_START_TIMEOUT": "120",
                "RINGTUNE_RUN_DIR": str(folder / "run"),
                "RINGTUNE_TIMELINE": str(folder / "trace.json"),
            }
            words = ["env", *(f"{name}={value}" for name, value in settings.items())]
            job = [sys.executable, "-m", "tests.timeline.clock_job", str(SECONDS)]
            space_words = ["ip", "netns", "exec", space, "unshare", "-T", "--monotonic", str(AHEAD_S[rank])]
            ranks.append(subprocess.Popen([*space_words, *words, *job], cwd=ROOT, stderr=subprocess.PIPE, text=True))
        try:
            errors = [rank.communicate(timeout=280)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    return read(folder / "trace.json")


@pytest.mark.slow
def test_offset_and_drift_are_found(trace: Trace) -> None:
    here, there = trace.parts
    assert (here.offset_ns, here.error_ns) == (0, 0)
    assert there.error_ns is not None and 0 < there.error_ns < 5_000_000
    # Both set out from the same clock: 1000 s apart, and a little further with every second since the job began.
    assert there.offset_ns == pytest.approx(-1e9 * AHEAD_S[1], abs=60e9 * DRIFT_PPM[1] * 1e-6)
    assert there.drift_ppb is not None
    # Within what two samples SECONDS apart, each off by its bound, could leave.
    assert there.drift_ppb == pytest.approx(-1000 * DRIFT_PPM[1], abs=2 * there.error_ns / SECONDS + 1000)


def test_nothing_is_received_before_it_was_sent(trace: Trace) -> None:
    found = summarize(trace).causality
    assert found.checked > 100
    assert (found.violations, found.worst_ns) == (0, 0)

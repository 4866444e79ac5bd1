"""Samples of a rank's process and machine: what they say, and the file that holds them."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from ringtune import layout
from ringtune.errors import RingtuneError
from ringtune.meters.gpus import Gpus, GpuSample
from ringtune.meters.sample import Machine, Sample
from ringtune.meters.sample_log import SampleLog
from ringtune.meters.sampler import Sampler
from ringtune.session import Session

FIELDS = {
    "unix_ns", "at_ns", "pid", "cpu_ns", "rss_bytes", "rss_peak_bytes", "machine_cores", "machine_cpu_ns",
    "machine_memory_bytes", "machine_memory_used_bytes", "network_received_bytes", "network_sent_bytes",
    "loopback_bytes", "gpus",
}  # fmt: skip


def lines_of(run: Path, rank: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in layout.sample_log(run, rank).read_text().splitlines()]


def made(at_ns: int) -> Sample:
    return Sample(**{field.name: at_ns for field in fields(Sample) if field.name != "gpus"})


def test_sums_grow_with_what_the_process_does() -> None:
    machine = Machine()
    before = machine.sample()
    until_ns = time.process_time_ns() + 50_000_000
    while time.process_time_ns() < until_ns:
        pass
    with mmap.mmap(-1, 64 << 20) as fresh:  # an allocator may have resident memory left over
        for page in range(0, len(fresh), mmap.PAGESIZE):
            fresh[page] = 1
        after = machine.sample()
    assert after.cpu_ns - before.cpu_ns >= 50_000_000
    assert after.machine_cpu_ns - before.machine_cpu_ns >= 30_000_000  # the kernel counts in ticks of 10 ms
    assert after.rss_bytes - before.rss_bytes > 32 << 20
    assert after.rss_peak_bytes >= after.rss_bytes // 2


def test_times_and_the_machine_are_those_of_this_one() -> None:
    bounds = (time.monotonic_ns(), time.time_ns())
    sample = Machine().sample()
    assert bounds[0] <= sample.at_ns <= time.monotonic_ns()
    assert bounds[1] <= sample.unix_ns <= time.time_ns()
    assert (sample.pid, sample.machine_cores) == (os.getpid(), psutil.cpu_count())
    assert 0 < sample.rss_bytes < sample.machine_memory_used_bytes < sample.machine_memory_bytes


def test_what_a_bridge_joins_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = {"lo": (5, 5), "eth0": (100, 10), "br0": (1000, 100), "veth7": (1, 1)}
    nics = {name: SimpleNamespace(bytes_recv=a, bytes_sent=b) for name, (a, b) in count.items()}
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: nics)
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/sys/class/net/veth7/master")
    sample = Machine().sample()
    assert (sample.network_received_bytes, sample.network_sent_bytes, sample.loopback_bytes) == (1100, 110, 5)


class FakeNvml:
    """What is used of pynvml, for a machine whose second GPU does not answer."""

    class NVMLError(Exception):
        pass

    def __init__(self, count: int) -> None:
        self.count = count

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        if self.count < 0:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        if handle == 1:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(used=1000 + handle, total=9000)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=40 + handle, memory=1)


def test_gpus_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(3))  # type: ignore[arg-type]
    gpus = Gpus.find()
    assert gpus is not None
    assert Machine(gpus).sample().gpus == (GpuSample(0, 40, 1000, 9000), GpuSample(2, 42, 1002, 9000))


@pytest.mark.parametrize("nvml", [None, FakeNvml(-1), FakeNvml(0)], ids=["no package", "no driver", "no GPU"])
def test_no_gpus(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert Gpus.find() is None


def test_a_line_holds_all_fields(tmp_path: Path) -> None:
    log = SampleLog(tmp_path, 3)
    log.append(replace(made(1), gpus=(GpuSample(0, 40, 1000, 9000),)))
    log.close()
    (line,) = lines_of(tmp_path, 3)
    assert set(line) == FIELDS
    assert line["gpus"] == [{"index": 0, "use_percent": 40, "memory_used_bytes": 1000, "memory_bytes": 9000}]


def test_the_file_stays_below_its_limit_and_reaches_back_to_the_first_sample(tmp_path: Path) -> None:
    log = SampleLog(tmp_path, 0, limit_bytes=10_000)
    for at_ns in range(1000):
        log.append(made(at_ns))
        assert layout.sample_log(tmp_path, 0).stat().st_size <= 10_000
    log.close()
    times = [line["at_ns"] for line in lines_of(tmp_path)]
    strides = {b - a for a, b in pairwise(times)}
    assert times[0] == 0 and times[-1] > 900 and len(times) > 10 and max(strides) <= 128
    assert [path.name for path in layout.sample_logs(tmp_path).iterdir()] == ["rank-00000.jsonl"]


def test_a_torn_line_is_dropped_when_the_file_is_thinned(tmp_path: Path) -> None:
    log = SampleLog(tmp_path, 0, limit_bytes=5000)
    log.append(made(0))
    with open(log.path, "ab") as file:
        file.write(b'{"unix_ns": 1, "at_\n')
    for at_ns in range(1, 40):
        log.append(made(at_ns))
    log.close()
    assert lines_of(tmp_path)[0]["at_ns"] == 0


def test_the_file_grows_over_sessions(tmp_path: Path) -> None:
    for at_ns in range(2):
        log = SampleLog(tmp_path, 0)
        log.append(made(at_ns))
        log.close()
    assert [line["at_ns"] for line in lines_of(tmp_path)] == [0, 1]


def test_a_log_in_a_bad_place(tmp_path: Path) -> None:
    layout.sample_logs(tmp_path).write_text("")
    with pytest.raises(RingtuneError, match="cannot be written"):
        SampleLog(tmp_path, 0)


def test_a_sink_that_fails_is_reported_once_and_the_others_go_on() -> None:
    class Broken:
        def append(self, sample: Sample) -> None:
            raise RingtuneError("the disk is full")

        def close(self) -> None:
            pass

    class Good(list[Sample]):
        def close(self) -> None:
            pass

    told: list[str] = []
    good, sampler = Good(), Sampler(1_000_000, gpus=False, report=told.append)
    sampler.add(Broken())
    sampler.add(good)
    sampler.stop()
    assert told == ["no more samples there: the disk is full"]
    assert len(good) >= 1


def test_a_session_with_a_run_folder_samples_from_begin_to_end(opened: Callable[..., Session], tmp_path: Path) -> None:
    begin_ns = time.monotonic_ns()
    opened(RINGTUNE_RUN_DIR=tmp_path / "run").close()
    first, *_, last = lines_of(tmp_path / "run")
    assert begin_ns < first["at_ns"] < last["at_ns"] < time.monotonic_ns()
    assert not [thread for thread in threading.enumerate() if thread.name == "ringtune-sampler"]


@pytest.mark.parametrize("environ", [{}, {"RINGTUNE_SAMPLE_SECONDS": "0", "RINGTUNE_RUN_DIR": "{tmp}/run"}])
def test_a_session_that_samples_nothing(
    environ: dict[str, str], opened: Callable[..., Session], tmp_path: Path
) -> None:
    opened(**{name: value.format(tmp=tmp_path) for name, value in environ.items()})
    assert not [thread for thread in threading.enumerate() if thread.name == "ringtune-sampler"]
    assert not layout.sample_log(tmp_path / "run", 0).exists()


def test_every_line_is_whole_after_sigkill(tmp_path: Path) -> None:
    code = "import ringtune.session as s, time; s.init(); print('open', flush=True); time.sleep(280)"
    environ = {**os.environ, "RINGTUNE_RUN_DIR": str(tmp_path), "RINGTUNE_SAMPLE_SECONDS": "0.002"}
    with subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        deadline = time.monotonic() + 120
        while layout.sample_log(tmp_path, 0).read_bytes().count(b"\n") < 50 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    found = lines_of(tmp_path)
    assert len(found) >= 50 and all(set(line) == FIELDS for line in found)

"""One sample of this process and its machine: CPU time, memory, network, GPUs.

Times and bytes that only grow are sums since the process or the machine started, so that a rate over any two samples
is exact, also where samples between them are missing.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil

from ringtune.meters.gpus import Gpus, GpuSample
from ringtune.meters.memory import peak_bytes

_LOOPBACK = "lo"


@dataclass(frozen=True)
class Sample:
    """A line of the sample log; see ``core/README.md``.

    Attributes:
        unix_ns: When it was taken, nanoseconds since 1970.
        at_ns: The same on the monotonic clock, that of the step log.
        pid: The rank's process; sums of the process begin anew with another one.
        cpu_ns: CPU time of the process, all its threads, since it started.
        rss_bytes: Memory of the process that is resident.
        rss_peak_bytes: The peak of that.
        machine_cores: Cores of the machine.
        machine_cpu_ns: CPU time that all processes of the machine used, summed over its cores, since it started.
        machine_memory_bytes: Memory of the machine.
        machine_memory_used_bytes: The part that is not available to new processes.
        network_received_bytes: Bytes that came in over the machine's interfaces but loopback, since it started.
        network_sent_bytes: Bytes that went out over them.
        loopback_bytes: Bytes that processes of the machine sent each other through the loopback interface.
        gpus: The machine's GPUs; none where there is no NVML, and on all ranks but the first of a host.
    """

    unix_ns: int
    at_ns: int
    pid: int
    cpu_ns: int
    rss_bytes: int
    rss_peak_bytes: int
    machine_cores: int
    machine_cpu_ns: int
    machine_memory_bytes: int
    machine_memory_used_bytes: int
    network_received_bytes: int
    network_sent_bytes: int
    loopback_bytes: int
    gpus: tuple[GpuSample, ...] = ()


class Machine:
    """Takes samples; made once, used by one thread at a time. Blocks for about 0.1 ms.

    Args:
        gpus: Where to look for GPUs; None = nowhere.
    """

    def __init__(self, gpus: Gpus | None = None) -> None:
        self._process = psutil.Process()
        self._cores = psutil.cpu_count() or 1
        self._gpus = gpus
        self._counts: dict[str, bool] = {}

    def sample(self) -> Sample:
        """Take a sample of process and machine.

        Raises:
            psutil.Error: The kernel gives no answer.
            OSError: Likewise.
        """
        memory = psutil.virtual_memory()
        received, sent, loopback = self._network()
        cpu = psutil.cpu_times()
        return Sample(
            unix_ns=time.time_ns(),
            at_ns=time.monotonic_ns(),
            pid=self._process.pid,
            cpu_ns=time.process_time_ns(),
            rss_bytes=self._process.memory_info().rss,
            rss_peak_bytes=peak_bytes(),
            machine_cores=self._cores,
            machine_cpu_ns=round((cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq) * 1e9),
            machine_memory_bytes=memory.total,
            machine_memory_used_bytes=memory.total - memory.available,
            network_received_bytes=received,
            network_sent_bytes=sent,
            loopback_bytes=loopback,
            gpus=() if self._gpus is None else self._gpus.sample(),
        )

    def _network(self) -> tuple[int, int, int]:
        received = sent = loopback = 0
        for name, counted in psutil.net_io_counters(pernic=True, nowrap=False).items():
            if name == _LOOPBACK:
                loopback = counted.bytes_recv
            elif self._is_counted(name):
                received += counted.bytes_recv
                sent += counted.bytes_sent
        return received, sent, loopback

    def _is_counted(self, name: str) -> bool:
        """Whether an interface counts by itself: members of a bridge or bond are counted by the bridge or bond."""
        if name not in self._counts:
            self._counts[name] = not os.path.exists(f"/sys/class/net/{name}/master")
        return self._counts[name]

"""Hosts made of network namespaces, joined by links of a chosen rate: a network to measure on one machine.

Each namespace is connected to a bridge by one veth pair. A token bucket filter (`tc ... tbf`) at both ends of the pair
limits the rate in each direction, as a network card does. Receive packet steering binds each end to one core: otherwise
packets of one connection are reordered, and TCP takes that for losses (at 10 Gbit/s on two cores, hundreds in a
second).
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline.units import parse_rate

INTERFACE = "wire0"
UNSHAPED = "none"
# The bucket holds one millisecond of the line, as a card's queue would; that is enough for the kernel's timers.
_BURST_SECONDS = 1e-3
# Nearly two of the 64 KiB packets that the kernel hands down: of a bucket that one of them fills, tokens are lost
# whenever the timer for the next one is late. At 500 Mbit/s four hosts had 60 % of their line.
_BURST_BYTES, _LEAST_BYTES = 125_000, 16_384
_QUEUE = "20ms"
# No name is used twice in a process: the kernel removes the links of a deleted namespace some time later.
_calls = itertools.count()


@dataclass(frozen=True)
class Host:
    """A network namespace and its address on the common network."""

    namespace: str
    address: str

    @property
    def outside(self) -> str:
        """The end of its cable at the bridge."""
        return f"{self.namespace}o"

    def command(self, words: list[str]) -> list[str]:
        """Returns the command line that runs `words` in this namespace."""
        return ["ip", "netns", "exec", self.namespace, *words]

    def shape(self, rate_bits: int | None) -> None:
        """Lets the cable carry `rate_bits` per second each way from now on; None: as much as the machine can.

        Raises:
            RingtuneError: the kernel refused.
        """
        queue = "pfifo_fast"
        if rate_bits is not None:
            queue = f"tbf rate {rate_bits}bit burst {bucket_bytes(rate_bits)} latency {_QUEUE}"
        _run(f"tc -n {self.namespace} qdisc replace dev {INTERFACE} root {queue}")
        _run(f"tc qdisc replace dev {self.outside} root {queue}")

    def receive_on(self, core: int) -> None:
        """Binds each end of the veth pair to one core by receive packet steering, so that packets stay in order.

        Raises:
            RingtuneError: the kernel refused.
        """
        for end, words in ((self.outside, ["sh", "-c"]), (INTERFACE, self.command(["sh", "-c"]))):
            _execute([*words, f"echo {core_mask(core)} > /sys/class/net/{end}/queues/rx-0/rps_cpus"])


@dataclass(frozen=True)
class Network:
    """Hosts, and how they reach the process that made them.

    Args:
        driver: address of that process.
        hosts: the hosts.
    """

    driver: str
    hosts: Sequence[Host]


def on_host(network: Network, rank: int, size: int, store_port: int, words: Sequence[str]) -> list[str]:
    """Returns the command line that runs `words` as a rank of a job over all hosts, equally many ranks on each.

    Args:
        network: the hosts.
        rank: of this process.
        size: of the job.
        store_port: of the job's rendezvous store, on the first host.
        words: the command.
    """
    host = network.hosts[rank * len(network.hosts) // size]
    variables = {
        "RINGTUNE_RANK": str(rank),
        "RINGTUNE_SIZE": str(size),
        "RINGTUNE_STORE": f"{network.hosts[0].address}:{store_port}",
        "RINGTUNE_HOSTNAME": host.namespace,
        "RINGTUNE_INTERFACE_ADDRESS": host.address,
        "GLOO_SOCKET_IFNAME": INTERFACE,
    }
    return host.command(["env", *(f"{name}={value}" for name, value in variables.items()), *words])


def bucket_bytes(rate_bits: int) -> int:
    """Returns how many bytes a rested link of a rate carries at once."""
    line = int(rate_bits / 8 * _BURST_SECONDS)
    # A bucket much smaller than a packet would split packets, and a few bytes more do not matter.
    return max(line, _BURST_BYTES if line > _BURST_BYTES / 4 else _LEAST_BYTES)


def core_mask(core: int) -> str:
    """Returns the set of this one core as the kernel reads it: hexadecimal, in groups of 32 bits."""
    return f"{1 << core % 32:x}" + ",00000000" * (core // 32)


def link_rate(text: str) -> int | None:
    """Returns the bits per second that ``1gbit`` or ``500mbit`` names, None for ``none``.

    Raises:
        UsageError: not a rate.
    """
    return None if text.strip().lower() == UNSHAPED else round(8 * parse_rate(text))


def rate_number(text: str) -> int:
    """Returns the bits per second of a rate that is one.

    Raises:
        UsageError: not a rate, or ``none``.
    """
    rate = link_rate(text)
    if rate is None:
        raise UsageError("an unshaped link has no rate; write for example 1gbit")
    return rate


def missing() -> str | None:
    """Returns what this machine lacks for `hosts`, or None."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"the program {tool!r} (package iproute2)"
    return None if os.geteuid() == 0 else "root, which network namespaces need"


def reach(some: Sequence[Host], folder: Path) -> None:
    """Writes an `ssh` into `folder` that runs its command on one of these hosts, for launchers that find it there."""
    spaces = {host.address: host.namespace for host in some}
    program = folder / "ssh"
    program.write_text(
        f"#!{sys.executable}\nimport os, sys\nhost, command = sys.argv[-2:]\n"
        f"os.execvp('ip', ['ip', 'netns', 'exec', {spaces!r}[host], 'sh', '-c', command])\n",
        encoding="utf-8",
    )
    program.chmod(0o755)


@contextmanager
def hosts(count: int, rate_bits: int | None) -> Iterator[tuple[str, list[Host]]]:
    """Makes `count` hosts whose links carry `rate_bits` per second each way; removes them at the end.

    Gives the address under which the hosts reach this process, and the hosts.

    Raises:
        RingtuneError: the kernel refused; the message holds the command and its answer.
    """
    call = next(_calls) % 100
    tag = f"rtl{os.getpid() % 100000}x{call}"
    net = f"10.{100 + os.getpid() % 90}.{(os.getpid() // 90 + call) % 250}"
    made = [Host(f"{tag}n{number}", f"{net}.{number + 2}") for number in range(count)]
    cores = sorted(os.sched_getaffinity(0))
    try:
        _run(f"ip link add {tag} type bridge")
        _run(f"ip addr add {net}.1/24 dev {tag}")
        _run(f"ip link set {tag} up")
        for number, host in enumerate(made):
            _add(host, tag, rate_bits)
            host.receive_on(cores[number % len(cores)])
        yield f"{net}.1", made
    finally:
        for host in made:
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True, check=False)
            # A socket of a killed rank that still has data to send keeps its namespace, and so this end, for minutes.
            subprocess.run(["ip", "link", "del", host.outside], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", tag], capture_output=True, check=False)


def _add(host: Host, bridge: str, rate_bits: int | None) -> None:
    space, outside = host.namespace, host.outside
    _run(f"ip netns add {space}")
    _run(f"ip link add {outside} type veth peer name {INTERFACE} netns {space}")
    _run(f"ip link set {outside} master {bridge} up")
    _run(f"ip -n {space} addr add {host.address}/24 dev {INTERFACE}")
    _run(f"ip -n {space} link set {INTERFACE} up")
    _run(f"ip -n {space} link set lo up")
    if rate_bits is not None:
        host.shape(rate_bits)


def _run(command: str) -> None:
    _execute(command.split())


def _execute(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RingtuneError(f"no network namespaces here: {shlex.join(words)}: {done.stderr.strip()}")

"""The links between namespaces: what a rested one carries at once, and that what goes in first comes out first."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ringtune.benchmarks.netlab import network
from ringtune.benchmarks.netlab.network import Host, bucket_bytes, core_mask, rate_number
from tests.conftest import missing

PACKET = 64 << 10
"""The most that the kernel hands down at once."""


@pytest.mark.parametrize("rate", ["1mbit", "200mbit", "300mbit", "500mbit", "800mbit", "1gbit", "10gbit", "100gbit"])
def test_a_bucket_is_never_just_filled_by_a_packet(rate: str) -> None:
    """Half a packet or less takes packets apart; otherwise another half fits in while a timer is late."""
    assert bucket_bytes(rate_number(rate)) <= PACKET / 2 or bucket_bytes(rate_number(rate)) >= 1.5 * PACKET


@pytest.mark.parametrize(("rate", "size"), [("1mbit", 16_384), ("200mbit", 25_000), ("1gbit", 125_000)])
def test_a_bucket_holds_a_millisecond_of_the_line(rate: str, size: int) -> None:
    assert bucket_bytes(rate_number(rate)) == size
    assert bucket_bytes(rate_number("10gbit")) == 1_250_000


@pytest.mark.parametrize(
    ("core", "mask"),
    [(0, "1"), (1, "2"), (31, "80000000"), (32, "1,00000000"), (40, "100,00000000"), (64, "1,00000000,00000000")],
)
def test_a_core_is_named_as_the_kernel_reads_sets_of_them(core: int, mask: str) -> None:
    assert core_mask(core) == mask


BOTH_WAYS = """
import socket, sys, threading
address, listens, size = sys.argv[1], sys.argv[2] == "listen", 400 << 20
if listens:
    server = socket.create_server((address, 29400))
    print("listening", flush=True)
    wire = server.accept()[0]
else:
    wire = socket.create_connection((address, 29400))
sender = threading.Thread(target=wire.sendall, args=(bytes(size),))
sender.start()
block, left = bytearray(1 << 20), size
while left:
    left -= wire.recv_into(block)
sender.join()
"""


def overtaken(host: Host) -> int:
    """How often this host's TCP found that packets had come out of order."""
    read = subprocess.run(host.command(["cat", "/proc/net/netstat"]), capture_output=True, text=True, check=True)
    names, values = (line.split()[1:] for line in read.stdout.splitlines() if line.startswith("TcpExt:"))
    counts = dict(zip(names, map(int, values), strict=True))
    return sum(counts[name] for name in ("TCPSACKReorder", "TCPTSReorder", "TCPRenoReorder"))


def test_packets_of_a_connection_do_not_overtake_each_other() -> None:
    """Both ways at once, so that every core pushes packets of both directions; on one core none can overtake."""
    lacking = network.missing()
    if lacking is not None:
        missing(lacking)
    with network.hosts(2, rate_number("10gbit")) as (_, hosts):  # which are fresh: every port is free
        words = [sys.executable, "-c", BOTH_WAYS, hosts[0].address]
        with subprocess.Popen(hosts[0].command([*words, "listen"]), stdout=subprocess.PIPE, text=True) as listening:
            assert listening.stdout is not None
            assert listening.stdout.readline() == "listening\n"
            subprocess.run(hosts[1].command([*words, "connect"]), check=True, timeout=60)
            assert listening.wait(60) == 0
        assert [overtaken(host) for host in hosts] == [0, 0]

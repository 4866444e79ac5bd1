"""A benchmark that is told to end leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ringtune.benchmarks.netlab import network
from tests.conftest import missing

ON_TWO_HOSTS = """
import sys, time
import click
from ringtune.benchmarks import cli
from ringtune.benchmarks.netlab import network
from ringtune.cli import main
from ringtune.command_table import Entry

@click.command()
def held():
    with network.hosts(2, None) as (_, hosts):
        print(*(host.namespace for host in hosts), flush=True)
        sys.stdin.read()

cli.COMMANDS["held"] = Entry("__main__:held", "")
sys.exit(main(["bench", "held"]))
"""


def spaces() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in listed.stdout.splitlines() if line.strip()}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_network_namespaces_go(tmp_path: Path, number: signal.Signals) -> None:
    lacking = network.missing()
    if lacking is not None:
        missing(lacking)
    command = [sys.executable, "-c", ON_TWO_HOSTS]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        made = set(process.stdout.readline().split())
        assert len(made) == 2
        assert made <= spaces()
        process.send_signal(number)
        process.stdout.read()
        assert process.wait(60) == 128 + number
    assert not made & spaces()

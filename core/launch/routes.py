"""Which addresses the hosts of a job reach each other at: found by trying, before the ranks start.

A host may have networks that not all others are in (one for management, one for each rack), and its name may lead to
one of them. The launcher starts a probe on each host, lets some others try its addresses, and names one that works
where the one that the route to the launcher suggests does not.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ringtune.errors import RingtuneError

_TRIED_BY = 8
"""How many other hosts try the addresses of one."""
_ANSWER_S = 60.0
_END_S = 2.0
"""How long the end of a killed probe's output is waited for."""
LAUNCHER = ""
"""Stands for the launcher's machine, which need not have ranks."""


@dataclass(frozen=True)
class Routes:
    """What trying has shown.

    Attributes:
        store: Address of the launcher's machine that a host reaches, by host.
        own: Address at which other hosts reach a host, by host, where the route to the launcher suggests another one.
    """

    store: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)


class Probe:
    """A probe on one host.

    Args:
        command: Starts it, through ssh on another host.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._first: dict[str, Any] = {}

    def wait(self, timeout_s: float) -> tuple[int, str] | None:
        """Wait until it runs; return the exit code and what ssh said when it ended instead.

        Raises:
            subprocess.TimeoutExpired: It did neither in time.
        """
        deadline = time.monotonic() + timeout_s
        while line := self._line(deadline - time.monotonic()):
            with contextlib.suppress(ValueError):  # what a login shell prints
                found = json.loads(line)
                if isinstance(found, dict) and "token" in found:
                    self._first = found
                    return None
        _, said = self._process.communicate(timeout=timeout_s)
        return self._process.returncode, said

    @property
    def addresses(self) -> list[str]:
        """Addresses of the host."""
        return list(self._first["addresses"])

    def target(self, address: str) -> tuple[str, int, str]:
        """Return what another probe needs to try one of them."""
        return address, self._first["port"], self._first["token"]

    def reach(self, targets: Sequence[tuple[str, int, str]]) -> list[str | None]:
        """Let it try addresses of others; return its own address of each connection, None where there is none."""
        if not targets:
            return []
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(targets) + "\n")
            self._process.stdin.flush()
            return list(json.loads(self._line(_ANSWER_S)))
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return [None] * len(targets)

    def close(self) -> None:
        """End it. What it has left behind, as ssh may do to share its connection, can hold its output open."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=_END_S)

    def _line(self, timeout_s: float) -> str:
        found: list[str] = []
        assert self._process.stdout is not None
        reader = threading.Thread(target=lambda out: found.append(out.readline()), args=(self._process.stdout,))
        reader.daemon = True
        reader.start()
        reader.join(max(0.0, timeout_s))
        if reader.is_alive():
            self._process.kill()  # ends the line, and the thread with it, unless it has left something behind
            raise subprocess.TimeoutExpired(self._process.args, timeout_s)
        return found[0] if found else ""


def find(probes: Mapping[str, Probe], launcher_addresses: Mapping[str, str], *, launcher_has_ranks: bool) -> Routes:
    """Let the hosts try each other.

    Args:
        probes: Those of the other hosts, by host, and that of the launcher's machine by `LAUNCHER`.
        launcher_addresses: Address of the launcher's machine on the way to a host, by host.
        launcher_has_ranks: Whether the launcher's machine is a host of the job.

    Raises:
        RingtuneError: A host reaches no address of another one; the message names them.
    """
    tries = _tries([name for name in probes if name != LAUNCHER], launcher_has_ranks=launcher_has_ranks)
    targets = {
        name: [(other, address) for other in others for address in probes[other].addresses]
        for name, others in tries.items()
    }
    with ThreadPoolExecutor(len(probes)) as pool:
        answers = pool.map(
            lambda name: probes[name].reach([probes[other].target(address) for other, address in targets[name]]),
            targets,
        )
        reached = {
            name: dict(zip(targets[name], answer, strict=True)) for name, answer in zip(targets, answers, strict=True)
        }
    return choose({name: probe.addresses for name, probe in probes.items()}, reached, launcher_addresses)


Reached = Mapping[str, Mapping[tuple[str, str], "str | None"]]
"""By host: its own address of the connection to an address of another host, None where there was none."""


def choose(addresses: Mapping[str, Sequence[str]], reached: Reached, launcher_addresses: Mapping[str, str]) -> Routes:
    """Choose one address of each host that all who tried it reach; pure.

    Args:
        addresses: Addresses of each host.
        reached: What each host found.
        launcher_addresses: Address of the launcher's machine on the way to a host, by host.

    Raises:
        RingtuneError: There is none; the message says who does not reach whom.
    """
    store: dict[str, str] = {}
    own: dict[str, str] = {}
    suggested: dict[str, str] = {}
    for name, found in reached.items():
        if name == LAUNCHER:
            continue
        ways = {address: here for (other, address), here in found.items() if other == LAUNCHER and here is not None}
        usual = launcher_addresses.get(name, "")
        store[name] = _first(usual, [address for address in addresses[LAUNCHER] if address in ways])
        if not store[name] and addresses[LAUNCHER]:
            raise _unreachable(name, "the launcher's machine", addresses[LAUNCHER])
        suggested[name] = ways.get(store[name]) or ""
    # Ranks beside the launcher meet where the first other host reaches it.
    suggested[LAUNCHER] = next(iter(store.values()), "")
    for name in addresses:
        tried_by = [one for one, found in reached.items() if any(other == name for other, _ in found)]
        if name == LAUNCHER and LAUNCHER not in reached:
            continue
        good = [one for one in addresses[name] if all(reached[by][name, one] is not None for by in tried_by)]
        if tried_by and addresses[name] and not good:
            by = next((by for by in tried_by if all(reached[by][name, one] is None for one in addresses[name])), "")
            raise _unreachable(by or "not every host", name or "the launcher's machine", addresses[name])
        if good and suggested[name] not in good:
            own[name] = good[0]
    return Routes({name: address for name, address in store.items() if address}, own)


def _tries(others: Sequence[str], *, launcher_has_ranks: bool) -> dict[str, list[str]]:
    """Return whom each host tries: the launcher's machine, and some others, evenly spread over them."""
    hosts = [LAUNCHER, *others] if launcher_has_ranks else list(others)
    count = len(hosts)
    steps = (
        sorted({1 + number * (count - 1) // _TRIED_BY for number in range(_TRIED_BY)} - {count}) if count > 1 else []
    )
    tries = {name: [hosts[(place + step) % count] for step in steps] for place, name in enumerate(hosts)}
    for name in others:
        tries[name] = list(dict.fromkeys([LAUNCHER, *tries[name]]))
    return tries


def _first(preferred: str, among: Sequence[str]) -> str:
    return preferred if preferred in among else next(iter(among), "")


def _unreachable(who: str, whom: str, addresses: Sequence[str]) -> RingtuneError:
    return RingtuneError(
        f"{who} reaches {whom} at none of its addresses ({', '.join(addresses)}): does a firewall stand between them? "
        "TCP must be open between the hosts of a job; --network-interface names the network without trying"
    )

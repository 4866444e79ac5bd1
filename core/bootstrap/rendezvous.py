"""Rendezvous: how the ranks of a job agree on the address of their store.

The store (`_native.StoreServer`) is a small key-value server; once every rank knows its address the native runtime
does the rest. Where the address comes from depends on who started the processes:

* ``RINGTUNE_STORE``: given. `ringtune run` serves it; otherwise rank 0 does, unless a server listens there.
* ``MASTER_ADDR`` and ``MASTER_PORT`` without torchrun: rank 0 serves it there.
* torchrun: rank 0 serves it on a free port and publishes the address in torch's own store.
* mpirun, srun, horovodrun on one host: rank 0 publishes it in a file only this user can read.
* srun, jsrun, Flux and others on several hosts: the first host as the launcher names it (`first_host`), at a port
  derived from the job's number.
* mpirun on several hosts: MPI's process manager carries the address, or mpi4py (`mpi`).

A server, once started, lives as long as the process, so that ``init``/``shutdown``/``init`` works: each ``init``
uses a fresh key (`job_key`).
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ringtune import native
from ringtune.bootstrap import address_file, first_host, mpi, secret
from ringtune.bootstrap.deadline import Deadline
from ringtune.bootstrap.interfaces import LOCAL, address_towards, any_address, is_loopback, loopback, outward_address
from ringtune.bootstrap.placement import Placement
from ringtune.config import Config, parse_address
from ringtune.errors import ConfigError, RingtuneError, Timeout

Address = tuple[str, int]


@dataclass
class Rendezvous:
    """What a process knows about its job's store; one per process, kept over ``shutdown``.

    Attributes:
        address: Where the store listens, once found.
        secret: By which the ranks and the store know each other, once the address was found.
        generations: How often this process has joined a job at each store.
    """

    address: Address | None = None
    secret: str = field(default="", repr=False)
    generations: dict[Address, int] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)
    _file: address_file.AddressFile | None = None

    def find(self, placement: Placement, config: Config, environ: Mapping[str, str] | None = None) -> Address:
        """Return the store's address. One that had to be found is remembered; a given one is read each time.

        Args:
            placement: This process's rank and host.
            config: Settings; ``start_timeout_ns`` bounds all waiting.
            environ: Environment; default: the process's.

        Raises:
            ConfigError: The environment does not say how the ranks can meet; the message says what to set.
            Timeout: Another rank did not publish the address in time.
        """
        if placement.store is not None:
            self.secret = secret.of_job(config, placement)
            first_host.wait_for_name(placement, placement.store[0], Deadline.after_ns(config.start_timeout_ns))
            if placement.rank == 0 and not config.launcher:
                self._serve_at(placement.store)
            return placement.store
        if self.address is None:
            self.address = self._find(placement, config, os.environ if environ is None else environ)
        return self.address

    def met(self) -> None:
        """Remove the address file: all ranks have met."""
        if self._file is not None:
            self._file.remove()
            self._file = None

    def job_key(self, placement: Placement, address: Address) -> str:
        """Return the next key ``<job>.<generation>`` at a store, the same on all ranks of the job.

        The count is per store, since a process may have been in other jobs than its peers. In an elastic job the
        launcher counts, since ranks join at different times.
        """
        generation = placement.generation
        if generation is None:
            generation = self.generations.get(address, 0) + 1
            self.generations[address] = generation
        return f"{placement.job or 'job'}.{generation}"

    def _find(self, placement: Placement, config: Config, environ: Mapping[str, str]) -> Address:
        deadline = Deadline.after_ns(config.start_timeout_ns)
        if placement.launcher == "torchrun":
            return self._through_torch(placement, config, environ, deadline)
        self.secret = secret.of_job(config, placement)
        if (address := first_host.address(placement, environ)) is not None:
            first_host.wait_for_name(placement, address[0], deadline)
            if placement.rank == 0:
                self._serve_at(address)
            return address
        if placement.several_hosts:
            return self._through_mpi(placement, config, environ, deadline)
        if placement.launcher == "ringtune":
            raise ConfigError(
                "RINGTUNE_RANK and RINGTUNE_SIZE are set but RINGTUNE_STORE is not: set it on all ranks to host:port "
                "of a free port on rank 0's host, or start the job with `ringtune run`"
            )
        return self._through_file(placement, environ, deadline)

    def _serve_at(self, address: Address) -> None:
        """Serve the store at a given address, unless that is another host's or a server listens there already."""
        try:
            self._keep(native.load().StoreServer(bind_host(address[0]), address[1], self.secret))
        except native.error_class():
            # Rank 0 need not be on the store's host, and a test or a scheduler may serve it; the client's
            # connection, bounded by the start timeout, shows whether a server is there that knows the secret.
            return

    def serve(self, config: Config, reach: str, *, several_hosts: bool) -> Address:
        """Serve the store on a free port; return the address by which the other ranks reach it.

        Args:
            config: Settings; ``own_address`` is the address if it is given.
            reach: A host on the way to the other ranks, by which this host's own address is chosen.
            several_hosts: Whether any are on other hosts.
        """
        here = loopback() if not several_hosts else config.own_address or _own_address(reach)
        return self.serve_on(here if not several_hosts else bind_host(here), here)

    def serve_on(self, listens: str, host: str) -> Address:
        """Serve the store on a free port.

        Args:
            listens: Address to listen on.
            host: Address by which the other ranks reach it.

        Returns:
            That address and the port.
        """
        with native.translated():
            server = native.load().StoreServer(listens, 0, self.secret)
        self._keep(server)
        return host, server.port

    def _keep(self, thing: Any) -> None:
        self._kept.append(thing)

    def _through_torch(
        self, placement: Placement, config: Config, environ: Mapping[str, str], deadline: Deadline
    ) -> Address:
        store = open_torch_store(placement, environ, deadline)
        self._keep(store)
        key = f"ringtune/store/{placement.job or 'job'}"
        one_host = not placement.several_hosts
        self.secret = secret.through_torch(store, f"{key}/secret", config, placement.rank, one_host=one_host)
        if placement.rank == 0:
            host, port = self.serve(config, environ["MASTER_ADDR"], several_hosts=placement.several_hosts)
            store.set(key, f"[{host}]:{port}")
            return host, port
        while not store.check([key]):
            if deadline.passed:
                raise Timeout(
                    f"rank {placement.rank}: rank 0 did not publish ringtune's store under torchrun within "
                    f"{config.start_timeout_ns / 1e9:g} s: did all ranks call init()? (RINGTUNE_START_TIMEOUT)"
                )
            deadline.pause(0.02)
        return parse_address("address published by rank 0", store.get(key).decode())

    def _through_file(self, placement: Placement, environ: Mapping[str, str], deadline: Deadline) -> Address:
        self._file = address_file.AddressFile.for_job(placement, environ)
        if placement.rank == 0:
            with native.translated():
                server = native.load().StoreServer(loopback(), 0, self.secret)
            self._keep(server)
            self._file.publish(loopback(), server.port)
            return loopback(), server.port
        return self._file.wait(placement.rank, deadline)

    def _through_mpi(
        self, placement: Placement, config: Config, environ: Mapping[str, str], deadline: Deadline
    ) -> Address:
        share = mpi.way(placement, environ)
        word: bytes | None = None
        if placement.rank == 0:
            host, port = self.serve(config, socket.gethostname(), several_hosts=placement.several_hosts)
            word = json.dumps([host, port, self.secret]).encode()
        host, port, self.secret = json.loads(mpi.within(share, word, deadline))
        return host, port


def open_torch_store(placement: Placement, environ: Mapping[str, str], deadline: Deadline) -> Any:
    """Connect to torchrun's store, or be its server on rank 0 where the agent does not serve it.

    Raises:
        ConfigError: torch is missing, or ``MASTER_ADDR``/``MASTER_PORT`` are.
    """
    try:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
    except ImportError as error:
        raise ConfigError(f"started by torchrun, but torch cannot be imported: {error}") from None
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environ.get(name):
            raise ConfigError(f"RANK and WORLD_SIZE are set but {name} is not: start with torchrun or set it")
    address = parse_address("MASTER_ADDR:MASTER_PORT", f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}")
    agent_serves = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        # multi_tenant: torch.distributed, if the script uses it too, shares this port with us in rank 0's process.
        return TCPStore(
            address[0],
            address[1],
            world_size=None,
            is_master=placement.rank == 0 and not agent_serves,
            timeout=deadline.left,
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        raise RingtuneError(f"torch's store at {address[0]}:{address[1]} cannot be used: {error}") from error


def bind_host(host: str) -> str:
    """Return the address to listen on for a store that others reach as ``host``.

    A literal address is used as it is. A name may resolve to 127.0.1.1 on its own host (Debian), where other hosts
    could not reach it, so the server then listens on all interfaces.
    """
    if host == "localhost":
        return loopback()
    if host == LOCAL:
        return host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return any_address()
    return host


def _own_address(reach: str) -> str:
    """Return this host's own address on the way to another host; one that others can use if that host is this one."""
    address = address_towards(reach)
    return outward_address(reach) or reach if address is None or is_loopback(address) else address

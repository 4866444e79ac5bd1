"""Starts a job: finds its hosts, serves the rendezvous store, starts the ranks and stays with them to the end."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

from ringtune import native, runfolder
from ringtune.bootstrap import departure
from ringtune.bootstrap.interfaces import address_of, any_address, loopback
from ringtune.bootstrap.rendezvous import bind_host
from ringtune.config import Config
from ringtune.errors import ConfigError, RingtuneError, UsageError
from ringtune.launch import after_run, allocation, descriptors, elastic, remote, restarts, routes
from ringtune.launch.discovery import Discovery
from ringtune.launch.environment import Job, address_towards, cores, for_other_host, meeting_place, rank_environment
from ringtune.launch.hosts import Host, Slot, assign, is_local, merged, parse_hostfile, parse_hosts
from ringtune.launch.options import LaunchOptions
from ringtune.launch.rank import Order, RankProcess
from ringtune.launch.restarts import Start, Starts
from ringtune.launch.routes import Routes
from ringtune.launch.streams import Streams
from ringtune.launch.supervisor import Outcome, Supervisor
from ringtune.variable import without_password


def launch(options: LaunchOptions) -> int:
    """Run a job to its end.

    Signals that arrive meanwhile are passed on to the ranks when this is called in the main thread.

    Args:
        options: The job; with ``elastic`` its ranks may change while it runs.

    Returns:
        The first failing rank's exit code (128 + number after a signal), 0 if all ended well.

    Raises:
        UsageError: The options cannot work: hosts, number of ranks, a command that is not there.
        RingtuneError: A host cannot be reached, the run folder cannot be written, the runtime is not built.
    """
    options = in_allocation(options)
    slots = plan(options)
    discovery: Discovery | None = None
    hosts = [Host(slot.host, slot.local_size) for slot in slots if slot.local_rank == 0]
    if options.elastic is not None:
        hosts, discovery = elastic.first_hosts(options, _hosts(options))
    with contextlib.closing(discovery) if discovery is not None else contextlib.nullcontext():
        return _launch(options, slots, hosts, discovery)


def _launch(options: LaunchOptions, slots: Sequence[Slot], hosts: Sequence[Host], discovery: Discovery | None) -> int:
    if options.run_dir is not None:
        options = dataclasses.replace(options, run_dir=options.run_dir.absolute())
    names = {host.name for host in hosts}
    local = frozenset(name for name in names if is_local(name))
    if local:
        require_command(options.command, options.environ.get("PATH"))
    # Wrong settings are found here, once, instead of by every rank.
    config = Config.from_environ({**options.environ, **options.settings})
    descriptors.require(len(slots), options)
    found = _find_routes([host.name for host in hosts], local, options, config)
    # Before the streams open their log files: it clears those of an earlier job in the same folder.
    options, missed = _begin_run(options, slots, config)
    with _finishing(options.run_dir) as ended, contextlib.closing(Streams(len(slots), options)) as streams:
        if missed is not None:
            streams.say(f"warning: the job goes on without a run folder: {missed}")
        store_host = _store_host(config, names - local, discovery is not None, found)

        def start(number: int) -> Start:
            again = {restarts.VARIABLE: str(number)} if options.restarts else {}
            this = dataclasses.replace(options, settings={**options.settings, **again})
            secret = secrets.token_hex(32)
            with contextlib.closing(open_store(store_host, secret)) as store:
                first, others = hosts[0].name, [host.name for host in hosts if host.name not in local]
                job = Job(
                    secrets.token_hex(8),
                    len(slots),
                    secret,
                    loopback() if store_host == any_address() else store_host,
                    store.port,
                    options.run_dir,
                    meeting_place(first, first in local, others, found) if options.elastic is None else None,
                    tuple(host.name for host in hosts),
                    found,
                )
                if options.call is not None:
                    options.call.offer(_client(job), job.name)
                if options.elastic is None:
                    outcome = _run(job, slots, local, this, streams, store)
                else:
                    supervisor = elastic.ElasticSupervisor(job, elastic.limits_of(options), streams, options)
                    outcome = supervisor.run_with(hosts, discovery)
                if options.call is not None:
                    options.call.collect(_client(job), job, outcome)
                return Start(outcome, options.restarts > 0 and _has_met(job))

        if options.elastic is None:
            _say_plan(slots, local, options, streams)
        outcome = Starts(options, streams).stay(start)
        ended(outcome, streams)
        if options.run_dir is not None:
            after_run.call(options.run_dir, streams.say)
    return outcome.exit_code


def _has_met(job: Job) -> bool:
    """Whether a rank of an ended job came to ``init()``; a job of one rank needs no store, and does not show it."""
    store = _client(job)
    for rank in range(job.size):
        with contextlib.suppress(native.error_class()):  # the rank has left nothing
            store.get(f"{job.name}.1/rank/{rank}", 0)
            return True
    return False


def in_allocation(options: LaunchOptions) -> LaunchOptions:
    """Return options with the batch system's hosts, where the user has named none and a batch system has given some.

    Raises:
        UsageError: A batch system says what makes no sense.
    """
    if _names_hosts(options) or options.allocation is not None:
        return options
    return dataclasses.replace(options, allocation=allocation.find(options.environ))


def _names_hosts(options: LaunchOptions) -> bool:
    scripted = options.elastic is not None and options.elastic.script is not None
    return options.hosts is not None or options.hostfile is not None or scripted


def plan(options: LaunchOptions) -> list[Slot]:
    """Return where each rank runs; for an elastic job only how many there are at the start.

    Raises:
        UsageError: Hosts or number of ranks make no sense.
    """
    options = in_allocation(options)
    if not options.command:
        raise UsageError("say what to run: ringtune run -np 2 python train.py")
    if options.num_proc is not None and options.num_proc < 1:
        raise UsageError(f"-np {options.num_proc}: a job has at least 1 rank")
    if options.hosts is not None and options.hostfile is not None:
        raise UsageError("give -H or --hostfile, not both")
    if options.elastic is not None:
        if options.restarts:
            raise UsageError("--restarts is for jobs with fixed ranks; an elastic one goes on by itself: --reset-limit")
        start = elastic.limits_of(options).start_np
        return assign([Host("localhost", start)], start)
    hosts = _hosts(options)
    if hosts is None and options.num_proc is None:
        beside = allocation.started_beside_others(options.environ)
        why = f"{beside}: start it once, in the batch script, or " if beside else ""
        raise UsageError(f"{why}say how many ranks: ringtune run -np 2 ...")
    if hosts is None:
        assert options.num_proc is not None
        hosts = [Host("localhost", options.num_proc)]
    hosts = merged(hosts)
    return assign(hosts, options.num_proc or sum(host.slots for host in hosts))


def require_command(command: Sequence[str], path: str | None) -> None:
    """Check that this machine can execute a command.

    Raises:
        UsageError: It is not there, or is no program.
    """
    program = command[0]
    if shutil.which(program, path=path):
        return
    file = Path(program)
    if file.suffix == ".py" and file.is_file():
        raise UsageError(f"{program} is not executable; run it with python: ringtune run ... python {program}")
    if file.is_dir():
        raise UsageError(f"{program} is a folder, not a program")
    if file.is_file():
        raise UsageError(f"{program} is not executable (chmod +x {program})")
    reason = "there is no such file" if "/" in program else "it is not on PATH"
    raise UsageError(f"cannot run {program!r}: {reason}")


def open_store(host: str, secret: str) -> Any:
    """Serve the rendezvous store on a free port; has ``port`` and ``close()``."""
    with native.translated():
        return native.load().StoreServer(host, 0, secret)


def _find_routes(hosts: Sequence[str], local: Set[str], options: LaunchOptions, config: Config) -> Routes:
    """Check that all other hosts are ready, and find the addresses that hosts reach each other at.

    Those are not looked for where the user names a network, nor in an elastic job, whose hosts come and go.

    Raises:
        RingtuneError: A host cannot be reached from here or from another one.
    """
    others = [name for name in hosts if name not in local]
    with remote.probing(others, options) as probes:
        named = config.interface is not None or config.interface_address is not None
        if not probes or named or options.elastic is not None:
            return Routes()
        usual = {name: address_towards(name) for name in others}
        found = routes.find(probes, usual, launcher_has_ranks=bool(local))
    here = found.own.get(routes.LAUNCHER)
    return Routes(found.store, {**found.own, **({name: here for name in local} if here is not None else {})})


def _store_host(config: Config, others: Set[str], changing: bool, found: Routes) -> str:
    """Return the address at which the store listens: no other than the one by which the ranks reach it, if it is one.

    Args:
        config: Settings of the ranks.
        others: Names of the other hosts.
        changing: Whether hosts may come later.
        found: Addresses that were tried.
    """
    if not others and not changing:
        return loopback()
    if config.interface is not None:
        with contextlib.suppress(ConfigError):  # the launcher's host need not be one of the job's
            return address_of(config.interface)
    ways = {found.store.get(host) or address_towards(host) for host in others}
    return bind_host(ways.pop()) if len(ways) == 1 and not changing else any_address()


def _client(job: Job) -> Any:
    with native.translated():
        return native.load().StoreClient(job.store_host, job.store_port, job.secret, 10_000_000_000, "launcher")


def _hosts(options: LaunchOptions) -> list[Host] | None:
    if options.hostfile is not None:
        return parse_hostfile(options.hostfile)
    if options.hosts is None and options.allocation is not None:
        return list(options.allocation.hosts)
    return None if options.hosts is None else parse_hosts(options.hosts)


def _run(
    job: Job,
    slots: Sequence[Slot],
    local: frozenset[str],
    options: LaunchOptions,
    streams: Streams,
    store: Any,
) -> Outcome:
    def ended_well(rank: RankProcess) -> None:
        """Tell ranks in `init` that one will not come; keys that only this rank sets end with its number."""
        reason = f"rank {rank.rank} on {rank.slot.host} ended with code 0 and did not join the job"
        store.refuse_waiting(reason, f"{job.name}.", f"/{rank.rank}")

    def lost_of(rank: int) -> str:
        """Return what a rank said that it had lost of another one, before it failed."""
        if len(slots) == 1:
            return ""
        try:
            return str(_client(job).get(departure.key_of_loss(job.name, rank), 0).decode())
        except (RingtuneError, native.error_class()):  # it said nothing
            return ""

    others = [slot.host for slot in slots if slot.host not in local]
    with _ended_in_the_end() as ranks:
        for slot in slots:
            # A rank here must publish an address that ranks on other hosts can reach, so it meets the store there.
            towards = slot.host if slot.host not in local else others[0] if others else ""
            environ = rank_environment(job, slot, job.store_towards(towards), options.environ, options.settings)
            here = slot.host in local
            order = Order(
                options.command,
                environ if here else for_other_host(environ),
                Path.cwd(),
                slot.local_size,
                options.kill_grace_s,
                () if here else remote.variables_of_host(options),
                "" if here else remote.proof(options),
            )
            rank_agent = remote.rank_agent_command() if here else remote.remote_rank_agent_command(slot.host, options)
            ranks.append(RankProcess(slot, rank_agent, order))
        outcome = Supervisor(ranks, streams, options, store.refuse_waiting, ended_well, lost_of).run()
    if outcome.failure is not None and not outcome.interrupted_by and len(slots) > 1:
        streams.say(f"the job failed: {outcome.failure}")
    return outcome


@contextlib.contextmanager
def _ended_in_the_end() -> Iterator[list[RankProcess]]:
    """A list of ranks; those that still run when the block is left, by whatever error, are killed."""
    ranks: list[RankProcess] = []
    try:
        yield ranks
    finally:
        for rank in ranks:
            if rank.exit_code() is None:
                rank.kill()
        for rank in ranks:
            rank.close()


def _say_plan(slots: Sequence[Slot], local: frozenset[str], options: LaunchOptions, streams: Streams) -> None:
    here = sum(slot.host in local for slot in slots)
    given = options.environ.get("OMP_NUM_THREADS", "")
    threads = int(given) if given.isdigit() and int(given) else max(1, cores() // max(1, here))
    if here * threads > cores():
        streams.say(
            f"warning: {here} ranks with {threads} {'thread' if threads == 1 else 'threads'} each share "
            f"{cores()} {'core' if cores() == 1 else 'cores'}; times will tell little about a real job"
        )
    if not options.verbose:
        return
    for host in dict.fromkeys(slot.host for slot in slots):
        ranks = [slot.rank for slot in slots if slot.host == host]
        way = "" if host in local else f" by {remote.starter_of(options)}"
        command = without_password(shlex.join(options.command))
        streams.say(f"ranks {ranks[0]}-{ranks[-1]} on {host}{way}: {command}")
    if not given:
        streams.say(f"OMP_NUM_THREADS is not set: each rank gets its share of its host's cores (here {threads})")
    if options.run_dir is not None:
        streams.say(f"run folder: {options.run_dir}")


def _begin_run(
    options: LaunchOptions, slots: Sequence[Slot], config: Config
) -> tuple[LaunchOptions, RingtuneError | None]:
    """Make the run folder; where that fails and the user did not ask for one, return options without, and why.

    Raises:
        RingtuneError: It cannot be written, and something that was asked for belongs there.
    """
    if options.run_dir is None:
        return options, None
    try:
        runfolder.begin(options.run_dir, record_of(options, slots, config))
    except RingtuneError as error:
        if not options.run_dir_optional or config.timeline is not None:
            raise
        return dataclasses.replace(options, run_dir=None), error
    return options, None


@contextlib.contextmanager
def _finishing(run: Path | None) -> Iterator[Callable[[Outcome, Streams], None]]:
    """Yield a function that writes how the run ended; a run that fails before it is called ends as failed."""
    codes: list[int] = []

    def ended(outcome: Outcome, streams: Streams) -> None:
        codes.append(outcome.exit_code)
        failed = None if outcome.interrupted_by else outcome.failure
        said = None if failed is None else {**dataclasses.asdict(failed), "last_lines": streams.last_lines(failed.rank)}
        try:
            if run is not None:
                runfolder.finish(run, outcome.exit_code, said)
        except RingtuneError as error:  # a full disk is no reason to fail a job that has trained
            streams.say(f"warning: how the job ended is not noted: {error}")

    try:
        yield ended
    except BaseException:
        if not codes and run is not None:
            # The folder may be the cause of the failure; the first error says more than a second one.
            with contextlib.suppress(RingtuneError):
                runfolder.finish(run, 1)
        raise


def record_of(options: LaunchOptions, slots: Sequence[Slot], config: Config) -> runfolder.RunRecord:
    """Return the description of a job for its run folder."""
    named = config.timeline is not None and not config.timeline_dynamic
    timeline = {"timeline": str(config.timeline.absolute())} if named and config.timeline else {}
    return runfolder.RunRecord(
        name=options.name or run_name(options.command),
        command=options.command,
        size=len(slots),
        hosts=[slot.host for slot in slots],
        config=config.as_dict(),
        knobs=config.knobs.as_dict(),
        labels={**options.labels, **timeline},
    )


def run_name(command: Sequence[str]) -> str:
    """Return a name for a run: the stem of the Python script or module, else the program's."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word == "-m" and following:
            return following
        if word.endswith(".py"):
            return Path(word).stem
    return Path(command[0]).stem

"""Commands that measure collectives, gradients, the control plane and hooks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ringtune.benchmarks.harness.devices import check_device
from ringtune.benchmarks.harness.options import (
    common,
    on_device,
    racing,
    require,
    rules_of,
    senders_of,
    write_record,
)
from ringtune.benchmarks.harness.peers import Ground, select_peers
from ringtune.benchmarks.harness.progress import open_console
from ringtune.benchmarks.harness.race.exchanges import COLLECTIVES
from ringtune.benchmarks.harness.race.patterns import DTYPES, item_bytes
from ringtune.benchmarks.harness.requirements import missed_limit, missed_peers, parse_shares
from ringtune.benchmarks.harness.sizes import parse_bytes, parse_sizes
from ringtune.errors import UsageError
from ringtune.timeline.units import bytes_text

DEFAULT_SIZES = "1KiB,..,64MiB"


@click.command()
@click.option("-np", "--num-proc", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks.")
@click.option("--sizes", default=DEFAULT_SIZES, show_default=True, help="Tensor sizes; '..' goes on by factors of 4.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Time measured per size.",
)
@click.option(
    "--learn", type=click.Path(path_type=Path), help="Time ringtune's algorithms instead and write their table here."
)
@racing
@on_device
@common
def allreduce(**options: Any) -> None:
    """Time of one blocking allreduce by size, beside peers in the same run."""
    from ringtune.benchmarks.comm.micro import allreduce_cases

    sizes = parse_sizes(options["sizes"])
    if options["learn"] is not None:
        from ringtune.benchmarks.comm.learn import LearnRequest, run_learn

        request = LearnRequest(options["num_proc"], options["hosts"], sizes, options["seconds"], options["learn"])
        run_learn(request, open_console())
        return
    for size_bytes in sizes:
        if size_bytes % item_bytes(options["dtype"]):
            raise UsageError(f"{bytes_text(size_bytes)} is not a whole number of {options['dtype']} elements")
    _race("allreduce", allreduce_cases(sizes), options)


@click.command()
@click.option("-np", "--num-proc", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks.")
@click.option(
    "--collectives",
    default=",".join(COLLECTIVES),
    show_default=True,
    help="Collectives, comma-separated.",
)
@click.option(
    "--sizes",
    default=DEFAULT_SIZES,
    show_default=True,
    help="Sizes of the largest tensor that a rank gives or gets; '..' goes on by factors of 4.",
)
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=0.5,
    show_default=True,
    help="Time measured per case.",
)
@racing
@on_device
@common
def collectives(**options: Any) -> None:
    """Time of one blocking broadcast, allgather, reducescatter, alltoall or barrier, beside peers in the same run."""
    from ringtune.benchmarks.comm.micro import collectives_cases

    names = [word.strip() for word in options["collectives"].split(",")]
    shape = options["num_proc"], options["dtype"]
    _race("collectives", collectives_cases(names, parse_sizes(options["sizes"]), *shape), options)


@click.command()
@click.option("-np", "--num-proc", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks.")
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    default=("resnet50",),
    show_default=True,
    help="A torchvision model, gpt2, a file with sizes, or COUNTxSIZE as in 2000x4KiB; may be repeated.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    help="Time measured per case.",
)
@click.option("--grouped", is_flag=True, help="Submit a step's gradients to ringtune as one group.")
@racing
@on_device
@common
def gradients(**options: Any) -> None:
    """Time to reduce all gradients of a step: submitted in backward order, then waited for."""
    from ringtune.benchmarks.comm.micro import gradients_cases

    _race("gradients", gradients_cases(options["profiles"]), options)


def _race(benchmark: str, cases: list[Any], options: dict[str, Any]) -> None:
    """Runs a micro benchmark and applies `--json`, `--require` and `--require-limit`.

    Raises:
        UsageError: `--require` without a peer that is present.
        RingtuneError: a ratio is below what is required.
    """
    from ringtune.benchmarks.comm.micro import MicroRequest, micro_markdown, run_micro

    check_device(options["device"])
    peers = select_peers(options["peers"], benchmark, Ground(options["hosts"], options["device"], options["num_proc"]))
    peers = replace(peers, grouped=options.get("grouped", False))
    rules = rules_of(options["require"], peers)
    limit_rules = parse_shares(options["require_limit"])
    request = MicroRequest(
        benchmark,
        options["num_proc"],
        options["hosts"],
        cases,
        options.get("dtype", "float32"),
        options["seconds"],
        options["threads_per_rank"],
        peers,
        options["device"],
    )
    console = open_console()
    record = run_micro(request, console)
    write_record(options["json_file"], record, console)
    if options["markdown"]:
        console.print(micro_markdown(record), markup=False, highlight=False, soft_wrap=True)
    require(missed_peers(record, rules, senders_of(peers, benchmark)) + missed_limit(record, limit_rules))


@click.command()
@click.option("-np", "--num-proc", default="2,..,4096", show_default=True, help="Ranks; '..' goes on by factors of 2.")
@click.option(
    "--tensors", type=click.IntRange(min=1), default=32, show_default=True, help="Tensors negotiated in a cycle."
)
@click.option("--cycles", type=click.IntRange(min=1), default=10, show_default=True, help="Cycles measured per phase.")
@click.option("--fan-out", type=click.IntRange(min=1), help="Children of a rank in the tree; default: the runtime's.")
@click.option(
    "--require-growth",
    type=click.Choice(["log"]),
    help="Exit 1 when messages, bytes or time of rank 0 or of the busiest other rank grow faster with the ranks.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record to this file.")
def negotiation(**options: Any) -> None:
    """What the control plane costs per cycle: all ranks' negotiators in one process, for 2 to 4096 ranks."""
    from ringtune.benchmarks.comm.negotiation import NegotiationRequest, parse_scale, require_growth, run_negotiation

    ranks = parse_scale(options["num_proc"])
    request = NegotiationRequest(ranks, options["tensors"], options["cycles"], options["fan_out"])
    console = open_console()
    record = run_negotiation(request, console)
    write_record(options["json_file"], record, console)
    if options["require_growth"] is not None:
        require_growth(record)


@click.command()
@click.option("-np", "--num-proc", type=click.IntRange(min=2), default=2, show_default=True, help="Ranks.")
@click.option(
    "--gradients", type=click.IntRange(min=1), default=161, show_default=True, help="Gradients per backward pass."
)
@click.option("--size", default="4KiB", show_default=True, help="Size of each gradient.")
@click.option(
    "--passes", type=click.IntRange(min=1), default=200, show_default=True, help="Measured pairs of backward passes."
)
@click.option("--require", type=float, metavar="US", help="Exit 1 when a gradient costs more microseconds than this.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record to this file.")
def hook(**options: Any) -> None:
    """What submitting a gradient from DistributedOptimizer's hook costs, beside an empty hook."""
    from ringtune.benchmarks.comm.config import HookRun
    from ringtune.benchmarks.comm.hook import HookRequest, costlier, run_hook

    size_bytes = parse_bytes(options["size"])
    if size_bytes % item_bytes("float32"):
        raise UsageError(f"{bytes_text(size_bytes)} is not a whole number of float32 elements")
    request = HookRequest(options["num_proc"], HookRun(options["gradients"], size_bytes, options["passes"]))
    console = open_console()
    record = run_hook(request, console)
    write_record(options["json_file"], record, console)
    require(costlier(record, options["require"]) if options["require"] is not None else [])


@click.command()
@click.option("-np", "--num-proc", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks of each job.")
@click.option("--frameworks", "names", default="tensorflow,jax,keras,mxnet", show_default=True, help="Comma-separated.")
@click.option("--sizes", default="1KiB,1MiB,16MiB", show_default=True, help="Sizes of single tensors.")
@click.option("--profile", default="resnet50", show_default=True, help="Gradients that are summed together.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="Time measured per case and contender.",
)
@click.option("--threads-per-rank", type=click.IntRange(min=1), default=1, show_default=True, help="Compute threads.")
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="FRAMEWORK=PYTHON",
    help="Python that has a framework; default: this one, or that of `make test-frameworks`.",
)
@click.option(
    "--require",
    is_flag=True,
    help="Exit 1 when a front end is slower than its framework's own way, or in compiled code by more than 15 us + "
    "10 % than ringtune without a framework.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record to this file.")
def frameworks(**options: Any) -> None:
    """Time of a sum inside compiled code of frameworks, beside their own way and ringtune alone, in one run."""
    from ringtune.benchmarks.comm.frameworks import FrameworksRequest, find_pythons, run_frameworks, too_slow

    given = {}
    for word in options["pythons"]:
        name, found, python = word.partition("=")
        if not found or not python:
            raise UsageError(f"--python {word}: expected FRAMEWORK=PYTHON, as in jax=jaxenv/bin/python")
        given[name] = python
    names = [word.strip() for word in options["names"].split(",") if word.strip()]
    pythons, absent = find_pythons(names, given)
    sizes = parse_sizes(options["sizes"])
    for size_bytes in sizes:
        if size_bytes % item_bytes("float32"):
            raise UsageError(f"{bytes_text(size_bytes)} is not a whole number of float32 elements")
    request = FrameworksRequest(
        options["num_proc"],
        sizes,
        options["profile"],
        options["seconds"],
        options["threads_per_rank"],
        pythons,
        absent,
    )
    console = open_console()
    record = run_frameworks(request, console)
    write_record(options["json_file"], record, console)
    if options["require"]:
        require(too_slow(record))

"""Commands of the benchmarks; what they share is in `options`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ringtune import runfolder
from ringtune.benchmarks.devices import CPU, check_device
from ringtune.benchmarks.jobs import parse_ranks
from ringtune.benchmarks.options import common, on_device, race, racing, require, rules_of, senders_of, write_record
from ringtune.benchmarks.peers import Ground, select_peers
from ringtune.benchmarks.progress import open_console
from ringtune.benchmarks.requirements import missed_line, missed_peers, parse_shares
from ringtune.benchmarks.sizes import format_bytes, parse_bytes, parse_sizes
from ringtune.benchmarks.workers.race.exchanges import COLLECTIVES
from ringtune.benchmarks.workers.race.patterns import DTYPES, item_bytes
from ringtune.errors import UsageError

DEFAULT_SIZES = "1KiB,..,64MiB"


@click.command()
@click.option("-np", "--num-proc", default="1,2", show_default=True, help="Rank counts, comma-separated.")
@click.option("--model", default="resnet50", show_default=True, help="Any classification model of torchvision.")
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Images per rank.")
@click.option("--image-size", type=click.IntRange(min=1), default=224, show_default=True, help="Pixels per side.")
@click.option("--num-warmup-batches", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--num-batches-per-iter", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--num-iters", type=click.IntRange(min=1), default=10, show_default=True, help="Samples per rank count.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True, help="Repeat all rank counts.")
@click.option("--peers", help="Compared in the same processes: ddp-gloo, ddp-nccl.  [default: none; on GPUs ddp-nccl]")
@click.option("--fp16-allreduce", is_flag=True, help="Send gradients as float16 (ringtune only).")
@click.option("--seed", type=int, default=42, show_default=True)
@click.option("--run-dir", type=click.Path(path_type=Path), help="Run folder; default: runs/bench-<model>-<time>.")
@on_device
@common
def resnet(**options: Any) -> None:
    """Images per second and scaling efficiency of a model on synthetic images."""
    from ringtune.benchmarks.resnet import ScalingRequest, run_resnet, store_record
    from ringtune.benchmarks.workers.config import TrainingRun, TrainingTask

    check_device(options["device"])
    ranks = parse_ranks(options["num_proc"])
    peers = select_peers(options["peers"], "resnet", Ground(options["hosts"], options["device"], max(ranks)))
    task = TrainingTask(
        options["model"],
        options["batch_size"],
        options["image_size"],
        fp16_allreduce=options["fp16_allreduce"],
        device=options["device"],
    )
    run = TrainingRun(
        task,
        list(peers.contenders),
        options["num_warmup_batches"],
        options["num_batches_per_iter"],
        options["num_iters"],
        options["threads_per_rank"],
        options["seed"],
    )
    request = ScalingRequest(ranks, options["hosts"], options["rounds"], run, peers)
    console = open_console()
    record = run_resnet(request, console)
    folder = options["run_dir"] or runfolder.planned_folder(f"bench-{task.model}")
    console.print(f"record: {store_record(folder, record)}", soft_wrap=True)
    write_record(options["json_file"], record, console)


@click.command()
@click.option("-np", "--num-proc", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks.")
@click.option("--sizes", default=DEFAULT_SIZES, show_default=True, help="Tensor sizes; '..' goes on by factors of 4.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, help="Per size."
)
@click.option(
    "--learn", type=click.Path(path_type=Path), help="Time ringtune's algorithms instead and write their table here."
)
@racing
@on_device
@common
def allreduce(**options: Any) -> None:
    """Time of one blocking allreduce by size, beside peers in the same run."""
    from ringtune.benchmarks.micro import allreduce_cases

    sizes = parse_sizes(options["sizes"])
    if options["learn"] is not None:
        from ringtune.benchmarks.learn import LearnRequest, run_learn

        request = LearnRequest(options["num_proc"], options["hosts"], sizes, options["seconds"], options["learn"])
        run_learn(request, open_console())
        return
    for size_bytes in sizes:
        if size_bytes % item_bytes(options["dtype"]):
            raise UsageError(f"{format_bytes(size_bytes)} is not a whole number of {options['dtype']} elements")
    race("allreduce", allreduce_cases(sizes), options)


@click.command()
@click.option("-np", "--num-proc", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks.")
@click.option(
    "--collectives",
    default=",".join(COLLECTIVES),
    show_default=True,
    help="Which, comma-separated.",
)
@click.option(
    "--sizes",
    default=DEFAULT_SIZES,
    show_default=True,
    help="Of the largest tensor that a rank gives or gets; '..' goes on by factors of 4.",
)
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=0.5, show_default=True, help="Per case."
)
@racing
@on_device
@common
def collectives(**options: Any) -> None:
    """Time of one blocking broadcast, allgather, reducescatter, alltoall or barrier, beside peers in the same run."""
    from ringtune.benchmarks.micro import collectives_cases

    names = [word.strip() for word in options["collectives"].split(",")]
    shape = options["num_proc"], options["dtype"]
    race("collectives", collectives_cases(names, parse_sizes(options["sizes"]), *shape), options)


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
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=3.0, show_default=True, help="Per case."
)
@click.option("--grouped", is_flag=True, help="Submit a step's gradients to ringtune as one group.")
@racing
@on_device
@common
def gradients(**options: Any) -> None:
    """Time to reduce all gradients of a step: submitted in backward order, then waited for."""
    from ringtune.benchmarks.micro import gradients_cases

    race("gradients", gradients_cases(options["profiles"]), options)


@click.command()
@click.option("-np", "--num-proc", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks.")
@click.option(
    "--model",
    "models",
    multiple=True,
    default=("resnet50",),
    show_default=True,
    help="A classification model of torchvision, or gpt; may be repeated.",
)
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Images per rank.")
@click.option("--image-size", type=click.IntRange(min=1), default=224, show_default=True, help="Pixels per side.")
@click.option("--sequence-length", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens, of gpt.")
@click.option("--rounds", type=click.IntRange(min=1), default=8, show_default=True, help="Samples of each contender.")
@click.option("--threads-per-rank", type=click.IntRange(min=1), default=1, show_default=True, help="Compute threads.")
@click.option(
    "--peers",
    help="Comma-separated, or all.  [default: alone,ddp-gloo,horovod; on GPUs alone,ddp-nccl,ddp-gloo]",
)
@on_device
@click.option("--rate", help="Put each rank on a host of its own (a network namespace), links of this rate: 1gbit.")
@click.option(
    "--require",
    metavar="RULES",
    help="Exit 1 when ringtune is slower than this beside the best peer, as in 1.0, or beside one, as in alone:0.98.",
)
@click.option("--markdown", is_flag=True, help="Print the table once more as Markdown, for documents.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record to this file.")
def train(**options: Any) -> None:
    """Real training in turn: processes that do not communicate, ringtune in both its faces, peers."""
    from ringtune.benchmarks.train import TrainRequest, run_train, train_markdown
    from ringtune.benchmarks.workers.config import TrainingTask

    check_device(options["device"])
    if options["rate"] is not None and options["device"] != CPU:
        raise UsageError("--rate puts ranks on hosts without a GPU: leave out --device cuda")
    peers = select_peers(options["peers"], "train", Ground(None, options["device"], options["num_proc"]))
    rules = rules_of(options["require"], peers)
    shape = {name: options[name] for name in ("batch_size", "image_size", "sequence_length", "device")}
    tasks = [TrainingTask(model, **shape) for model in options["models"]]
    request = TrainRequest(
        options["num_proc"],
        options["threads_per_rank"],
        tasks,
        options["rounds"],
        peers,
        options["rate"],
        options["device"],
    )
    console = open_console()
    record = run_train(request, console)
    write_record(options["json_file"], record, console)
    if options["markdown"]:
        console.print(train_markdown(record), markup=False, highlight=False, soft_wrap=True)
    require(missed_peers(record, rules, senders_of(peers, "train")))


@click.command()
@click.option("--rate", "rates", default="1gbit,10gbit", show_default=True, help="Of the links; none = unshaped.")
@click.option("--hosts", type=click.IntRange(min=2), default=2, show_default=True, help="Network namespaces.")
@click.option("--ranks-per-host", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--sizes", default="1KiB,..,64MiB", show_default=True, help="Tensor sizes.")
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    help="Instead of single tensors a step's gradients, as in 'ringtune bench gradients'; may be repeated.",
)
@click.option("--peers", default="gloo", show_default=True, help="Comma-separated: gloo.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=0.5, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True, help="iperf3 and race alternate.")
@click.option(
    "--require",
    metavar="RULES",
    help="Exit 1 when the ratio to the best peer is below these at any rate: 1.2, or by size <=64KiB:1.5,>=1MiB:1.0.",
)
@click.option(
    "--require-line",
    metavar="RULES",
    help="Exit 1 when a smaller share of iperf3's one-way rate is used than this: 0.85, or by size >=4MiB:0.95.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record to this file.")
def links(**options: Any) -> None:
    """Allreduce between hosts (network namespaces with shaped links), beside iperf3 and Gloo. Needs root."""
    from ringtune.benchmarks.links import LinksRequest, run_links
    from ringtune.benchmarks.micro import allreduce_cases, gradients_cases

    profiles = options["profiles"]
    benchmark = "gradients" if profiles else "allreduce"
    peers = select_peers(options["peers"], benchmark)
    rules = rules_of(options["require"], peers)
    line_rules = parse_shares(options["require_line"])
    request = LinksRequest(
        [word.strip() for word in options["rates"].split(",")],
        options["hosts"],
        options["ranks_per_host"],
        benchmark,
        gradients_cases(profiles) if profiles else allreduce_cases(parse_sizes(options["sizes"])),
        options["seconds"],
        options["rounds"],
        peers,
    )
    console = open_console()
    record = run_links(request, console)
    write_record(options["json_file"], record, console)
    senders = senders_of(peers, benchmark)
    require(
        [
            f"{rate['rate']}, {sentence}"
            for rate in record["rates"]
            for sentence in missed_peers(rate, rules, senders) + missed_line(rate, line_rules)
        ]
    )


@click.command()
@click.option("-np", "--num-proc", default="2,..,4096", show_default=True, help="Ranks; '..' goes on by factors of 2.")
@click.option("--tensors", type=click.IntRange(min=1), default=32, show_default=True, help="Negotiated in a cycle.")
@click.option("--cycles", type=click.IntRange(min=1), default=10, show_default=True, help="Measured per phase.")
@click.option("--fan-out", type=click.IntRange(min=1), help="Children of a rank in the tree; default: the runtime's.")
@click.option(
    "--require-growth",
    type=click.Choice(["log"]),
    help="Exit 1 when messages, bytes or time of rank 0 or of the busiest other rank grow faster with the ranks.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record to this file.")
def negotiation(**options: Any) -> None:
    """What the control plane costs per cycle: all ranks' negotiators in one process, for 2 to 4096 ranks."""
    from ringtune.benchmarks.negotiation import NegotiationRequest, parse_scale, require_growth, run_negotiation

    ranks = parse_scale(options["num_proc"])
    request = NegotiationRequest(ranks, options["tensors"], options["cycles"], options["fan_out"])
    console = open_console()
    record = run_negotiation(request, console)
    write_record(options["json_file"], record, console)
    if options["require_growth"] is not None:
        require_growth(record)


@click.command()
@click.option("-np", "--num-proc", type=click.IntRange(min=2), default=2, show_default=True, help="Ranks.")
@click.option("--gradients", type=click.IntRange(min=1), default=161, show_default=True, help="Per backward pass.")
@click.option("--size", default="4KiB", show_default=True, help="Of each gradient.")
@click.option("--passes", type=click.IntRange(min=1), default=200, show_default=True, help="Measured pairs.")
@click.option("--require", type=float, metavar="US", help="Exit 1 when a gradient costs more microseconds than this.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the record to this file.")
def hook(**options: Any) -> None:
    """What submitting a gradient from DistributedOptimizer's hook costs, beside an empty hook."""
    from ringtune.benchmarks.hook import HookRequest, costlier, run_hook
    from ringtune.benchmarks.workers.config import HookRun

    size_bytes = parse_bytes(options["size"])
    if size_bytes % item_bytes("float32"):
        raise UsageError(f"{format_bytes(size_bytes)} is not a whole number of float32 elements")
    request = HookRequest(options["num_proc"], HookRun(options["gradients"], size_bytes, options["passes"]))
    console = open_console()
    record = run_hook(request, console)
    write_record(options["json_file"], record, console)
    require(costlier(record, options["require"]) if options["require"] is not None else [])

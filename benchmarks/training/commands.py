"""Commands that measure training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ringtune import runfolder
from ringtune.benchmarks.harness.devices import CPU, check_device
from ringtune.benchmarks.harness.jobs import parse_ranks
from ringtune.benchmarks.harness.options import (
    common,
    on_device,
    require,
    rules_of,
    senders_of,
    write_record,
)
from ringtune.benchmarks.harness.peers import Ground, select_peers
from ringtune.benchmarks.harness.progress import open_console
from ringtune.benchmarks.harness.requirements import missed_peers
from ringtune.errors import UsageError


@click.command()
@click.option("-np", "--num-proc", default="1,2", show_default=True, help="Rank counts, comma-separated.")
@click.option("--model", default="resnet50", show_default=True, help="Any classification model of torchvision.")
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Images per rank.")
@click.option("--image-size", type=click.IntRange(min=1), default=224, show_default=True, help="Pixels per side.")
@click.option("--num-warmup-batches", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--num-batches-per-iter", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--num-iters", type=click.IntRange(min=1), default=10, show_default=True, help="Samples per rank count.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True, help="Repeat all rank counts.")
@click.option("--peers", help="Peers in the same processes: ddp-gloo, ddp-nccl.  [default: none; on GPUs ddp-nccl]")
@click.option("--fp16-allreduce", is_flag=True, help="Send gradients as float16 (ringtune only).")
@click.option("--seed", type=int, default=42, show_default=True)
@click.option("--run-dir", type=click.Path(path_type=Path), help="Run folder; default: runs/bench-<model>-<time>.")
@on_device
@common
def resnet(**options: Any) -> None:
    """Images per second and scaling efficiency of a model on synthetic images."""
    from ringtune.benchmarks.training.config import TrainingRun, TrainingTask
    from ringtune.benchmarks.training.scaling import ScalingRequest, run_resnet, store_record

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
@click.option(
    "--sequence-length", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens of a sequence of gpt."
)
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
    """Real training in turn: processes that do not communicate, ringtune's optimizer and DDP backend, peers."""
    from ringtune.benchmarks.training.config import TrainingTask
    from ringtune.benchmarks.training.train import TrainRequest, run_train, train_markdown

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

"""`make bench-gpu`: tensors on one GPU, of a rank alone and of ranks that share it, beside PyTorch's own means.

Peers are torch.distributed's NCCL for one rank, and Gloo for several, since NCCL refuses ranks that share a GPU. Leaves
``bench.json`` and ``bench.md``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ringtune.benchmarks.comm.gpu_worker import Plan
from ringtune.benchmarks.harness.sizes import parse_sizes
from ringtune.errors import RingtuneError
from ringtune.launch.launcher import launch
from ringtune.launch.options import LaunchOptions
from ringtune.timeline.units import bytes_text, time_text


def measure(ranks: int, plan: Plan, file: Path) -> dict[str, Any]:
    """Run one job and return its record.

    Raises:
        RingtuneError: A rank failed; its output is on standard error.
    """
    command = [sys.executable, "-m", "ringtune.benchmarks.comm.gpu_worker", json.dumps(asdict(plan)), str(file)]
    if code := launch(LaunchOptions(command, num_proc=ranks)):
        raise RingtuneError(f"the job of {ranks} ranks ended with exit code {code}")
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return record


def _speed(size: int, seconds: float) -> str:
    return f"{size / seconds / 1e9:.2f}"


def markdown(records: list[dict[str, Any]]) -> str:
    """Return the tables: medians, GB/s of the tensor's bytes, images/s of all ranks together."""
    lines = [f"{records[0]['device']}, torch {records[0]['torch']}. Medians; spreads are in bench.json.", ""]
    for record in records:
        ranks = record["ranks"]
        lines += [f"## {ranks} rank{'s' if ranks > 1 else ''}", ""]
        for name, copy in record["copies"].items():
            lines.append(f"Pinned memory {name}: {_speed(copy['bytes'], copy['median'])} GB/s.")
        names = list(record["reductions"][0]["seconds"])
        lines += ["", "| allreduce | " + " | ".join(f"{name} | GB/s" for name in names) + " |"]
        lines.append("|---" * (2 * len(names) + 1) + "|")
        for row in record["reductions"]:
            cells = [
                f"{time_text(1e9 * row['seconds'][name]['median'])} | "
                f"{_speed(row['bytes'], row['seconds'][name]['median'])}"
                for name in names
            ]
            lines.append(f"| {bytes_text(row['bytes'])} | " + " | ".join(cells) + " |")
        step = record["gradients"]
        lines += ["", f"{step['tensors']} gradients, {bytes_text(step['bytes'])}, started together:"]
        lines += [f"- {name}: {time_text(1e9 * found['median'])}" for name, found in step["seconds"].items()]
        train = record["training"]
        images = ranks * train["batch"]
        lines += ["", f"{train['model']}, bf16, channels last, {train['batch']} images of {train['pixels']} px a rank:"]
        alone = train["seconds"]["alone"]["median"]
        for name, found in train["seconds"].items():
            share = f"{100 * alone / found['median']:.1f} % of alone"
            lines.append(f"- {name}: {images / found['median']:.0f} images/s, {share}")
        lines.append("")
    return "\n".join(lines)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of bench.json and bench.md.")
@click.option("-np", "ranks", default="1,2", show_default=True, help="Ranks of each job, all on one GPU.")
@click.option("--sizes", default="4KiB,..,256MiB", show_default=True, help="Sizes of the tensors reduced alone.")
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(min=2), help="Turns of each contender.")
@click.option("--model", default="resnet50", show_default=True, help="torchvision's name of the network.")
@click.option("--batch", default=64, show_default=True, type=click.IntRange(min=1), help="Images of a step and rank.")
@click.option("--pixels", default=224, show_default=True, type=click.IntRange(min=32), help="Side of an image.")
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    help="Device of the tensors; cpu only tries the program.",
)
def main(out: Path, ranks: str, sizes: str, **given: Any) -> None:
    """Measure tensors on one GPU and leave the tables."""
    out.mkdir(parents=True, exist_ok=True)
    records = []
    for count in (int(one) for one in ranks.split(",")):
        with tempfile.TemporaryDirectory() as scratch:
            plan = Plan(sizes=tuple(parse_sizes(sizes)), scratch=scratch, **given)
            records.append(measure(count, plan, Path(scratch, "record.json")))
        # The record is written after each job, so that a later job that fails loses no result.
        (out / "bench.json").write_text(json.dumps(records, indent=2), encoding="utf-8")
        (out / "bench.md").write_text(markdown(records), encoding="utf-8")
    click.echo((out / "bench.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    try:
        main()
    except RingtuneError as error:
        sys.exit(f"bench-gpu: {error}")

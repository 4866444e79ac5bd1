"""Commands that measure over shaped links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ringtune.benchmarks.harness.options import (
    require,
    rules_of,
    senders_of,
    write_record,
)
from ringtune.benchmarks.harness.peers import select_peers
from ringtune.benchmarks.harness.progress import open_console
from ringtune.benchmarks.harness.requirements import missed_line, missed_peers, parse_shares
from ringtune.benchmarks.harness.sizes import parse_sizes


@click.command()
@click.option("--rate", "rates", default="1gbit,10gbit", show_default=True, help="Rate of the links; none = unshaped.")
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
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How often iperf3 and the race alternate.",
)
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
    from ringtune.benchmarks.comm.micro import allreduce_cases, gradients_cases
    from ringtune.benchmarks.netlab.links import LinksRequest, run_links

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

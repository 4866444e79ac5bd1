"""Metrics of a real job: all ranks are seen at rank 0."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable

from ringtune.errors import ConfigError
from tests.jobs.cases import common, training
from tests.jobs.launching import Job, wait_until
from tests.ports import free_port

GetJob = Callable[..., Job]


def lines(url: str) -> list[str]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_rank_0_serves_the_metrics_of_all_ranks(fresh: GetJob) -> None:
    job = fresh(3, metrics_port=0, sample_seconds=0.02)
    url = re.findall(r"http://127\.0\.0\.1:\d+/metrics", job.ranks[0].stderr())[0]
    job.run(training.steps, count=4)
    wanted = {f'ringtune_step_duration_seconds_count{{rank="{rank}"}} 4.0' for rank in range(3)}
    wanted |= {f'ringtune_operations_total{{kind="allreduce",rank="{rank}"}} 12.0' for rank in range(3)}
    wanted |= {f'ringtune_payload_bytes_total{{kind="allreduce",rank="{rank}"}} 4800.0' for rank in range(3)}
    none = "ringtune_exposed_seconds_total 0.0"
    wait_until(lambda: wanted <= set(lines(url)) and none not in lines(url), lambda: str(wanted - set(lines(url))))
    found = lines(url)
    blocked, exposed = (
        [float(line.split()[-1]) for line in found if line.startswith(f"ringtune_{name}_seconds_total")]
        for name in ("blocked", "exposed")
    )
    assert len(blocked) == 3 and len(exposed) == 1 and 0 < exposed[0] <= min(blocked)
    assert [line for line in found if line.startswith("ringtune_ranks")] == ["ringtune_ranks 3.0"]
    assert 'ringtune_open_operations{rank="1"} 0.0' in found
    job.run(common.close_session)
    assert not any("warning" in rank.stderr() for rank in job.ranks), job.ranks[1].stderr()


def test_a_port_in_use_ends_the_job_with_a_sentence(fresh: GetJob) -> None:
    port = free_port()
    first = fresh(1, metrics_port=port)
    second = fresh(1, join=False, metrics_port=port)
    (failure,) = second.attempt(common.open_session)
    assert failure.kind[0] == ConfigError.__name__ and f"RINGTUNE_METRICS_PORT={port}: " in failure.message
    first.run(common.close_session)
    second.run(common.open_session)

"""Alerts of a running job: what holds, how often it is said, where it goes, and against which run steps are held."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ringtune import layout, runfolder
from ringtune.config import Config
from ringtune.meters.alerts import LOOKS_S, REPORT_S, Alerts, Conditions, Limits, earlier_run
from ringtune.meters.sample import Sample
from ringtune.meters.stalls import Stall, Waiting
from ringtune.meters.state import RankState
from ringtune.runfolder import RunRecord
from tests.core.test_metrics import state

MS = 10**6
NOW = Sample(**{field.name: 0 for field in fields(Sample) if field.name != "gpus"})
EVEN = {0: (10, 4), 1: (10, 4), 2: (10, 4)}
REPORT = Stall(1, [Waiting("'a' (x)", "a", 9, [1])])
MOMENT = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(0))
LATE = {0: (10, 4), 1: (10, 1), 2: (10, 4)}


def job(
    steps: int, per_step: dict[int, tuple[int, int]], stalls: int = 0, reported: Mapping[int, Stall] | None = None
) -> list[RankState]:
    """States of ranks after so many steps of these durations and blocked times in ms."""
    return [
        replace(
            state(rank),
            step_counts=[steps],
            step_ns=steps * wall * MS,
            counters={"wait_ns": steps * wait * MS},
            stalls=stalls,
            stall=(reported or {}).get(rank, Stall()),
        )
        for rank, (wall, wait) in per_step.items()
    ]


def kinds(conditions: Conditions, *looks: tuple[float, list[RankState]]) -> list[list[str]]:
    return [[alert.kind for alert in conditions.look(at_s, states)] for at_s, states in looks]


def test_a_rank_is_late_against_the_others_and_from_the_limit_on() -> None:
    for limit, wanted in ((0.5, ["late_rank"]), (0.51, []), (0.0, [])):
        conditions = Conditions(Limits(late=limit))
        assert kinds(conditions, (0, job(1, LATE)), (1, job(11, LATE))) == [[], wanted]
    conditions = Conditions(Limits(late=0.5))
    conditions.look(0, job(1, LATE))
    (alert,) = conditions.look(1, job(11, LATE))
    assert alert.rank == 1 and "rank 1 is late: it computes 9.0 ms a step, 50 % longer than the others" in alert.message


def test_few_steps_even_ranks_and_one_rank_are_no_alert() -> None:
    assert kinds(Conditions(Limits(late=0.1)), (0, job(1, LATE)), (1, job(10, LATE))) == [[], []]
    assert kinds(Conditions(Limits(late=0.1)), (0, job(1, EVEN)), (1, job(99, EVEN))) == [[], []]
    assert kinds(Conditions(Limits(late=0.1)), (0, job(1, {0: (9, 1)})), (1, job(99, {0: (9, 1)}))) == [[], []]
    assert kinds(Conditions(Limits(late=0.1, slower=0.1)), (0, []), (1, [])) == [[], []]


def test_the_start_of_the_job_does_not_count() -> None:
    slow = [replace(one, step_ns=10**12, step_counts=[1]) for one in job(1, LATE)]  # of which rank 1 computes most
    after = [replace(one, step_ns=10**12 + 200 * MS, step_counts=[21]) for one in job(20, EVEN)]
    assert kinds(Conditions(Limits(late=0.3)), (0, job(0, LATE)), (1, slow), (2, after)) == [[], [], []]


def test_what_is_long_over_does_not_hold() -> None:
    def gone_on(states: list[RankState]) -> list[RankState]:
        """The states after a hundred even steps more."""
        return [
            replace(
                one,
                step_ns=one.step_ns + 1000 * MS,
                step_counts=[sum(one.step_counts) + 100],
                counters={"wait_ns": one.counters["wait_ns"] + 400 * MS},
            )
            for one in states
        ]

    after = gone_on(job(300, LATE))
    looks = [(0, job(1, LATE)), (1, job(300, LATE)), (2, after), (2 + LOOKS_S, after), (3 + LOOKS_S, gone_on(after))]
    assert kinds(Conditions(Limits(late=0.3)), *looks) == [[], ["late_rank"], ["late_rank"], [], []]


def test_slower_than_an_earlier_run_by_its_slowest_rank() -> None:
    baseline = (8.0 * MS, "train-1")
    assert kinds(Conditions(Limits(slower=0.2), baseline), (0, job(1, EVEN)), (1, job(20, EVEN))) == [[], ["slower"]]
    assert kinds(Conditions(Limits(slower=0.3), baseline), (0, job(1, EVEN)), (1, job(20, EVEN))) == [[], []]
    assert kinds(Conditions(Limits(slower=0.2)), (0, job(1, EVEN)), (1, job(20, EVEN))) == [[], []]


def test_a_stall_holds_from_its_report_until_the_next_step() -> None:
    looks = [
        (0, job(5, EVEN)),
        (1, job(5, EVEN, 1)),
        (3, job(5, EVEN, 1, {0: REPORT})),
        (90, job(5, EVEN, 1, {0: REPORT})),
        (91, job(5, EVEN, 2, {0: REPORT})),
        (92, job(6, EVEN, 2, {0: REPORT})),
        (93, job(6, EVEN, 2, {0: REPORT})),
    ]
    assert kinds(Conditions(Limits()), *looks) == [[], [], ["stall"], ["stall"], ["stall"], [], []]


def test_a_stall_that_nobody_reports_is_one_without_names_after_some_seconds() -> None:
    conditions = Conditions(Limits())
    looks = [(0, job(5, EVEN)), (1, job(5, EVEN, 1)), (1 + REPORT_S, job(5, EVEN, 1))]
    *_, (alert,) = [conditions.look(at_s, states) for at_s, states in looks]
    assert alert.message == "operations of ranks 0, 1, 2 wait for ranks that have not submitted them"
    assert (alert.rank, alert.awaited) == (-1, [])


def test_ranks_that_wait_for_one_another_are_an_alert_though_no_rank_counts_a_stall() -> None:
    assert kinds(Conditions(Limits()), (0, job(5, EVEN)), (1, job(5, EVEN, 0, {2: REPORT}))) == [[], ["stall"]]


@pytest.mark.parametrize(
    ("waiting", "words", "rank", "awaited"),
    [
        ([(9, [1])], f"'0' (x) waits since {MOMENT} for rank 1, which has not submitted it", 1, {1: "'0' (x)"}),
        (
            [(9, [1, 2]), (9, [1, 2])],
            f"'0' (x), '1' (x) wait since {MOMENT} for ranks 1, 2, which have not submitted them",
            -1,
            {1: "'0' (x)", 2: "'0' (x)"},
        ),
        (
            [(9, [0]), (8, [1]), (7, [0])],
            f"'0' (x), '2' (x) wait since {MOMENT} for rank 0, which has not submitted them; "
            f"'1' (x) waits since {MOMENT} for rank 1, which has not submitted it",
            -1,
            {0: "'2' (x)", 1: "'1' (x)"},
        ),
        ([(9, [])], f"'0' (x) waits since {MOMENT} for bytes of ranks that have all come", -1, {}),
        (
            5 * [(9, list(range(20)))],
            f"'0' (x), '1' (x), '2' (x) and 2 more wait since {MOMENT} for ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more, "
            "which have not submitted them",
            -1,
            dict.fromkeys(range(20), "'0' (x)"),
        ),
    ],
)
def test_a_stall_names_the_missing_ranks_the_operations_and_since_when(
    waiting: list[tuple[int, list[int]]], words: str, rank: int, awaited: dict[int, str]
) -> None:
    report = Stall(1, [Waiting(f"'{at}' (x)", str(at), since, ranks) for at, (since, ranks) in enumerate(waiting)])
    conditions = Conditions(Limits())
    conditions.look(0, job(5, EVEN))
    (alert,) = conditions.look(1, job(5, EVEN, 1, {0: report}))
    assert (alert.message, alert.rank) == (words, rank)
    assert {one: operation for one, operation, _ in alert.awaited} == awaited


def test_the_next_stall_is_told_by_its_own_report() -> None:
    conditions, later = Conditions(Limits()), Stall(2, [Waiting("'b' (x)", "b", 9, [2])])
    looks = [(0, job(5, EVEN)), (1, job(5, EVEN, 1, {0: REPORT})), (2, job(6, EVEN, 1, {0: REPORT}))]
    looks += [(3, job(6, EVEN, 2, {0: REPORT})), (4, job(6, EVEN, 2, {0: later}))]
    *_, silent, (alert,) = [conditions.look(at_s, states) for at_s, states in looks]
    assert silent == [] and "'b' (x)" in alert.message and alert.rank == 2


def test_other_ranks_after_a_change_begin_anew() -> None:
    fewer = {rank: LATE[rank] for rank in (0, 1)}
    assert kinds(Conditions(Limits(late=0.1)), (0, job(1, LATE)), (1, job(50, fewer)), (2, job(70, fewer))) == [
        [], [], ["late_rank"],
    ]  # fmt: skip


@contextmanager
def receiver(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook on a free port, and what it got."""
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook", got
        finally:
            server.shutdown()
            thread.join()


def stalled(url: str, said: list[str]) -> Alerts:
    """Alerts after a stall began, was seen twice, ended, and began again."""
    looks = [(5, 0), (5, 1), (5, 1), (5, 1), (6, 1), (6, 2), (6, 2)]
    reports = [Stall(), REPORT, replace(REPORT, seen_ns=2)]
    states = iter([job(steps, EVEN, stalls, {0: reports[stalls]}) for steps, stalls in looks])
    alerts = Alerts(Conditions(Limits()), lambda: next(states), url, "train-2", said.append)
    for _ in looks:
        alerts.append(NOW)
    alerts.close()
    return alerts


def test_an_alert_is_raised_once_until_it_is_over_and_reaches_the_webhook(capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    with receiver() as (url, got):
        alerts = stalled(url, said)
    assert alerts.counts == {"late_rank": (0, 0), "slower": (0, 0), "stall": (2, 1)}
    assert alerts.awaited == [(1, "'a' (x)", 9)]
    message = f"'a' (x) waits since {MOMENT} for rank 1, which has not submitted it"
    waiting = [{"operation": "'a' (x)", "tensor": "a", "since_unix_ns": 9, "missing": [1]}]
    assert capfd.readouterr().err == 2 * f"ringtune alert: {message}\n"
    assert [{**one, "at_unix_ns": 0} for one in got] == 2 * [
        {"run": "train-2", "kind": "stall", "rank": 1, "message": message, "waiting": waiting, "at_unix_ns": 0}
    ]
    assert said == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/none", "http://[", "http://127.0.0.1:99999/"])
def test_a_webhook_that_cannot_be_reached_is_one_warning(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    assert stalled(url, said).raised["stall"] == 2
    assert len(said) == 1 and said[0].startswith("alerts no longer go to RINGTUNE_ALERT_WEBHOOK: ")
    assert capfd.readouterr().err.count("ringtune alert: ") == 2


def test_a_webhook_that_answers_with_an_error_is_one_warning() -> None:
    said: list[str] = []
    with receiver(500) as (url, got):
        stalled(url, said)
    assert len(got) >= 1 and len(said) == 1 and "500" in said[0]


def test_the_webhook_does_not_stand_in_the_run_folder() -> None:
    config = Config.from_environ({"RINGTUNE_ALERT_WEBHOOK": "https://hooks.example.org/secret"})
    assert config.alert_webhook.endswith("secret") and config.as_dict() == {"RINGTUNE_ALERT_WEBHOOK": "set"}


def recorded(root: Path, walls: list[int], folder: str, **facts: Any) -> Path:
    run = root / folder
    runfolder.create(run, RunRecord(**{"name": "train", "size": 2, "status": "finished", **facts}))
    log = layout.step_log(run, 0)
    log.parent.mkdir()
    rows = [{"step": n, "begin_ns": 0, "end_ns": wall} for n, wall in enumerate(walls)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_the_newest_finished_run_of_the_same_name_and_size_is_the_measure(tmp_path: Path) -> None:
    own = recorded(tmp_path, [], folder="now", status="running", created_unix_ns=9)
    assert earlier_run(own) is None
    recorded(tmp_path, [900] + 20 * [7], folder="first", created_unix_ns=1)
    recorded(tmp_path, [900] + 20 * [8], folder="second", created_unix_ns=2)
    recorded(tmp_path, 20 * [1], folder="failed", created_unix_ns=3, status="failed")
    recorded(tmp_path, 20 * [1], folder="other", created_unix_ns=4, name="other")
    recorded(tmp_path, 20 * [1], folder="more", created_unix_ns=5, size=4)
    recorded(tmp_path, 5 * [1], folder="short", created_unix_ns=6)
    layout.step_log(recorded(tmp_path, [], folder="torn", created_unix_ns=7), 0).write_text("{}\n" + 20 * "nothing\n")
    assert earlier_run(own) == (8, "second")

"""What is said while a session runs: how far it is, how long it may take, what the comparison with the default does."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from ringtune.knobs import DEFAULTS
from ringtune.tuner.confirm import LOOKS
from ringtune.tuner.messages import percent, sentence
from ringtune.tuner.options import OnlineOptions
from ringtune.tuner.progress import LiveView, Pace, PlainView
from ringtune.tuner.records import FailedRecord, ProgressRecord, Record, StartRecord, TrialRecord, parse
from ringtune.tuner.restarts.session import LOOKS as PAIRS
from ringtune.tuner.restarts.session import RestartOptions, RestartSession
from ringtune.tuner.scoring import Interval
from tests.tuner.jobs import FAST, SLOW, FakeAdvisor, play, session
from tests.tuner.test_online import ENOUGH
from tests.tuner.test_restarts import FOUR, SOCKETS, FakeMemory, FakeRunner

START = StartRecord(DEFAULTS, "ab12", 2, ("fusion_bytes", "RINGTUNE_OVERLAP"), 16, 10)
GAIN = Interval(0.03, -0.01, 0.07)


def trial(number: int, source: str = "sampler") -> TrialRecord:
    return TrialRecord(number, source, "complete", FAST, number, 10, Interval(8e6, 7e6, 9e6), GAIN)  # type: ignore[arg-type]


def comparing(blocks: int, look: int) -> ProgressRecord:
    return ProgressRecord("confirm", blocks, look, 28, 2, FAST, GAIN)


def test_the_time_left_follows_from_what_was_done() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    said: list[list[str]] = []
    came: list[tuple[float, Record]] = [
        (0, START),
        (5, trial(0, "default")),
        (15, trial(1)),
        (20, trial(2, "default")),  # the default again is no trial of its own
        (25, FailedRecord(3, {}, "no memory")),
        (30, comparing(0, 4)),
        (34, comparing(4, 6)),
    ]
    for at, record in came:
        now = at
        pace.add(record)
        said.append(pace.words(record))
    assert said == [
        [],
        ["1 of at most 16 trials"],
        ["2 of at most 16 trials", "at most 3 min left to search"],
        [],
        ["3 of at most 16 trials", "at most 3 min left to search"],
        [],
        ["at most 24 s left to confirm"],
    ]


def test_a_log_has_the_looks_of_a_comparison_and_a_terminal_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    for record in (
        START,
        trial(0, "default"),
        comparing(0, 4),
        *(comparing(n, 4 if n < 4 else 6) for n in range(1, 6)),
    ):
        view.show(record)
    searching, default, begun, look = capsys.readouterr().out.splitlines()
    assert "searching fusion, RINGTUNE_OVERLAP on 2 ranks, at most 16 trials" in searching
    assert default.endswith("1 of at most 16 trials")
    assert "confirming 2 settings against the default in blocks right after each other, at most 28" in begun
    expected = (
        "confirming: block 4 of at most 28, the next look after 6; best of 2: fusion 2 MiB, cycle 0.3 ms: gain 3.0 %"
    )
    assert expected in look and "left to confirm" in look

    console = Console(file=StringIO(), force_terminal=True, width=160, color_system=None)
    with LiveView(console) as live:
        for record in (START, trial(0, "default"), comparing(5, 6)):
            live.show(record)
        plain = Console(file=StringIO(), width=160)
        plain.print(live.picture())
    assert "confirming: block 5 of at most 28" in plain.file.getvalue()  # type: ignore[attr-defined]


def test_no_gain_has_no_sign() -> None:
    assert [percent(share) for share in (-0.0001, 0.0001, -0.001)] == ["0.0 %", "0.0 %", "-0.1 %"]


def test_a_session_says_how_far_its_comparison_is() -> None:
    tuner, run = session(
        FakeAdvisor([FAST, SLOW], stored=ENOUGH),
        {FAST: 8e6, SLOW: 30e6},
        OnlineOptions(max_trials=3, steps_per_trial=6),
    )
    play(tuner, run)
    found = [record for record in tuner.take_records() if isinstance(record, ProgressRecord)]
    assert [one.blocks for one in found] == list(range(LOOKS[0]))
    assert {(one.phase, one.knobs, one.rivals, one.next_look) for one in found} == {("confirm", FAST, 1, LOOKS[0])}
    assert found[-1].gain.median == pytest.approx(0.2)
    assert [parse(one.as_dict()) for one in found] == found


def test_a_session_with_restarts_says_it_of_its_pairs() -> None:
    records: list[Record] = []
    runner = FakeRunner({FOUR: 8e6})
    RestartSession(runner, lambda first: ([SOCKETS], FakeMemory(), ()), RestartOptions(), records.append).run()
    found = [record for record in records if isinstance(record, ProgressRecord)]
    assert [one.blocks for one in found] == list(range(PAIRS[0]))
    assert sentence(found[-1]).startswith(
        f"confirming: pair of runs 3 of at most {PAIRS[-1]}, the next look after {PAIRS[0]}; "
        "RINGTUNE_SOCKETS_PER_PEER=4: gain"
    )
    assert parse(found[-1].as_dict()) == found[-1]

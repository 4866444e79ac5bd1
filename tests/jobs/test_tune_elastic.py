"""The online tuner in an elastic job: what one generation has measured, the next one knows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

from ringtune import layout
from tests.jobs.test_tune_live import ELASTIC, journal

# Two ranks. Rank 1 is killed after the first trials, rank 0 (whose process tunes) after the first ones of the next
# generation; the job ends with the result of the third.
LOSING = (
    ELASTIC
    + """

def progress():
    lines = [json.loads(line)["event"] for line in open(journal)] if os.path.exists(journal) else []
    starts = lines.count("start")
    since = lines[max((at for at, event in enumerate(lines) if event == "start"), default=0):]
    return hvd.broadcast_object((starts, since.count("trial"), since.count("result")), root_rank=0)


@hvd.elastic.run
def train(state):
    while state.batch < 100_000:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        state.batch += 1
        if state.batch % 25 == 0:
            starts, trials, results = progress()
            if starts == 3 and results:
                return
            state.commit()
            marker = f"{sys.argv[1]}/killed-{starts}"
            if trials >= 3 and not results and (starts, hvd.rank()) in ((1, 1), (2, 0)) and not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)


train(hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0))
print("ended with", hvd.size(), flush=True)
hvd.shutdown()
"""
)


@pytest.mark.long
def test_a_job_whose_ranks_are_replaced_while_it_is_tuned_has_one_study(tmp_path: Path) -> None:
    run, script = tmp_path / "run", tmp_path / "train.py"
    script.write_text(LOSING)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("RINGTUNE_", "HOROVOD_"))}
    environ |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "RINGTUNE_AUTOTUNE_STEPS_PER_TRIAL": "6"}
    command = [str(Path(sys.executable).with_name("ringtune")), "run", "--autotune", "--autotune-max-trials", "12"]
    # Four slots, so that the host may lose two ranks soon after each other.
    command += ["-np", "2", "--min-np", "2", "--max-np", "2", "-H", "localhost:4", "--run-dir", str(run)]
    command += [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ended with 2") == 2 and "generation 3: 2 ranks" in done.stderr

    events = journal(run)
    starts = [at for at, event in enumerate(events) if event["event"] == "start"]
    assert len(starts) == 3 and {events[at]["world"] for at in starts} == {2}
    (fingerprint,) = {events[at]["fingerprint"] for at in starts}
    # Trials of switches and of the confirmation stand in the journal alone.
    measured = [
        sum(event["event"] == "trial" and event["source"] not in ("switch", "confirm") for event in events[begin:end])
        for begin, end in zip(starts, [*starts[1:], len(events)], strict=True)
    ]
    first, second, third = (events[at]["stored_trials"] for at in starts)
    # Rank 0 closed the first session, and was killed in the second: what was not stored by then is lost.
    assert (first, second) == (0, measured[0]) and second <= third <= second + measured[1]
    for file in (tmp_path / "cache" / "ringtune" / "studies.db", layout.tuning_study(run)):
        (study,) = optuna.get_all_study_summaries(f"sqlite:///{file}")
        assert study.study_name == f"ringtune-{fingerprint}"
        assert measured[0] + measured[2] <= study.n_trials <= third + measured[2]

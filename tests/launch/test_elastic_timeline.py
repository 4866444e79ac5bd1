"""What an elastic job leaves: one timeline and one set of logs for all of its generations."""

from __future__ import annotations

import pytest

from ringtune import layout
from ringtune.dashboard.report import write_report
from ringtune.timeline.analysis.batches import MISSING, batch_table
from ringtune.timeline.analysis.stragglers import stragglers
from ringtune.timeline.analysis.summary import summarize
from ringtune.timeline.reading.reader import read
from ringtune.timeline.runs.run import Run
from ringtune.timeline.vocabulary import FOREIGN_BATCHES, GENERATION, Stage
from tests.launch.conftest import Jobs
from tests.launch.test_elastic import train

KILLED_AT = 12
LAST = 40


@pytest.mark.slow
def test_a_job_that_loses_and_gains_a_rank_has_one_timeline(jobs: Jobs) -> None:
    event = f"""
    if state.batch == {KILLED_AT} and hvd.rank() == 0 and once("killed"):
        part = folder / "run" / "timeline" / "rank-00000.json"
        while b'"step":{KILLED_AT - 2}' not in part.read_bytes():  # what was not written would be lost
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    folder = jobs.folder / "run"
    flags = ("-np", "2", "--min-np", "1", "--timeline", str(jobs.folder / "trace.json"))
    code, _, ends, said = train(jobs, event, LAST, *flags, run=f"--run-dir={folder}")
    assert code == 0 and len(ends) == 2, said
    assert "timeline of 3 ranks" in said, said

    trace, run = read(jobs.folder / "trace.json"), Run(folder)
    assert trace.ranks == (0, 1, 2) and not any("no part" in line for line in said.splitlines()), said
    generations = {tuple(one.args["ranks"]): one.args for one in trace.instants_named(GENERATION)}
    # Worker 0, the first rank 0, is lost; 1 is rank 0 from then on, and 2 is new.
    assert list(generations) == [(0, 1), (1, 2)]
    first_step = generations[(1, 2)]["first_step"]

    steps = trace.spans.of_stage(Stage.STEP)
    of_rank = {rank: steps.of_rank(rank).step.tolist() for rank in (0, 1, 2)}
    known = len(of_rank[0])
    assert of_rank[0] == list(range(known)) == of_rank[1][:known] and KILLED_AT - 2 <= known <= KILLED_AT
    # From the commit at batch 10 on, under numbers that no step had before.
    again = list(range(first_step, first_step + LAST - 10))
    assert first_step >= KILLED_AT and of_rank[1][-len(again) :] == of_rank[2] == again

    table = batch_table(trace)
    first_batch = generations[(1, 2)]["first_batch"]
    number = table.ids % FOREIGN_BATCHES.stop  # batches of step schedules are numbered apart from the others
    before, after = table.whole & (number <= first_batch), table.whole & (number > first_batch)
    there = table.begin != MISSING
    assert there[before].tolist() == [[True, True, False]] * before.sum() and before.sum() >= KILLED_AT - 2
    assert there[after].tolist() == [[False, True, True]] * after.sum() and after.sum() >= len(again)

    assert [rank.rank for rank in summarize(trace).ranks] == [0, 1, 2]
    found = stragglers(trace)
    assert found.batches >= before.sum() + after.sum()

    write_report(folder, folder / "report.html")
    page = (folder / "report.html").read_text()
    assert all(f"rank {rank}" in page for rank in (0, 1, 2)) and "could not be read" not in page

    # The pages of the run read these: steps and samples of a process go on in its own file.
    assert {rank: table.step.tolist() for rank, table in run.steps.items()} == of_rank
    assert [one["ranks"] for one in run.document["generations"]] == [[0, 1], [1, 2]]
    assert run.size == 2 and len(run.hosts) == 3 and sorted(run.machines) == [0, 1, 2]
    assert {path.name.split(".")[0] for path in layout.timeline_parts(folder).iterdir()} == {
        layout.rank_stem(rank) for rank in (0, 1, 2)
    }

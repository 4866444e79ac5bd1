"""How jobs end: signals, stuck ranks, a killed launcher. Nothing may survive."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.launch.conftest import HANG_S, Jobs, alive, wait_for

# Each rank writes its process id, and that of a child of its own, into a file when it is ready.
REPORT = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
ready = f"ready-{rank}"
open(ready + ".part", "w").write(f"{os.getpid()} {child.pid}")
os.rename(ready + ".part", ready)
"""


def start(jobs: Jobs, num_proc: int, text: str) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Start a job and return its launcher and the process ids of ranks and their children, all running."""
    script = jobs.script(REPORT + text)
    process = jobs.start("-np", str(num_proc), "--no-run-dir", sys.executable, script)
    files = [jobs.folder / f"ready-{rank}" for rank in range(num_proc)]
    wait_for(lambda: all(file.exists() for file in files))
    return process, [int(word) for file in files for word in file.read_text().split()]


def none_alive(pids: list[int]) -> bool:
    return not any(alive(pid) for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_all(jobs: Jobs, number: signal.Signals) -> None:
    process, pids = start(jobs, 2, "time.sleep(300)")
    process.send_signal(number)
    _, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == 128 + number
    assert f"{number.name} passed on to 2 ranks" in stderr.decode()
    wait_for(lambda: none_alive(pids))


def test_ranks_may_finish_after_a_signal(jobs: Jobs) -> None:
    process, _ = start(
        jobs,
        2,
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(0)))\n"
        "open(f'armed-{rank}', 'w')\n"
        "time.sleep(300)",
    )
    wait_for(lambda: all((jobs.folder / f"armed-{rank}").exists() for rank in range(2)))
    process.send_signal(signal.SIGTERM)
    stdout, _ = process.communicate(timeout=HANG_S)
    assert sorted(stdout.decode().splitlines()) == ["[0] saved", "[1] saved"]
    assert process.returncode == 0


def test_user_signals_are_passed_on(jobs: Jobs) -> None:
    process, _ = start(
        jobs, 2, "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\nopen(f'armed-{rank}', 'w')\ntime.sleep(300)"
    )
    wait_for(lambda: all((jobs.folder / f"armed-{rank}").exists() for rank in range(2)))
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 0


def test_stop_and_continue(jobs: Jobs) -> None:
    process, pids = start(jobs, 2, "time.sleep(300)")
    watched = [psutil.Process(pid) for pid in [process.pid, *pids]]
    process.send_signal(signal.SIGTSTP)
    wait_for(lambda: all(member.status() == psutil.STATUS_STOPPED for member in watched))
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: all(member.status() == psutil.STATUS_SLEEPING for member in watched))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 128 + signal.SIGTERM


def test_second_interrupt_kills(jobs: Jobs) -> None:
    process, pids = start(
        jobs, 2, "signal.signal(signal.SIGINT, signal.SIG_IGN)\nopen(f'deaf-{rank}', 'w')\ntime.sleep(300)"
    )
    wait_for(lambda: all((jobs.folder / f"deaf-{rank}").exists() for rank in range(2)))
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    # Two signals at once would be one. On one core a warning stands before the line.
    assert any(b"SIGINT passed on to 2 ranks" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 128 + signal.SIGINT
    wait_for(lambda: none_alive(pids))


@pytest.mark.slow
@pytest.mark.parametrize(
    "deafness", ["signal.signal(signal.SIGTERM, signal.SIG_IGN)", "os.kill(os.getpid(), signal.SIGSTOP)"]
)
def test_stuck_rank_is_killed_when_another_fails(jobs: Jobs, deafness: str) -> None:
    fail = "if rank == 1:\n while not os.path.exists('deaf'): time.sleep(0.01)\n sys.exit(7)"
    process, pids = start(jobs, 2, f"{fail}\nopen('deaf', 'x')\n{deafness}\ntime.sleep(300)")
    begin = time.monotonic()
    process.communicate(timeout=HANG_S)
    assert process.returncode == 7
    # 3 s for the survivors' own words, 5 s to obey SIGTERM, and room for a starved machine; it would sleep 300 s.
    assert time.monotonic() - begin < 120
    wait_for(lambda: none_alive(pids))


STOP = "os.kill(os.getpid(), signal.SIGSTOP)"


def test_ctrl_c_ends_a_job_with_a_stopped_rank_at_once(jobs: Jobs) -> None:
    process, pids = start(jobs, 2, f"if rank == 1: {STOP}\ntime.sleep(300)")
    wait_for(lambda: any(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in pids))
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 128 + signal.SIGINT
    assert time.monotonic() - begin < 25, "30 s are what a rank may take that handles the signal"
    wait_for(lambda: none_alive(pids))


def test_a_rank_that_stands_stopped_when_the_others_have_ended_is_ended(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from ringtune.launch import LaunchOptions, launch, supervisor

    monkeypatch.setattr(supervisor, "WAITING_S", 1.0)
    stopped = jobs.script(f"if rank == 1: {STOP}")
    assert launch(LaunchOptions([sys.executable, stopped], num_proc=2)) == 128 + signal.SIGKILL
    said = capfd.readouterr().err
    assert "still waiting for rank 1 on localhost, since others have ended with code 0" in said
    assert "ending the rank, which stands stopped for 1 s" in said


def test_a_rank_that_works_on_when_the_others_have_ended_is_waited_for(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from ringtune.launch import LaunchOptions, launch, supervisor

    monkeypatch.setattr(supervisor, "WAITING_S", 0.3)
    slow = jobs.script("if rank == 1: time.sleep(1.5)")
    assert launch(LaunchOptions([sys.executable, slow], num_proc=2)) == 0
    assert 1 <= capfd.readouterr().err.count("still waiting for rank 1 on localhost") <= 5


JOINS = """
import os, signal
import ringtune.numpy as hvd
hvd.init()
first = hvd.rank() == 0
hvd.shutdown()
"""


def launch_elastic(program: str, waiting_s: float, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run two workers under a launcher that soon says for whom it waits; return its code."""
    from ringtune.launch import LaunchOptions, launch, supervisor
    from ringtune.launch.options import ElasticOptions

    monkeypatch.setattr(supervisor, "WAITING_S", waiting_s)
    command = [sys.executable, "-c", program]
    return launch(LaunchOptions(command, num_proc=2, elastic=ElasticOptions(min_np=1)))


def test_a_worker_that_stands_stopped_when_another_has_finished_is_ended(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stopped = f"{JOINS}\nif not first: {STOP}"
    assert launch_elastic(stopped, 1.0, monkeypatch) == 128 + signal.SIGKILL
    said = capfd.readouterr().err
    assert re.search(r"still waiting for worker \d on localhost, since others have ended with code 0", said), said
    assert "ending the rank, which stands stopped for 1 s" in said


def test_a_worker_for_which_others_wait_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    late = f"import os, time\nif os.environ['RINGTUNE_WORKER'] == '1': time.sleep(3)\n{JOINS}"
    assert launch_elastic(late, 0.3, monkeypatch) == 0
    assert "still waiting for worker 1 on localhost, since others are ready to go on" in capfd.readouterr().err


def test_what_a_rank_leaves_behind_cannot_keep_the_launcher_by_its_output(jobs: Jobs) -> None:
    """A process in a session of its own outlives the rank and its agent, and has the rank's standard output."""
    process = jobs.start(
        *("-np", "1", "--no-run-dir", "--no-prefix", sys.executable),
        jobs.script("import subprocess\nsubprocess.Popen(['yes'], start_new_session=True)\ntime.sleep(0.5)"),
    )
    assert process.stdout is not None
    while process.poll() is None and process.stdout.read(1 << 20):
        pass
    assert process.wait(HANG_S) == 0


def test_a_rank_agent_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the launcher ends by an error, the agent may be an ssh to a host that is gone."""
    from ringtune.launch import rank
    from ringtune.launch.hosts import Slot

    monkeypatch.setattr(rank, "ABANDON_S", 0.1)
    order = rank.Order(["true"], {}, Path.cwd(), 1, 1.0)
    stuck = rank.RankProcess(Slot(0, "gone", 0, 1), ["sleep", "300"], order)
    stuck.kill()
    stuck.close()
    assert not alive(stuck.pid)


def test_ranks_in_init_are_told_of_one_that_was_killed(jobs: Jobs) -> None:
    result = jobs.run_script(
        3,
        """
        from ringtune import errors, session
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            session.init()
        except errors.RingtuneError as error:
            print("said:", error)
        """,
    )
    assert result.returncode == 128 + signal.SIGKILL
    told = [line for line in result.stdout.splitlines() if "said:" in line]
    assert len(told) == 2, result.stdout + result.stderr
    assert all("rank 1 on localhost was killed by SIGKILL" in line for line in told), told


def test_killed_launcher_leaves_nothing(jobs: Jobs) -> None:
    process, pids = start(jobs, 2, "time.sleep(300)")
    rank_agents = [child.pid for child in psutil.Process(process.pid).children()]
    process.kill()
    process.wait()
    wait_for(lambda: none_alive(pids + rank_agents))


@pytest.mark.slow
def test_killed_launcher_leaves_no_deaf_rank_and_no_daemon(jobs: Jobs) -> None:
    process, pids = start(
        jobs,
        1,
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
        open("daemon.part", "w").write(str(daemon.pid)); os.rename("daemon.part", "daemon")
        time.sleep(300)
        """.replace("\n        ", "\n"),
    )
    file = jobs.folder / "daemon"
    wait_for(file.exists)
    process.kill()
    process.wait()
    wait_for(lambda: none_alive([*pids, int(file.read_text())]))


def test_killed_rank_agent_takes_its_rank_along(jobs: Jobs) -> None:
    process, pids = start(jobs, 2, "time.sleep(300)")
    psutil.Process(pids[0]).parent().kill()
    process.communicate(timeout=HANG_S)
    assert process.returncode == 128 + signal.SIGKILL
    wait_for(lambda: not alive(pids[0]) and not alive(pids[2]))
    os.kill(pids[1], signal.SIGKILL)  # what the rank had started has nobody any more who would end it


def test_children_of_a_finished_rank_are_ended(jobs: Jobs) -> None:
    process, pids = start(jobs, 2, "")
    process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    wait_for(lambda: none_alive(pids))


def test_reader_that_leaves_ends_the_job(jobs: Jobs) -> None:
    process, pids = start(jobs, 1, "while True: print('x' * 1000)")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=HANG_S) == 141
    wait_for(lambda: none_alive(pids))


def test_idle_launcher_sleeps(jobs: Jobs) -> None:
    process, _ = start(jobs, 2, "time.sleep(300)")
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]

    def used() -> float:
        return sum(sum(member.cpu_times()[:2]) for member in family)

    # A starved machine is still busy with the start: some second must come in which nothing is left to do.
    shares = []
    while not shares or (min(shares) >= 0.02 and len(shares) < 30):
        before = used()
        time.sleep(1)
        shares.append(used() - before)
    assert min(shares) < 0.02, shares


def test_environment_that_is_no_text(jobs: Jobs) -> None:
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("driver.py")), "run", "-np", "1", "--no-run-dir", "--no-prefix",
         sys.executable, jobs.script("os.write(1, os.environb[b'ODD'])")],
        env={**os.environb, b"ODD": b"\xff\n="}, cwd=jobs.folder, capture_output=True, timeout=HANG_S, check=True,
    )  # fmt: skip
    assert result.stdout == b"\xff\n=\n"


def test_a_rank_that_ends_while_the_others_meet_is_told_at_once(jobs: Jobs) -> None:
    """It has published its address before: nothing else would tell the others before their start timeout."""
    script = """
    import threading
    import ringtune.numpy as hvd
    if rank == 2:
        while not os.path.exists("told"): time.sleep(0.05)
        sys.exit(0)
    if rank == 1:
        def end():
            time.sleep(2)
            os._exit(0)
        threading.Thread(target=end, daemon=True).start()
    try:
        hvd.init()
    except hvd.HorovodInternalError as error:
        open("told", "w").write(str(error))
    """
    process = jobs.start("-np", "3", "--no-run-dir", "--start-timeout", "140", sys.executable, jobs.script(script))
    wait_for((jobs.folder / "told").exists, 60)
    process.communicate(timeout=HANG_S)
    assert "rank 1 on localhost ended while the ranks of the job met" in (jobs.folder / "told").read_text()

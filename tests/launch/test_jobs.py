"""Whole jobs: exit codes, output, settings, run folder."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from tests.launch.conftest import HANG_S, Jobs


def test_every_rank_knows_its_place(jobs: Jobs) -> None:
    result = jobs.run_script(
        3,
        """
        names = "RANK SIZE LOCAL_RANK LOCAL_SIZE HOSTNAME LAUNCHER".split()
        print(*(os.environ["RINGTUNE_" + name] for name in names), os.environ["PYTHONUNBUFFERED"])
        """,
    )
    assert sorted(result.stdout.splitlines()) == [f"[{rank}] {rank} 3 {rank} 3 localhost 1 1" for rank in range(3)]
    assert result.returncode == 0


def test_ranks_share_job_and_store(jobs: Jobs) -> None:
    text = 'print(os.environ["RINGTUNE_JOB"], os.environ["RINGTUNE_STORE"])'
    lines = jobs.run_script(2, text, "--no-prefix").stdout.splitlines()
    assert len(lines) == 2 and len(set(lines)) == 1
    job, store = lines[0].split()
    assert len(job) == 16
    assert store.startswith("127.0.0.1:")
    assert jobs.run_script(2, text, "--no-prefix").stdout.split()[0] != job


@pytest.mark.parametrize("backend", ["gloo", "ringtune"])
def test_a_script_for_torchrun_starts_without_a_change(backend: str, jobs: Jobs) -> None:
    result = jobs.run_script(
        2,
        f"""
        import torch
        import torch.distributed as dist

        dist.init_process_group("{backend}")
        assert dist.get_node_local_rank() == dist.get_rank() == int(os.environ["LOCAL_RANK"])
        total = torch.ones(2) + dist.get_rank()
        dist.all_reduce(total)
        print(total.tolist())
        dist.destroy_process_group()
        """,
    )
    assert sorted(result.stdout.splitlines()) == ["[0] [3.0, 3.0]", "[1] [3.0, 3.0]"], result.stderr


def test_places_of_another_launcher_are_taken_away(jobs: Jobs) -> None:
    script = jobs.script('print({name: os.environ.get(name) for name in ("RANK", "OMPI_COMM_WORLD_RANK", "KEPT")})')
    foreign = {"RANK": "7", "OMPI_COMM_WORLD_RANK": "7", "HOROVOD_RANK": "7", "KEPT": "7"}
    result = jobs.run("-np", "1", "--no-run-dir", sys.executable, script, environ=foreign)
    assert result.stdout == "[0] {'RANK': '0', 'OMPI_COMM_WORLD_RANK': None, 'KEPT': '7'}\n"


@pytest.mark.parametrize("code", [1, 3, 127, 200])
def test_exit_code_of_the_failing_rank(jobs: Jobs, code: int) -> None:
    result = jobs.run_script(2, f"sys.exit({code} if rank == 1 else 0)")
    assert result.returncode == code
    assert "rank 1 on localhost" in result.stderr


def test_first_failure_counts(jobs: Jobs) -> None:
    # Rank 0 fails only once rank 1 is gone for sure: it is told by the launcher's SIGTERM.
    result = jobs.run_script(
        2,
        """
        if rank == 1:
            sys.exit(5)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
        time.sleep(280)
        """,
    )
    assert result.returncode == 5
    assert "rank 1 on localhost exited with code 5" in result.stderr
    assert "ending the others" in result.stderr


def test_survivors_may_say_what_they_lost(jobs: Jobs) -> None:
    result = jobs.run_script(
        2,
        """
        if rank == 1:
            while not os.path.exists("ready"):
                time.sleep(0.01)
            open("killed.part", "w").write(str(time.monotonic()))
            os.rename("killed.part", "killed")
            os.kill(os.getpid(), signal.SIGKILL)

        def say(*_):  # a starved rank may be told to end before it spoke, but not before it had its three seconds
            early = time.monotonic() - float(open("killed").read()) < 2.9
            sys.exit("told too early" if early else "rank 0 lost its peer")

        signal.signal(signal.SIGTERM, say)
        open("ready", "x")
        while not os.path.exists("killed"):
            time.sleep(0.01)
        time.sleep(1)
        sys.exit("rank 0 lost its peer")
        """,
    )
    assert result.returncode == 128 + 9
    assert "[0] rank 0 lost its peer" in result.stderr
    assert "rank 1 on localhost was killed by SIGKILL (out of memory?)" in result.stderr


def test_options_after_the_command_belong_to_it(jobs: Jobs) -> None:
    script = jobs.script("print(sys.argv[1:])")
    result = jobs.run("-np", "1", "--no-run-dir", sys.executable, script, "-np", "7", "--verbose", "--", "-H")
    assert result.stdout == "[0] ['-np', '7', '--verbose', '--', '-H']\n"


def test_flags_become_variables(jobs: Jobs) -> None:
    script = jobs.script("print(*(f'{k}={v}' for k, v in sorted(os.environ.items()) if k.startswith('RINGTUNE_')))")
    flags = (
        "--fusion-threshold-mb 64 --cycle-time-ms 2.5 --cache-capacity 0 --transport tcp --autotune --no-stall-check"
    )
    result = jobs.run(
        "-np", "1", "--no-run-dir", *flags.split(), "--timeline", "trace.json", "--timeline-mark-cycles",
        "--start-timeout", "30", sys.executable, script,
    )  # fmt: skip
    found = dict(word.split("=", 1) for word in result.stdout.split()[1:])
    expected = {
        "RINGTUNE_FUSION_THRESHOLD": str(64 << 20),
        "RINGTUNE_CYCLE_TIME": "2.5",
        "RINGTUNE_CACHE_CAPACITY": "0",
        "RINGTUNE_TRANSPORT": "tcp",
        "RINGTUNE_AUTOTUNE": "1",
        "RINGTUNE_STALL_CHECK_DISABLE": "1",
        "RINGTUNE_TIMELINE": str(jobs.folder / "trace.json"),
        "RINGTUNE_TIMELINE_MARK_CYCLES": "1",
        "RINGTUNE_START_TIMEOUT": "30.0",
    }
    assert {name: found.get(name) for name in expected} == expected
    assert "RINGTUNE_LOG_LEVEL" not in found


def test_flag_wins_over_the_users_variable_which_else_stays(jobs: Jobs) -> None:
    script = jobs.script("print(os.environ['RINGTUNE_CYCLE_TIME'], os.environ['HOROVOD_CACHE_CAPACITY'])")
    environ = {"RINGTUNE_CYCLE_TIME": "9", "HOROVOD_CACHE_CAPACITY": "12"}
    result = jobs.run("-np", "1", "--no-run-dir", "--cycle-time-ms", "3", sys.executable, script, environ=environ)
    assert result.stdout == "[0] 3.0 12\n"


def test_threads_are_shared(jobs: Jobs) -> None:
    cores = len(os.sched_getaffinity(0))
    script = jobs.script("print(os.environ['OMP_NUM_THREADS'])")
    command = ["-np", "2", "--no-run-dir", "--no-prefix", sys.executable, script]
    assert jobs.run(*command, environ={"OMP_NUM_THREADS": ""}).stdout == f"{max(1, cores // 2)}\n" * 2
    assert jobs.run(*command, environ={"OMP_NUM_THREADS": "1"}).stdout == "1\n" * 2


def test_warns_when_threads_outnumber_cores(jobs: Jobs) -> None:
    ranks = len(os.sched_getaffinity(0)) + 1
    result = jobs.run("-np", str(ranks), "--no-run-dir", "true")
    assert f"warning: {ranks} ranks with" in result.stderr
    assert result.returncode == 0


def test_output_arrives_as_it_was(jobs: Jobs) -> None:
    result = jobs.start(
        "-np", "1", "--no-run-dir", sys.executable,
        jobs.script(r"os.write(1, b'\xff\xfe line\n' + b'x' * 200_000 + b'\nno end')"),
    )  # fmt: skip
    stdout, _ = result.communicate(timeout=HANG_S)
    assert stdout == b"[0] \xff\xfe line\n[0] " + b"x" * 200_000 + b"\n[0] no end\n"


def test_lines_of_ranks_are_never_mixed(jobs: Jobs) -> None:
    result = jobs.run_script(3, "for i in range(2000): print(str(rank) * 50)")
    lines = result.stdout.splitlines()
    assert len(lines) == 6000
    assert set(lines) == {f"[{rank}] {str(rank) * 50}" for rank in range(3)}


def test_output_filename_as_horovodrun(jobs: Jobs) -> None:
    jobs.run_script(2, "print('out', rank); print('err', rank, file=sys.stderr)", "--output-filename", "kept")
    for rank in range(2):
        folder = jobs.folder / "kept" / f"rank.{rank}"
        assert (folder / "stdout").read_text() == f"out {rank}\n"
        assert (folder / "stderr").read_text() == f"err {rank}\n"


def test_run_folder(jobs: Jobs) -> None:
    script = jobs.script(
        "print(os.environ['RINGTUNE_RUN_DIR']); print('the end', rank, file=sys.stderr); sys.exit(3 * rank)"
    )
    result = jobs.run(
        "-np", "2", "--run-dir", "here/run", "--logs", "--name", "trial", "--cycle-time-ms", "2", "--no-prefix",
        "--tag", "model=resnet50", "--tag", "night",
        sys.executable, script,
    )  # fmt: skip
    run = jobs.folder / "here" / "run"
    assert result.stdout == f"{run}\n" * 2
    document = json.loads((run / "run.json").read_text())
    assert document["name"] == "trial"
    assert document["labels"] == {"model": "resnet50", "night": ""}
    assert document["status"] == "failed"
    assert document["exit_code"] == 3
    failed = document["failure"]
    assert (failed["rank"], failed["host"], failed["exit_code"], failed["after_s"] > 0) == (1, "localhost", 3, True)
    assert failed["last_lines"] == ["the end 1"]
    assert document["size"] == 2
    assert document["hosts"] == ["localhost", "localhost"]
    assert document["config"]["RINGTUNE_CYCLE_TIME"] == 2
    assert document["command"] == [sys.executable, script]
    assert document["ended_unix_ns"] > document["created_unix_ns"]
    assert sorted((run / "logs" / "rank-00001.log").read_text().splitlines()) == sorted([str(run), "the end 1"])


def test_default_run_folder_carries_the_scripts_name(jobs: Jobs) -> None:
    jobs.run("-np", "1", sys.executable, jobs.script("pass"))
    (run,) = (jobs.folder / "runs").iterdir()
    assert run.name.startswith("script0-")
    assert json.loads((run / "run.json").read_text())["status"] == "finished"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-np", "0", "true"], "-np 0: a job has at least 1 rank"),
        (["-np", "-2", "true"], "-np -2: a job has at least 1 rank"),
        (["true"], "say how many ranks"),
        (["-np", "1"], "say what to run"),
        (["-np", "1", "-H", "a:x", "true"], "slots must be a whole number"),
        (["-np", "1", "-H", "localhost:1", "--hostfile", "h", "true"], "not both"),
        (["-np", "3", "-H", "localhost:1,192.0.2.1:1", "true"], "offer only 2 slots"),
        (["-np", "1", "--tag", "=x", "true"], "--tag '=x': expected WORD or NAME=VALUE"),
        (["-np", "1", "--tag", "timeline=x", "true"], "with another name than 'timeline'"),
        (["-np", "1", "--tag", "x", "--no-run-dir", "true"], "--no-run-dir makes none"),
        (["-np", "1", "no-such-program"], "cannot run 'no-such-program': it is not on PATH"),
        (["-np", "1", "./absent"], "cannot run './absent': there is no such file"),
        (["-np", "1", "./plain.py"], "run it with python: ringtune run ... python ./plain.py"),
        (["-np", "1", "./plain"], "./plain is not executable (chmod +x ./plain)"),
        (["-np", "1", "."], ". is a folder"),
        (["-np", "1", "--run-dir", "a", "--no-run-dir", "true"], "not both"),
        (["-np", "1", "--no-run-dir", "--logs", "true"], "use --output-filename"),
    ],
)
def test_wrong_use_is_one_sentence(jobs: Jobs, arguments: list[str], message: str) -> None:
    for name in ("plain", "plain.py"):
        (jobs.folder / name).write_text("pass\n")
    result = jobs.run(*arguments)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.returncode == 2
    assert not (jobs.folder / "runs").exists()


def test_wrong_variable_is_found_before_the_start(jobs: Jobs) -> None:
    result = jobs.run("-np", "2", "true", environ={"RINGTUNE_CYCLE_TIME": "fast"})
    assert result.stderr.count("RINGTUNE_CYCLE_TIME='fast'") == 1
    assert result.returncode == 1


def test_script_without_interpreter_line(jobs: Jobs) -> None:
    program = jobs.folder / "program"
    program.write_text("\x00")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    result = jobs.run("-np", "1", "--no-run-dir", "./program")
    assert result.returncode == 126
    assert "cannot start the rank: command './program': Exec format error" in result.stderr


def test_library_sees_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ringtune.launch import LaunchOptions, launch, launcher

    class Store:
        port = 1

        def refuse_waiting(self, reason: str, begins: str = "", ends: str = "") -> None:
            pass

        def close(self) -> None:
            pass

    monkeypatch.setattr(launcher, "open_store", lambda host, secret: Store())
    seen: list[tuple[int, str, str]] = []
    options = LaunchOptions(
        command=[sys.executable, "-c", "import sys; print('a\\nb', end=''); print('c', file=sys.stderr); sys.exit(4)"],
        num_proc=1,
        echo=False,
        on_line=lambda rank, stream, line: seen.append((rank, stream, line)),
    )
    assert launch(options) == 4
    assert [line for _, stream, line in seen if stream == "stdout"] == ["a", "b"]
    assert (0, "stderr", "c") in seen


def test_a_password_in_the_command_or_in_an_error_is_in_no_run_folder_and_said_by_no_launcher(jobs: Jobs) -> None:
    url = "postgresql://ann:sword/fish@db:port/study"
    script = jobs.script("print('cannot open', sys.argv[1], file=sys.stderr); sys.exit(3)")
    run = jobs.folder / "run"
    result = jobs.run("-np", "1", "--run-dir", run, "--verbose", "--no-prefix", sys.executable, script, url)
    said = [line for line in result.stderr.splitlines() if line != f"cannot open {url}"]
    assert len(result.stderr.splitlines()) == len(said) + 1, "what the script prints is its own"
    assert any("postgresql://ann:***@db" in line for line in said), result.stderr
    assert not any("fish" in line for line in said), result.stderr
    document = json.loads((run / "run.json").read_text())
    assert document["failure"]["last_lines"] == ["cannot open postgresql://ann:***@db:port/study"]
    assert document["command"][-1] == "postgresql://ann:***@db:port/study"
    assert not [file for file in run.rglob("*") if file.is_file() and b"fish" in file.read_bytes()]

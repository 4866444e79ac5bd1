"""Jobs under the real SLURM: srun, batch scripts, a node that dies."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import cases
from tests.engines.slurm import HANG_S, Cluster, cluster

if shutil.which("slurmd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
    pytest.skip("SLURM is not installed (Debian: slurm-wlm)", allow_module_level=True)

pytestmark = pytest.mark.slow

TRAIN = """
import os, sys, time
from pathlib import Path
import ringtune.torch as hvd
import torch
from sklearn.datasets import load_digits

hvd.init()
found = load_digits()
images, targets = torch.tensor(found.data[:1792] / 16.0), torch.tensor(found.target[:1792])
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10)).double()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9))
own = slice(hvd.rank(), None, hvd.size())


def step():
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(images[own]), targets[own]).backward()
    optimizer.step()


def loss():
    return torch.nn.functional.cross_entropy(net(images), targets).item()

"""
WHOLE = """
for _ in range(20):
    step()
host = os.uname().nodename
sys.stdout.write(f"rank {hvd.rank()} of {hvd.size()} local {hvd.local_rank()} on {host} loss {loss():.12f}\\n")
"""
LINE = re.compile(r"rank (\d) of (\d) local (\d) on (n\d) loss (\S+)")


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    # A socket's path is short.
    with tempfile.TemporaryDirectory(prefix="slurm") as folder, cluster(Path(folder)) as made:
        yield made


@pytest.fixture(scope="module")
def train(slurm: Cluster) -> tuple[str, float]:
    """A script, and the loss that it reaches with one process."""
    script = slurm.script("train.py", TRAIN + WHOLE)
    alone = slurm.run(sys.executable, str(script))
    return str(script), float(LINE.findall(alone.stdout)[0][-1])


def ranks(text: str, loss: float) -> list[str]:
    """Return ``rank of size local host`` of every rank, after a look at the losses."""
    found = sorted(LINE.findall(text))
    assert all(float(one[-1]) == pytest.approx(loss, rel=1e-9) for one in found), text
    return [" ".join(one[:-1]) for one in found]


FOUR = ["0 4 0 n1", "1 4 1 n1", "2 4 0 n2", "3 4 1 n2"]


def test_srun_starts_the_ranks(slurm: Cluster, train: tuple[str, float]) -> None:
    words = ["srun", "--nodes=2", "--ntasks-per-node=2", sys.executable, train[0]]
    done = slurm.run(*words)
    assert done.returncode == 0, done.stderr
    assert ranks(done.stdout, train[1]) == FOUR
    one_node = slurm.run("srun", "-n", "4", sys.executable, train[0])
    assert [one[:5] for one in ranks(one_node.stdout, train[1])] == ["0 4 0", "1 4 1", "2 4 2", "3 4 3"]


def test_a_batch_script_needs_no_hosts(slurm: Cluster, train: tuple[str, float]) -> None:
    slurm.script(
        "job.sh", f"#!/bin/bash\nringtune run --verbose --run-dir run --timeline trace.json python {train[0]}\n"
    )
    done = slurm.run("sbatch", "--wait", "--nodes=2", "--ntasks-per-node=2", "-o", "job.out", "-e", "job.err", "job.sh")
    errors = (slurm.folder / "job.err").read_text()
    assert done.returncode == 0, errors + slurm.logs()
    assert ranks((slurm.folder / "job.out").read_text(), train[1]) == FOUR
    assert "ranks 2-3 on n2 by srun" in errors and "srun: error" not in errors
    assert json.loads((slurm.folder / "run/run.json").read_text())["hosts"] == ["n1", "n1", "n2", "n2"]
    summary = slurm.run("ringtune", "timeline", "summary", "trace.json")
    assert summary.returncode == 0 and "4 ranks" in summary.stdout, summary.stdout + summary.stderr
    cases.seen_in_the_dashboard(slurm.folder / "run", ranks=4)


def test_what_does_not_fit_into_the_allocation_is_said(slurm: Cluster) -> None:
    in_two = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1"]
    many = slurm.run(*in_two, "ringtune", "run", "-np", "5", "true")
    assert "ringtune: -np 5: the hosts offer only 2 slots (n1:1,n2:1)" in many.stderr
    twice = slurm.run("srun", "-n", "2", "ringtune", "run", "true")
    assert "slurm has started this 2 times: start it once, in the batch script" in twice.stderr
    absent = slurm.run(*in_two, "env", "SLURM_JOB_NODELIST=n1,n9", "ringtune", "run", "--no-run-dir", "true")
    assert "ringtune: host n9 cannot be reached by srun: srun: error: Unable to create step" in absent.stderr


def test_the_end_of_the_launcher_ends_ranks_on_other_nodes(slurm: Cluster) -> None:
    slurm.script(
        "wait.py", "import os, time\nopen(f'pid-{os.environ[\"RINGTUNE_RANK\"]}', 'w').close()\ntime.sleep(600)\n"
    )
    words = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1"]
    words += ["ringtune", "run", "--no-run-dir", "python", "wait.py"]
    job = subprocess.Popen(slurm.on("n1", words), env=slurm.environ(), start_new_session=True)
    slurm.wait_for("the ranks do not start", lambda: len(list(slurm.folder.glob("pid-?"))) == 2)
    launcher = slurm.run("pgrep", "-f", "bin/ringtune run --no-run-dir").stdout.split()
    slurm.run("kill", "-KILL", *launcher)
    job.wait(HANG_S)
    for node in ("n1", "n2"):
        slurm.wait_until("ranks are left", ["sh", "-c", "pgrep -f [w]ait.py >/dev/null || echo none"], "none", node)


RESUME = """
kept, steps = Path("kept.pt"), 0
if kept.exists():
    found = torch.load(kept)
    net.load_state_dict(found["net"])
    optimizer.load_state_dict(found["optimizer"])
    steps = found["steps"]
if hvd.rank() == 0:
    with open("starts", "a") as file:
        file.write(f"{os.environ.get('SLURM_RESTART_COUNT', '0')} {steps} {hvd.size()}\\n")
for number in range(steps, 20):
    step()
    if hvd.rank() == 0:
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "steps": number + 1}, "new.pt")
        os.replace("new.pt", kept)
    # The first start stays at a step until a node has died.
    while number == 9 and not os.environ.get("SLURM_RESTART_COUNT"):
        hvd.allreduce(torch.ones(1), name="wait")
        time.sleep(0.05)
""" + WHOLE.replace("for _ in range(20):\n    step()\n", "")


@pytest.mark.long  # SLURM starts a job again two minutes later
def test_a_job_is_started_again_after_a_node_has_died(slurm: Cluster, train: tuple[str, float]) -> None:
    script = slurm.script("resume.py", TRAIN + RESUME)
    # ringtune ends with an error before SLURM misses the node, so the script itself asks to be started again.
    again = f"ringtune run --no-run-dir python {script} || scontrol requeue $SLURM_JOB_ID"
    slurm.script("again.sh", f"#!/bin/bash\n{again}\n")
    words = ["sbatch", "--parsable", "--requeue", "--open-mode=append", "--nodes=2", "--ntasks-per-node=1"]
    job = slurm.run(*words, "-o", "again.out", "again.sh").stdout.strip()
    kept = slurm.folder / "kept.pt"
    slurm.wait_for("the job does not start", lambda: kept.exists() and _steps(slurm, kept) == 10)
    slurm.kill_node("n2")
    slurm.wait_for("the job is not requeued", lambda: slurm.state(job) != "RUNNING")
    slurm.start_node("n2")
    slurm.wait_for("the job does not end", lambda: slurm.state(job) in ("COMPLETED", "FAILED"))
    said = (slurm.folder / "again.out").read_text()
    assert slurm.state(job) == "COMPLETED", said + slurm.logs()
    assert "PeerLost: rank 1 on host n2 died" in said
    assert (slurm.folder / "starts").read_text().splitlines() == ["0 0 2", "1 10 2"]
    assert ranks(said, train[1]) == ["0 2 0 n1", "1 2 0 n2"]


ELASTIC = """
state = hvd.elastic.TorchState(net, optimizer, step=0)


@hvd.elastic.run
def loop(state):
    global own
    own = slice(hvd.rank(), None, hvd.size())
    if hvd.rank() == 0:
        with open("generations", "a") as file:
            file.write(f"{state.step} {hvd.size()}\\n")
    while state.step < 20:
        step()
        state.step += 1
        state.commit()
        while state.step == 10 and hvd.size() == 2:
            hvd.allreduce(torch.ones(1), name="wait")
            time.sleep(0.05)


loop(state)
""" + WHOLE.replace("for _ in range(20):\n    step()\n", "")


def test_an_elastic_job_goes_on_without_a_dead_node(slurm: Cluster, train: tuple[str, float]) -> None:
    slurm.wait_until("n2 is not there", ["sinfo", "--noheader", "-o", "%D %t"], "2 idle")
    script = slurm.script("elastic.py", TRAIN + ELASTIC)
    slurm.script("elastic.sh", f"#!/bin/bash\nringtune run --no-run-dir -np 2 --min-np 1 python {script}\n")
    words = ["sbatch", "--parsable", "--no-kill", "--nodes=2", "--ntasks-per-node=1", "-o", "elastic.out"]
    job = slurm.run(*words, "elastic.sh").stdout.strip()
    generations = slurm.folder / "generations"
    slurm.wait_for("the job does not start", generations.exists)
    slurm.kill_node("n2")
    slurm.wait_for("the job does not end", lambda: slurm.state(job) not in ("RUNNING", "PENDING", "CONFIGURING"))
    said = (slurm.folder / "elastic.out").read_text()
    slurm.start_node("n2")
    assert ranks(said, train[1]) == ["0 1 0 n1"], said + slurm.logs()
    first, second = generations.read_text().splitlines()
    assert first == "0 2" and second.endswith(" 1")


KEPT = ELASTIC.replace("hvd.size() == 2", 'not os.environ.get("SLURM_RESTART_COUNT")').replace(
    'name="wait")\n', 'name="wait")\n            Path("waits").touch()\n'
)


def test_a_requeued_job_goes_on_from_the_last_commit_on_its_nodes(slurm: Cluster, train: tuple[str, float]) -> None:
    slurm.wait_until("n2 is not there", ["sinfo", "--noheader", "-o", "%D %t"], "2 idle")
    (slurm.folder / "generations").unlink(missing_ok=True)
    script = slurm.script("kept.py", TRAIN + KEPT)
    own_disk = f'RINGTUNE_ELASTIC_STATE=$PWD/disk-$SLURMD_NODENAME/state exec "{sys.executable}" "{script}"'
    slurm.script("kept.sh", f"#!/bin/bash\nsrun bash -c '{own_disk}'\n")
    words = ["sbatch", "--parsable", "--requeue", "--open-mode=append", "--nodes=2", "--ntasks-per-node=1"]
    job = slurm.run(*words, "-o", "kept.out", "kept.sh").stdout.strip()
    slurm.wait_for("the job does not start", (slurm.folder / "waits").exists)
    asked = slurm.run("scontrol", "requeue", job)
    assert asked.returncode == 0, asked.stderr
    slurm.wait_for("the job is not requeued", lambda: slurm.state(job) == "PENDING")
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")  # by itself it starts two minutes later
    slurm.wait_for("the job does not end", lambda: slurm.state(job) in ("COMPLETED", "FAILED"))
    said = (slurm.folder / "kept.out").read_text()
    assert slurm.state(job) == "COMPLETED", said + slurm.logs()
    assert (slurm.folder / "generations").read_text().splitlines() == ["0 2", "10 2"]
    assert ranks(said, train[1]) == ["0 2 0 n1", "1 2 0 n2"]
    assert not list(slurm.folder.glob("disk-*/state/*")), "it ended well: the next one begins anew"


def _steps(slurm: Cluster, kept: Path) -> int:
    return int(slurm.run(sys.executable, "-c", f"import torch; print(torch.load('{kept}')['steps'])").stdout or 0)


DDP = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("around", ["srun", "ringtune"])
def test_recording_a_job_of_torch(slurm: Cluster, around: str) -> None:
    slurm.wait_until("n2 is not there", ["sinfo", "--noheader", "-o", "%D %t"], "2 idle")
    # torch's own variables, as sites set them in a script around srun.
    slurm.script("ddp.py", DDP)
    slurm.script(
        "rank.sh",
        "#!/bin/bash\nexport RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID MASTER_ADDR=n1\n"
        'export MASTER_PORT=29511\nexec "$@"\n',
    )
    srun = ["srun", "--nodes=2", "--ntasks-per-node=1"]
    record = ["ringtune", "record", "-o", f"{around}.json", "--"]
    rank = ["./rank.sh", sys.executable, "ddp.py"]
    words = [*srun, rank[0], *record, *rank[1:]] if around == "srun" else [*record, *srun, *rank]
    done = slurm.run(*words, environ={"RINGTUNE_RUN_DIR": f"{slurm.folder}/recorded-{around}"})
    assert done.returncode == 0, done.stderr
    summary = slurm.run("ringtune", "timeline", "summary", f"{around}.json")
    assert summary.returncode == 0 and "2 ranks" in summary.stdout, summary.stdout + summary.stderr

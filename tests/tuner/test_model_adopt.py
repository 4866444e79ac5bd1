"""Traces of PyTorch's profiler and of Horovod: a job played from known terms is predicted as it was put in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline import load
from ringtune.timeline.synthetic.generate import Schedule, generate
from ringtune.tuner.model.adopt import DDP_KNOBS, HOROVOD_KNOBS, World, adopt, foreign
from ringtune.tuner.model.calibrate import Model, calibrate, check
from ringtune.tuner.model.cluster import Cluster, Link
from ringtune.tuner.model.questions import Change, ask
from ringtune.tuner.model.replay import Step, play
from ringtune.tuner.model.rounds import by_name, by_size
from ringtune.tuner.model.workload import Gradient, Workload
from ringtune.tuner.predict_cli import predict

MS = 1e6
TRUE = Cluster(ranks=4, slots=1, network=Link(40_000.0, 5e8))
SIZES = (1 << 20, 25 << 20, 24 << 20, 6 << 20)
WORK = Workload(
    "job",
    tuple(
        Gradient(size, at * MS, f"allreduce.{at}") for size, at in zip(SIZES, (40.0, 60.0, 85.0, 120.0), strict=True)
    ),
    120 * MS,
    30 * MS,
)
STEPS = 12


def kineto(step: Step, rank: int = 0, *, marked: bool = True, sized: str = "shapes") -> dict[str, Any]:
    """A DDP job on gloo as torch.profiler 2.13 writes it; another rank computes less and waits in its collectives."""
    events: list[dict[str, Any]] = []

    def add(name: str, begin_ns: float, end_ns: float, cat: str = "user_annotation", **args: Any) -> None:
        times = {"ts": begin_ns / 1e3, "dur": (end_ns - begin_ns) / 1e3}
        events.append({"name": name, "cat": cat, "ph": "X", "pid": 77, "tid": 1, **times, "args": args})

    for number in range(STEPS):
        at = number * step.length_ns
        if marked:
            add(f"ProfilerStep#{number + 3}", at, at + step.length_ns)
        add("gloo:broadcast", at + 1000, at + 2000)
        for batch, gradient in zip(step.batches, WORK.gradients, strict=True):
            add("c10d::allreduce_", at + gradient.ready_ns, at + gradient.ready_ns + 500, "cpu_op")
            shape = {"Input Dims": [[batch.bytes // 4]], "Input type": ["float"]} if sized == "shapes" else {}
            add("gloo:all_reduce", at + batch.begin_ns, at + batch.end_ns, **shape)
    world = {"rank": rank, "world_size": TRUE.ranks, "backend": "gloo"}
    return {"schemaVersion": 1, "distributedInfo": world, "baseTimeNanoseconds": 10**18, "traceEvents": events}


def horovod(step: Step, *, sized: bool = True, skipped: int = 0) -> list[dict[str, Any]]:
    """The same job as Horovod's timeline has it; `skipped` gradients of the first step came before the recording."""
    start = {"start_time_since_epoch_in_micros": 1_700_000_000_000_000}
    events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 0, "args": start}]
    for pid, gradient in enumerate(WORK.gradients, 1):
        events.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": gradient.name}})
    work = []
    for number in range(STEPS):
        at, pid = number * step.length_ns, 0
        for batch in step.batches:
            for _ in range(batch.tensors):
                pid += 1
                if number or pid > skipped:
                    work.append((pid, at + WORK.gradients[pid - 1].ready_ns, at + batch.begin_ns, at + batch.end_ns))
    for pid, ready, begin, end in work:
        events.append({"name": "NEGOTIATE_ALLREDUCE", "ph": "B", "pid": pid, "ts": ready / 1e3})
        events += [
            {"name": str(rank), "ph": "X", "pid": pid, "ts": ready / 1e3, "dur": 0} for rank in range(TRUE.ranks)
        ]
        events += [{"ph": "E", "pid": pid, "ts": begin / 1e3}]
        events += [{"name": name, "ph": "B", "pid": pid, "ts": begin / 1e3} for name in ("ALLREDUCE", "GLOO_ALLREDUCE")]
        size = WORK.gradients[pid - 1].bytes
        about = {"args": {"dtype": "float32", "shape": f"[{size // 1024}, 256]"}} if sized else {}
        events += [{"ph": "E", "pid": pid, "ts": end / 1e3}, {"ph": "E", "pid": pid, "ts": end / 1e3, **about}]
    return events


def written(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def ddp() -> Step:
    return play(WORK, TRUE, DDP_KNOBS)


def gives_back(model: Model, step: Step) -> None:
    """The model knows the job's sizes, link and length, and predicts other networks as the truth does."""
    assert (model.cluster.ranks, model.cluster.hosts) == (4, 4)
    assert [gradient.bytes for gradient in model.work.gradients] == list(SIZES)
    first = model.work.gradients[0].ready_ns
    found = [gradient.ready_ns - first for gradient in model.work.gradients]
    assert found == pytest.approx([0.0, 20 * MS, 45 * MS, 80 * MS], rel=1e-4)
    assert model.work.compute_ns == pytest.approx(WORK.compute_ns, rel=1e-4)
    assert model.measured_ns == pytest.approx(step.length_ns, rel=1e-4)
    assert model.cluster.network.bytes_per_s == pytest.approx(5e8, rel=0.02)
    error = check(model)
    assert error is not None
    assert abs(error) < 0.005
    for change in (Change("more", ranks=16), Change("slow", bandwidth=2e8), Change("fast", bandwidth=4e9)):
        truth = ask(Model(WORK, TRUE, model.knobs), change).step_ns.value
        assert ask(model, change).step_ns.value == pytest.approx(truth, rel=0.02), change.label


@pytest.mark.parametrize("marked", [True, False])
def test_a_profile_of_one_ddp_rank_gives_back_the_job(tmp_path: Path, marked: bool) -> None:
    trace = load(written(tmp_path / "rank0.json", kineto(ddp(), marked=marked)))
    assert foreign(trace)
    gives_back(calibrate(adopt(trace, World(hosts=4)), "job"), ddp())


def test_profiles_of_several_ranks_are_read_together(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"rank{rank}.json", kineto(ddp(), rank)) for rank in range(4)]
    trace = load(paths)
    assert foreign(trace)
    gives_back(calibrate(adopt(trace, World(hosts=4)), "job"), ddp())


@pytest.mark.parametrize("skipped", [0, 1, 3])
def test_a_timeline_of_horovod_gives_back_the_job(tmp_path: Path, skipped: int) -> None:
    step = play(WORK, TRUE, HOROVOD_KNOBS)
    trace = load(written(tmp_path / "hvd.json", horovod(step, skipped=skipped)))
    assert foreign(trace)
    model = calibrate(adopt(trace, World(hosts=4)), "job")
    assert model.knobs == HOROVOD_KNOBS
    gives_back(model, step)


def test_tensors_that_horovod_fused_are_one_batch(tmp_path: Path) -> None:
    work = Workload("job", (*WORK.gradients[:3], Gradient(SIZES[3], 85 * MS, "allreduce.120.0")), 120 * MS, 30 * MS)
    step = play(work, TRUE, HOROVOD_KNOBS)
    assert [batch.tensors for batch in step.batches] == [1, 1, 2]
    model = calibrate(adopt(load(written(tmp_path / "hvd.json", horovod(step))), World(hosts=4)), "job")
    assert len(play(model.work, model.cluster, model.knobs).batches) == 3
    assert model.cluster.network.bytes_per_s == pytest.approx(5e8, rel=0.02)


def test_sizes_may_come_from_a_profile(tmp_path: Path) -> None:
    step = play(WORK, TRUE, HOROVOD_KNOBS)
    trace = load(written(tmp_path / "hvd.json", horovod(step, sized=False)))
    gives_back(calibrate(adopt(trace, World(hosts=4), list(SIZES)), "job"), step)


def test_a_lonely_pause_says_where_steps_of_equal_buckets_begin() -> None:
    begin = np.array([100 * step + at for step in range(8) for at in (50, 60, 70, 80)])
    assert by_size(np.full(32, 7), begin[:], begin + 5).tolist() == [index // 4 for index in range(32)]
    assert by_size(np.full(30, 7), begin[2:], begin[2:] + 5).tolist() == [-1, -1, *(i // 4 for i in range(28))]
    assert by_size(np.arange(32), begin, begin + 5).tolist() == [-1] * 32


def test_rounds_of_names_bear_a_changed_order() -> None:
    names = ["c", "a", "b", "c", "b", "a", "c", "a", "b", "c"]
    at = np.array([5, 100, 101, 105, 200, 201, 205, 300, 301, 305])
    assert by_name(names, at).tolist() == [-1, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert by_name(["a", "b"], at[:2]).tolist() == [-1, -1]


def lonely(document: Any) -> Any:
    document.pop("distributedInfo")
    return document


@pytest.mark.parametrize(
    ("make", "world", "says"),
    [
        (lambda: kineto(ddp(), sized="no"), World(hosts=4), "record_shapes=True"),
        (lambda: kineto(ddp()), World(), "--ran-hosts"),
        (lambda: kineto(ddp()), World(ranks=2, hosts=2), "a job of 4 ranks, not of --ran-ranks 2"),
        (lambda: kineto(ddp()), World(ranks=8, hosts=2), "a job of 4 ranks, not of --ran-ranks 8"),
        (lambda: kineto(ddp()), World(hosts=9), "more than the job's 4 ranks"),
        (lambda: lonely(kineto(ddp())), World(hosts=4), "--ran-ranks"),
        (lambda: {"traceEvents": kineto(ddp())["traceEvents"][:9]}, World(hosts=4), "no two steps"),
        (lambda: {"traceEvents": kineto(ddp())["traceEvents"][:2]}, World(hosts=4), "no allreduce"),
        (lambda: horovod(ddp(), sized=False), World(hosts=4), "--profile"),
        (lambda: horovod(ddp()), World(), "--ran-hosts"),
        (lambda: horovod(ddp())[:15], World(hosts=4), "no two steps"),
    ],
)
def test_a_trace_that_carries_too_little_is_refused_in_words(
    tmp_path: Path, make: Any, world: World, says: str
) -> None:
    with pytest.raises(RingtuneError, match=says):
        adopt(load(written(tmp_path / "trace.json", make())), world)


def test_a_timeline_of_horovod_is_read_alone(tmp_path: Path) -> None:
    files = [
        written(tmp_path / "hvd.json", horovod(ddp())),
        *(written(tmp_path / f"rank{n}.json", kineto(ddp(), n)) for n in range(2)),
    ]
    trace = load(files)
    assert foreign(trace)
    with pytest.raises(UsageError, match="read alone"):
        adopt(trace, World(hosts=4))


def test_sizes_that_a_trace_has_are_not_given_again(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--profile is for one that does not"):
        adopt(load(written(tmp_path / "rank0.json", kineto(ddp()))), World(hosts=4), list(SIZES))


def test_a_profile_of_another_network_is_refused(tmp_path: Path) -> None:
    trace = load(written(tmp_path / "hvd.json", horovod(ddp(), sized=False)))
    with pytest.raises(UsageError, match="has 3 gradients, but a step of the trace has 4"):
        adopt(trace, World(hosts=4), [1, 2, 3])


def test_the_command_takes_a_profile_of_pytorch_and_a_timeline_of_horovod(tmp_path: Path) -> None:
    torch = written(tmp_path / "rank0.json", kineto(ddp()))
    hvd = written(tmp_path / "hvd.json", horovod(play(WORK, TRUE, HOROVOD_KNOBS), sized=False))
    sizes = tmp_path / "sizes.log"
    sizes.write_text("comment\n1\n4\n" + "".join(f"20000,{size}\n" for size in SIZES))
    for words in ([str(torch)], [str(hvd), "--profile", str(sizes)]):
        done = CliRunner().invoke(predict, [*words, "--ran-hosts", "4", "-np", "4,8", "--json"])
        assert done.exit_code == 0, done.output
        document = json.loads(done.output)
        assert abs(document["measured"]["model_error"]) < 0.005
        assert document["ranks"][0]["step_ns"]["value"] == pytest.approx(document["measured"]["step_ns"], rel=0.005)


def test_a_missing_profile_is_named(tmp_path: Path) -> None:
    timeline = written(tmp_path / "hvd.json", horovod(ddp(), sized=False))
    done = CliRunner().invoke(predict, [str(timeline), "--profile", str(tmp_path / "none.log"), "--ran-hosts", "4"])
    assert isinstance(done.exception, UsageError)
    assert "none.log" in str(done.exception)


def test_options_for_other_tools_are_refused_for_ringtunes_traces(tmp_path: Path) -> None:
    generate(Schedule()).write(tmp_path)
    done = CliRunner().invoke(predict, [str(tmp_path), "--ran-hosts", "4"])
    assert isinstance(done.exception, UsageError)
    assert "--ran-hosts is for traces of other tools" in str(done.exception)


def test_on_a_device_a_rank_waits_while_nothing_but_communication_runs(tmp_path: Path) -> None:
    """Kernels of backward and of the optimizer, NCCL's beside them; the host has long gone ahead."""
    work = Workload("job", (Gradient(1 << 20, 40 * MS), Gradient(4 << 20, 100 * MS)), 100 * MS, 30 * MS)
    step = play(work, TRUE, DDP_KNOBS)
    events: list[dict[str, Any]] = []

    def kernel(name: str, begin_ns: float, end_ns: float, **args: Any) -> None:
        times = {"ts": begin_ns / 1e3, "dur": (end_ns - begin_ns) / 1e3}
        events.append({"name": name, "cat": "kernel", "ph": "X", "pid": 0, "tid": 7, **times, "args": args})

    for number in range(STEPS):
        at = number * step.length_ns
        kernel("backward", at, at + 100 * MS)
        kernel("adam", at + step.length_ns - 30 * MS, at + step.length_ns)
        for batch in step.batches:
            about = {"In msg nelems": batch.bytes // 4, "Out msg nelems": batch.bytes // 4, "dtype": "Float"}
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + batch.begin_ns, at + batch.end_ns, **about)
    document = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 4}, "traceEvents": events}
    model = calibrate(adopt(load(written(tmp_path / "gpu.json", document)), World(hosts=4)), "job")
    assert model.work.compute_ns == pytest.approx(130 * MS, rel=1e-4)
    assert model.measured_ns == pytest.approx(step.length_ns, rel=1e-4)
    assert abs(check(model) or 0.0) < 0.005
    assert model.cluster.network.bytes_per_s == pytest.approx(5e8, rel=0.02)

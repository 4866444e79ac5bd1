"""`ringtune.ray` on a real Ray cluster of two nodes, both on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringtune.errors import InvalidArgument, RankFailed
from tests.engines import cases
from tests.ports import free_port

ray = pytest.importorskip("ray", reason="ray is not installed; `make test-engines` makes an environment")

from ringtune.ray import ElasticRayExecutor, RayExecutor  # noqa: E402

# Each attempt of Ray Train starts a dozen processes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def client_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def cluster(client_port: int) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    # Ray would end actors where other programs fill the memory, and lets every program go before them.
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0", "RAY_worker_niceness": "0"}
    os.environ.update(settings)
    ray.cloudpickle.register_pickle_by_value(cases)
    # Its sockets lie there, and their names may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        Path(folder, "ray").mkdir()  # Cluster writes its address there and does not make the folder
        first = {"num_cpus": 2, "include_dashboard": False, "ray_client_server_port": client_port}
        made = Cluster(initialize_head=True, head_node_args=first)
        made.add_node(num_cpus=2)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def executor(cluster: Any) -> Iterator[Callable[..., RayExecutor]]:
    made: list[RayExecutor] = []

    def make(settings: Any = None, **arguments: Any) -> RayExecutor:
        made.append(RayExecutor(settings, **arguments))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


def test_training_reaches_the_loss_of_one_process(executor: Callable[..., RayExecutor], alone: float) -> None:
    one = executor(RayExecutor.create_settings(timeout_s=120), num_workers=2)
    one.start(extra_env_vars={"WORD": "ring"})
    found = one.run(cases.train, args=["digits"])
    assert [rank["rank"] for rank in found] == [0, 1] and len({rank["pid"] for rank in found}) == 2
    assert found[0]["loss"] == found[1]["loss"] == pytest.approx(alone, rel=1e-9)
    assert [rank["loss"] for rank in one.run(cases.train)] == [rank["loss"] for rank in found]
    assert {rank["WORD"] for rank in one.run(cases.place)} == {"ring"}
    assert ray.get(one.run_remote(cases.reduce_in_torch)) == [3.0, 3.0]


def test_equal_numbers_on_hosts(executor: Callable[..., RayExecutor], alone: float) -> None:
    one = executor(num_hosts=2, num_workers_per_host=2)
    one.start()
    found = one.run(cases.train)
    assert [rank["size"] for rank in found] == [4] * 4
    assert found[0]["loss"] == pytest.approx(alone, rel=1e-9)
    nodes = one.run(lambda: __import__("ray").get_runtime_context().get_node_id())
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]


def test_functions_on_an_object_of_each_actor(executor: Callable[..., RayExecutor]) -> None:
    class Counter:
        def __init__(self, first: int, step: int = 1) -> None:
            self.count, self.step = first, step

        def add(self) -> int:
            self.count += self.step
            return self.count

    one = executor(num_workers=2)
    one.start(Counter, executable_args=[5], executable_kwargs={"step": 2})
    assert one.execute(lambda counter: counter.add()) == [7, 7]
    assert one.execute_single(lambda counter: counter.add()) == 9
    assert one.execute(lambda counter: counter.add()) == [11, 9]


def test_a_settings_object_of_horovods(executor: Callable[..., RayExecutor]) -> None:
    class Settings:  # horovod.runner.common.util.settings.Settings has no placement_group_timeout_s
        def __init__(self) -> None:
            self.verbose, self.nics, self.start_timeout, self.key = 1, None, object(), None

    one = executor(Settings(), num_workers=1)
    one.start()
    assert one.run(cases.place)[0]["RINGTUNE_RANK"] == "0"


def test_the_rank_that_fails_is_named(executor: Callable[..., RayExecutor]) -> None:
    one = executor(num_workers=2)
    one.start()
    with pytest.raises(RankFailed, match=r"rank 1 on .* raised KeyError: 'no such row on rank 1'") as caught:
        one.run(cases.fail_on, args=[1])
    assert caught.value.rank == 1 and isinstance(caught.value.__cause__, KeyError)


def test_a_killed_rank_is_named_on_the_others(
    executor: Callable[..., RayExecutor],
    tmp_path: Path,
    text_of: Callable[[Path], str],
    noticed: Callable[[Path], None],
) -> None:
    one = executor(num_workers=2)
    one.start()
    with pytest.raises(RankFailed, match="a process of the job ended without a result: rank 1 on") as caught:
        one.run(cases.die_on, args=[1, str(tmp_path)])
    assert "\n" not in str(caught.value)
    assert "PeerLost" in text_of(tmp_path / "error-0")
    noticed(tmp_path)


def test_an_elastic_job_goes_on_from_its_last_commit(
    executor: Callable[..., RayExecutor], tmp_path: Path, alone: float
) -> None:
    one = executor(min_workers=1, max_workers=2)
    one.start()
    found = one.run(cases.train_elastically, args=[str(tmp_path), 7])
    assert len(found) == 2
    assert found[0]["loss"] == found[1]["loss"] == pytest.approx(alone, rel=1e-9)
    assert (tmp_path / "starts").read_text().splitlines() == ["0 2", "7 2"]
    assert "PeerLost" in (tmp_path / "error-0").read_text()
    with pytest.raises(NotImplementedError, match="an elastic job has actors during run"):
        one.run_remote(cases.place)


def test_the_elastic_executor_of_older_scripts(cluster: Any, tmp_path: Path, alone: float) -> None:
    settings = ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2, timeout_s=120, verbose=0)
    with pytest.warns(DeprecationWarning, match="use RayExecutor"):
        one = ElasticRayExecutor(settings, cpus_per_slot=1, env_vars={"WORD": "ring"})
    one.start()
    assert {rank["WORD"] for rank in one.run(cases.place)} == {"ring"}
    folder = str(tmp_path)
    found = one.run(lambda: cases.train_elastically(folder, 7))
    assert found[0]["loss"] == pytest.approx(alone, rel=1e-9)
    assert (tmp_path / "starts").read_text().splitlines() == ["0 2", "7 2"]


def test_the_settings_of_older_scripts() -> None:
    with pytest.warns(DeprecationWarning, match="use min_num_proc"):
        assert ElasticRayExecutor.create_settings(min_np=2, max_num_proc=3).min_num_proc == 2
    with pytest.warns(DeprecationWarning), pytest.raises(InvalidArgument, match="min_workers=4 is more than"):
        ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=4, max_num_proc=3))
    with pytest.warns(DeprecationWarning), pytest.raises(InvalidArgument, match="Ray knows the nodes"):
        ElasticRayExecutor(override_discovery=False)


@pytest.mark.parametrize("sizes", [{"num_workers": 2}, {"min_workers": 2}])
def test_callbacks_get_what_rank_0_logs(executor: Callable[..., RayExecutor], sizes: dict[str, int]) -> None:
    def loop() -> None:
        import ringtune.torch as hvd
        from ringtune.ray import ray_logger

        hvd.init()
        for step in range(3):
            ray_logger.log({"step": step, "rank": hvd.rank()})

    one, got = executor(**sizes), []
    one.start()
    one.run(loop, callbacks=[got.append])
    assert got == [{"step": step, "rank": 0} for step in range(3)]


def test_too_many_deaths_end_an_elastic_job(executor: Callable[..., RayExecutor]) -> None:
    one = executor(min_workers=2, reset_limit=1)
    one.start()
    with pytest.raises(RankFailed, match=r"start 2 of 2; reset_limit"):
        one.run(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_no_room_is_said_with_what_was_asked_for(executor: Callable[..., RayExecutor]) -> None:
    one = executor(RayExecutor.create_settings(placement_group_timeout_s=1), num_workers=9)
    with pytest.raises(TimeoutError, match=r"no room within 1 s for 9 bundles .* have 4 CPU"):
        one.start()


def test_inside_a_placement_group(executor: Callable[..., RayExecutor]) -> None:
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    def inside() -> tuple[list[Any], float]:
        one = RayExecutor(num_workers=2)
        one.start()
        found = one.run(cases.place)
        one.shutdown()
        return found, len(ray.util.placement_group_table())

    group = placement_group([{"CPU": 1}] * 3)
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    before = len(ray.util.placement_group_table())
    found, groups = ray.get(ray.remote(inside).options(num_cpus=1, scheduling_strategy=strategy).remote())
    remove_placement_group(group)
    assert [one["RINGTUNE_RANK"] for one in found] == ["0", "1"]
    assert groups == before


CLIENT = """
import json, sys
import ray
from ringtune.ray import RayExecutor
from tests.engines import cases

ray.cloudpickle.register_pickle_by_value(cases)
ray.init(sys.argv[1], log_to_driver=False)
found = []
for sizes in ({"num_workers": 2}, {"min_workers": 2, "max_workers": 2}):
    one, logged = RayExecutor(RayExecutor.create_settings(timeout_s=120), **sizes), []
    one.start(extra_env_vars={"WORD": "ring"})

    def train():
        from ringtune.ray import ray_logger

        ray_logger.log({"word": cases.place()["WORD"]})
        return cases.train()

    losses = [rank["loss"] for rank in one.run(train, callbacks=[logged.append])]
    try:
        one.run(cases.fail_on, args=[1])
    except RuntimeError as error:
        found.append([losses, logged, repr(error.__cause__)])
    one.shutdown()
print(json.dumps(found))
"""


def test_from_a_client_outside_of_the_cluster(cluster: Any, client_port: int, alone: float) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, f"ray://127.0.0.1:{client_port}"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for losses, logged, cause in json.loads(done.stdout.splitlines()[-1]):
        assert losses == pytest.approx([alone] * 2, rel=1e-9)
        assert logged == [{"word": "ring"}] and cause == "KeyError('no such row on rank 1')"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_workers": 0},
        {"max_workers": 2},
        {"min_workers": 1, "num_workers": 1},
        {"min_workers": 3, "max_workers": 2},
        {"num_workers": 1, "gpus_per_worker": 1},
        {"num_workers": 1, "use_gpu": True, "gpus_per_worker": 0},
    ],
)
def test_arguments_that_exclude_each_other(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="RayExecutor"):
        RayExecutor(**arguments)


def test_under_horovods_names() -> None:
    program = (
        "import ringtune.as_horovod, ringtune.ray\n"
        "from horovod.ray import RayExecutor\n"
        "from horovod.ray.runner import MiniSettings\n"
        "print(RayExecutor is ringtune.ray.RayExecutor, MiniSettings is ringtune.ray.MiniSettings)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "True True\n", done.stderr


def test_before_start(executor: Callable[..., RayExecutor]) -> None:
    with pytest.raises(InvalidArgument, match=r"call start\(\) first"):
        executor(num_workers=1).run(cases.place)


def trainer(folder: Path, function: Callable[..., Any], config: Any, workers: Any = 2, **arguments: Any) -> Any:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    return DataParallelTrainer(
        function,
        backend_config=config,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name="digits", storage_path=str(folder), failure_config=FailureConfig(max_failures=2)),
        **arguments,
    )


def test_ray_train_with_a_timeline(cluster: Any, tmp_path: Path, alone: float) -> None:
    from ringtune.ray import RingtuneConfig

    def loop(config: dict[str, Any]) -> None:
        import ray.train

        found = cases.train()
        if found["rank"] == 0:
            with open(config["file"], "w", encoding="utf-8") as file:
                json.dump(found, file)
        ray.train.report({"loss": found["loss"]})

    result = trainer(
        tmp_path, loop, RingtuneConfig(timeline=True), train_loop_config={"file": str(tmp_path / "f")}
    ).fit()
    assert result.error is None
    assert json.loads((tmp_path / "f").read_text())["loss"] == pytest.approx(alone, rel=1e-9)
    cases.merged(tmp_path / "digits" / "ringtune" / "trace.json")
    cases.seen_in_the_dashboard(tmp_path / "digits" / "ringtune")


@pytest.mark.parametrize("workers", [2, (1, 2)], ids=["fixed", "range"])
def test_ray_train_starts_again_from_the_last_commit(
    workers: int | tuple[int, int], cluster: Any, tmp_path: Path, alone: float
) -> None:
    from ringtune.ray import RingtuneConfig

    def loop(config: dict[str, Any]) -> None:
        found = cases.train_elastically(config["folder"], 7)
        with open(os.path.join(config["folder"], f"loss-{found['rank']}"), "w", encoding="utf-8") as file:
            file.write(str(found["loss"]))

    result = trainer(tmp_path, loop, RingtuneConfig(), workers, train_loop_config={"folder": str(tmp_path)}).fit()
    assert result.error is None
    assert (tmp_path / "starts").read_text().splitlines() == ["0 2", "7 2"]
    assert float((tmp_path / "loss-1").read_text()) == pytest.approx(alone, rel=1e-9)


def test_ray_train_knows_the_backend_of_torch(cluster: Any, tmp_path: Path) -> None:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    def loop(config: dict[str, Any]) -> None:
        import torch
        import torch.distributed as dist

        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        with open(os.path.join(config["folder"], f"sum-{dist.get_rank()}"), "w", encoding="utf-8") as file:
            file.write(f"{dist.get_backend()} {float(tensor)}")

    result = TorchTrainer(
        loop,
        train_loop_config={"folder": str(tmp_path)},
        torch_config=TorchConfig(backend="ringtune"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="torch", storage_path=str(tmp_path)),
    ).fit()
    assert result.error is None
    assert {(tmp_path / f"sum-{rank}").read_text() for rank in (0, 1)} == {"ringtune 2.0"}

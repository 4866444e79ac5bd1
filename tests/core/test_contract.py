"""Horovod's names, signatures, defaults and error classes, one case per row of the contract (its section 1)."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ringtune
import ringtune.torch as hvd
from ringtune.common import elastic
from ringtune.common.exceptions import (
    HorovodVersionMismatchError,
    HostsUpdatedInterrupt,
    get_version_mismatch_message,
)
from ringtune.session import Session
from ringtune.torch import mpi_ops
from ringtune.torch.compression import Compressor, FP16Compressor, NoneCompressor

Open = Callable[..., Session]
REDUCTIONS = {"Average": 0, "Sum": 1, "Adasum": 2, "Min": 3, "Max": 4, "Product": 5}

# 1.2 to 1.8: name -> its parameters as the contract writes them; PS is the set of all ranks, C no compression.
SIGNATURES = {
    "init": "comm=None, process_sets=None",
    "shutdown": "",
    "is_initialized": "",
    **dict.fromkeys(("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"), ""),
    "mpi_ops.is_homogeneous": "",
    **dict.fromkeys(("mpi_threads_supported", "mpi_enabled", "gloo_enabled", "mpi_built", "gloo_built"), ""),
    **dict.fromkeys(("ddl_built", "ccl_built", "cuda_built", "rocm_built", "nccl_built", "_check_has_gpu"), ""),
    "start_timeline": "file_path, mark_cycles=False",
    "stop_timeline": "",
    "allreduce": "tensor, average=None, name=None, compression=C, op=None, prescale_factor=1.0, postscale_factor=1.0, "
    "process_set=PS",
    **dict.fromkeys(
        ("allreduce_async", "allreduce_", "allreduce_async_"),
        "tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=PS",
    ),
    "grouped_allreduce": "tensors, average=None, name=None, compression=C, op=None, prescale_factor=1.0, "
    "postscale_factor=1.0, process_set=PS",
    **dict.fromkeys(
        ("grouped_allreduce_async", "grouped_allreduce_", "grouped_allreduce_async_"),
        "tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=PS",
    ),
    "sparse_allreduce_async": "tensor, name, op, process_set=PS",
    **dict.fromkeys(("allgather", "allgather_async"), "tensor, name=None, process_set=PS"),
    **dict.fromkeys(("grouped_allgather", "grouped_allgather_async"), "tensors, name=None, process_set=PS"),
    **dict.fromkeys(
        ("broadcast", "broadcast_async", "broadcast_", "broadcast_async_"),
        "tensor, root_rank, name=None, process_set=PS",
    ),
    **dict.fromkeys(("alltoall", "alltoall_async"), "tensor, splits=None, name=None, process_set=PS"),
    "reducescatter": "tensor, name=None, compression=C, op=0, process_set=PS, prescale_factor=1.0, "
    "postscale_factor=1.0",
    "reducescatter_async": "tensor, name=None, op=0, process_set=PS, prescale_factor=1.0, postscale_factor=1.0",
    "grouped_reducescatter": "tensors, name=None, compression=C, op=0, process_set=PS, prescale_factor=1.0, "
    "postscale_factor=1.0",
    "grouped_reducescatter_async": "tensors, name=None, op=0, process_set=PS, prescale_factor=1.0, "
    "postscale_factor=1.0",
    "join": "device=-1",
    "barrier": "process_set=PS",
    "poll": "handle",
    "synchronize": "handle",
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_object": "obj, root_rank=0, name=None, process_set=PS",
    "allgather_object": "obj, name=None",
    "DistributedOptimizer": "optimizer, named_parameters=None, compression=C, backward_passes_per_step=1, op=0, "
    "gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, process_set=PS",
    "ProcessSet": "ranks_or_comm",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "SyncBatchNorm": "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True",
    "elastic.run": "func",
    "elastic.TorchState": "model=None, optimizer=None, **kwargs",
    "elastic.ElasticSampler": "dataset, shuffle=True, seed=0",
}


def reached(name: str) -> Any:
    found: Any = hvd
    for part in name.split("."):
        found = getattr(found, part)
    return found


def written(parameter: inspect.Parameter) -> str:
    """Return a parameter as the contract writes it."""
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    default = parameter.default
    text = "PS" if default is hvd.global_process_set else "C" if default is hvd.Compression.none else repr(default)
    return f"{parameter.name}={text}"


@pytest.mark.parametrize(("name", "signature"), SIGNATURES.items(), ids=list(SIGNATURES))
def test_signature(name: str, signature: str) -> None:
    parameters = [written(one) for one in inspect.signature(reached(name)).parameters.values()]
    expected = [word for word in signature.split(", ") if word]
    # What ringtune adds stands behind and has a default.
    assert parameters[: len(expected)] == expected
    assert all("=" in more for more in parameters[len(expected) :])


def test_signature_of_run() -> None:
    expected = (
        "func, args=(), kwargs=None, num_proc, min_num_proc=None, max_num_proc=None, slots=None, reset_limit=None, "
        "cooldown_range=None, hosts=None, hostfile=None, host_discovery_script=None, start_timeout=None, "
        "ssh_port=None, ssh_identity_file=None, disable_cache=None, output_filename=None, verbose=None, "
        "use_gloo=None, use_mpi=None, mpi_args=None, network_interface=None, network_interfaces=None, "
        "executable=None, np=None, min_np=None, max_np=None"
    )
    parameters = [written(one) for one in inspect.signature(ringtune.run).parameters.values()]
    # The default of num_proc is 1 there; here it may also follow from the hosts.
    assert ", ".join(parameters).replace("num_proc=None", "num_proc", 1) == expected


@pytest.mark.parametrize(("name", "value"), REDUCTIONS.items(), ids=list(REDUCTIONS))
def test_reductions_are_plain_integers(name: str, value: int) -> None:
    assert getattr(hvd, name) == getattr(mpi_ops, name) == getattr(mpi_ops._basics, name) == value
    assert type(getattr(hvd, name)) is int


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (
            "torch.mpi_ops",
            "HorovodAllreduce HorovodGroupedAllreduce HorovodAllgather HorovodGroupedAllgather HorovodBroadcast "
            "HorovodAlltoall HorovodReducescatter HorovodGroupedReducescatter HorovodBasics "
            "handle_average_backwards_compatibility is_homogeneous _basics",
        ),
        ("torch.optimizer", "DistributedOptimizer"),
        (
            "torch.functions",
            "allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters",
        ),
        ("torch.compression", "Compression Compressor NoneCompressor FP16Compressor"),
        ("torch.elastic", "run TorchState ElasticSampler"),
        (
            "torch.elastic.state",
            "TorchState StateHandler ModelStateHandler OptimizerStateHandler SamplerStateHandler "
            "get_handler_registry set_handler_registry",
        ),
        ("torch.elastic.sampler", "ElasticSampler"),
        ("torch.sync_batch_norm", "SyncBatchNorm"),
        ("common.process_sets", "ProcessSet global_process_set add_process_set remove_process_set"),
        (
            "common.exceptions",
            "HorovodInternalError HostsUpdatedInterrupt HorovodVersionMismatchError get_version_mismatch_message",
        ),
        ("common.elastic", "State ObjectState run_fn notification_manager"),
        ("common.basics", "HorovodBasics"),
        (
            "common.util",
            "env _cache extension_available gpu_available gloo_built mpi_built nccl_built ddl_built ccl_built "
            "num_rank_is_power_2 split_list is_iterable check_extension get_ext_suffix check_installed_version "
            "is_version_greater_equal_than",
        ),
    ],
)
def test_modules_where_scripts_look(module: str, names: str) -> None:
    found = importlib.import_module(f"ringtune.{module}")
    assert [name for name in names.split() if not hasattr(found, name)] == []


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (hvd.HorovodInternalError, RuntimeError),
        (HostsUpdatedInterrupt, RuntimeError),
        (HorovodVersionMismatchError, ImportError),
    ],
)
def test_classes_of_errors(error: type[Exception], bases: type[Exception]) -> None:
    assert issubclass(error, bases)


def test_arguments_of_errors() -> None:
    assert HostsUpdatedInterrupt(True).skip_sync is True
    mismatch = HorovodVersionMismatchError("torch", "2", "1")
    assert (mismatch.name, mismatch.version, mismatch.installed_version) == ("torch", "2", "1")
    assert str(mismatch) == get_version_mismatch_message("torch", "2", "1")


BEFORE_INIT = ["rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "mpi_threads_supported"]


@pytest.mark.parametrize("name", BEFORE_INIT)
def test_before_init_the_basics_raise_value_error(name: str) -> None:
    with pytest.raises(ValueError, match=r"has not been initialized; use hvd\.init"):
        getattr(hvd, name)()
    with pytest.raises(ValueError, match="has not been initialized"):
        getattr(mpi_ops._basics, name)()


@pytest.mark.parametrize(
    ("name", "arguments"), [("start_timeline", ("t.json",)), ("stop_timeline", ())], ids=["start", "stop"]
)
def test_before_init_timelines_raise_value_error(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="has not been initialized"):
        getattr(hvd, name)(*arguments)


TENSOR_CALLS: dict[str, tuple[Any, ...]] = {
    "allreduce_async": (torch.ones(1),),
    "grouped_allreduce_async": ([torch.ones(1)],),
    "allgather_async": (torch.ones(1),),
    "broadcast_async": (torch.ones(1), 0),
    "alltoall_async": (torch.ones(1),),
    "reducescatter_async": (torch.ones(1),),
    "barrier": (),
    "join": (),
}


@pytest.mark.parametrize(("name", "arguments"), TENSOR_CALLS.items(), ids=list(TENSOR_CALLS))
def test_before_init_collectives_raise_internal_errors(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(hvd.HorovodInternalError, match=r"has not been initialized; use hvd\.init"):
        getattr(hvd, name)(*arguments)


@pytest.mark.parametrize("name", ["mpi_built", "gloo_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built"])
def test_what_is_built_is_known_before_init(name: str) -> None:
    assert getattr(hvd, name)() is getattr(mpi_ops._basics, name)()
    assert isinstance(getattr(hvd, name)(), bool)


def test_whether_there_is_a_gpu_is_what_torch_says() -> None:
    assert hvd._check_has_gpu() is torch.cuda.is_available()


def test_initialized_follows_init_and_shutdown(opened: Open) -> None:
    assert hvd.is_initialized() is False
    opened(2)
    assert hvd.is_initialized() is True
    hvd.shutdown()
    hvd.shutdown()
    assert hvd.is_initialized() is False


def test_the_sets_by_number(opened: Open) -> None:
    opened(2)
    assert mpi_ops._basics._get_process_set_ids_and_ranks() == {0: [0, 1]}


@pytest.mark.parametrize(
    ("op", "average", "expected"), [(None, None, hvd.Average), (hvd.Sum, None, hvd.Sum), (hvd.Min, None, hvd.Min)]
)
def test_backwards_compatibility_of_average(op: int | None, average: bool | None, expected: int) -> None:
    assert mpi_ops.handle_average_backwards_compatibility(op, average) == expected


@pytest.mark.parametrize(("average", "expected"), [(True, hvd.Average), (False, hvd.Sum)])
def test_average_is_deprecated(average: bool, expected: int) -> None:
    with pytest.warns(DeprecationWarning, match="average"):
        assert mpi_ops.handle_average_backwards_compatibility(None, average) == expected


def test_op_and_average_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="supersedes average"):
        mpi_ops.handle_average_backwards_compatibility(hvd.Sum, True)


@pytest.mark.parametrize(
    ("compressor", "dtype", "travels"),
    [
        (hvd.Compression.none, torch.float32, torch.float32),
        (hvd.Compression.fp16, torch.float32, torch.float16),
        (hvd.Compression.fp16, torch.float64, torch.float16),
        (hvd.Compression.fp16, torch.int32, torch.int32),
    ],
)
def test_compressors(compressor: type[Compressor], dtype: torch.dtype, travels: torch.dtype) -> None:
    small, context = compressor.compress(torch.ones(3, dtype=dtype))
    assert small.dtype is travels
    assert compressor.decompress(small, context).dtype is dtype


def test_compressors_by_name() -> None:
    assert hvd.Compression.none is NoneCompressor
    assert hvd.Compression.fp16 is FP16Compressor
    assert issubclass(FP16Compressor, Compressor) and issubclass(NoneCompressor, Compressor)


@pytest.mark.parametrize("ranks", [[1, 0], (1, 0), {0, 1}, range(2)], ids=["list", "tuple", "set", "range"])
def test_ranks_of_a_process_set(ranks: Any) -> None:
    found = hvd.ProcessSet(ranks)
    assert (found.ranks, found.process_set_id, found.mpi_comm) == ([0, 1], None, None)
    assert (found.size(), found.rank()) == (None, None)
    assert str(found) == "ProcessSet(process_set_id=None, ranks=[0, 1], mpi_comm=None)"


@pytest.mark.parametrize("ranks", [["a"], [0.5], 3])
def test_ranks_that_are_none(ranks: Any) -> None:
    with pytest.raises(ValueError, match="expected integer ranks"):
        hvd.ProcessSet(ranks)


def test_the_global_set(opened: Open) -> None:
    assert (hvd.global_process_set.process_set_id, hvd.global_process_set.ranks) == (0, None)
    opened(2)
    assert str(hvd.global_process_set) == "ProcessSet(process_set_id=0, ranks=[0, 1], mpi_comm=None)"
    assert (hvd.global_process_set.size(), hvd.global_process_set.included()) == (2, True)


@pytest.mark.parametrize("name", ["allreduce_async", "allgather_async", "alltoall_async", "reducescatter_async"])
def test_an_unregistered_set_is_a_type_error(name: str, opened: Open) -> None:
    opened(2)
    with pytest.raises(TypeError):
        getattr(hvd, name)(torch.ones(2), process_set=hvd.ProcessSet([0]))


def test_sets_cannot_be_added_without_asking_for_it(opened: Open) -> None:
    opened(2)
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
        hvd.add_process_set([0])


@pytest.mark.parametrize("process_set", [hvd.global_process_set, hvd.ProcessSet([0])], ids=["global", "unregistered"])
def test_sets_that_cannot_be_removed(process_set: hvd.ProcessSet, opened: Open) -> None:
    opened(2)
    assert hvd.remove_process_set(process_set) is False


@pytest.mark.parametrize("handle", [0, 7, -1])
def test_an_unknown_handle(handle: int, opened: Open) -> None:
    opened(2)
    with pytest.raises(ValueError, match=f"Handle {handle} was not created or has been cleared"):
        hvd.poll(handle)
    # Horovod returns None in silence.
    with pytest.raises(ValueError, match=f"Handle {handle} was not created or has been cleared"):
        hvd.synchronize(handle)


@pytest.mark.parametrize("params", [iter([]), 3, "text"], ids=["generator", "number", "text"])
def test_parameters_that_cannot_be_broadcast(params: Any, opened: Open) -> None:
    opened(2)
    with pytest.raises(ValueError, match="invalid params of type"):
        hvd.broadcast_parameters(params, root_rank=0)


def test_the_wrapped_optimizer_is_one_of_its_class(opened: Open) -> None:
    opened(2)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    assert isinstance(wrapped, torch.optim.SGD)
    assert type(wrapped).__name__ == "SGD"
    assert wrapped.param_groups is optimizer.param_groups or wrapped.param_groups == optimizer.param_groups
    assert set(wrapped._parameter_names.values()) == {"weight", "bias"}
    methods = "step synchronize skip_synchronize zero_grad set_backward_passes_per_step load_state_dict find_duplicates"
    assert [name for name in methods.split() if not callable(getattr(wrapped, name, None))] == []


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            hvd.elastic.TorchState,
            "save restore sync commit check_host_updates reset on_reset register_reset_callbacks on_hosts_updated",
        ),
        (
            hvd.elastic.ElasticSampler,
            "set_epoch record_batch state_dict load_state_dict reset",
        ),
        (elastic.ObjectState, "save restore sync commit"),
        (elastic.State, "save restore sync commit"),
    ],
)
def test_methods_of_elastic_states(kind: type, names: str) -> None:
    assert [name for name in names.split() if not callable(getattr(kind, name, None))] == []


def test_attributes_of_the_sampler() -> None:
    sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)
    names = "epoch processed_num num_replicas rank remaining_indices num_samples total_size"
    assert [name for name in names.split() if not hasattr(sampler, name)] == []
    assert set(sampler.state_dict()) == {"epoch", "processed_num"}


def test_what_happened_to_hosts() -> None:
    import ringtune.as_horovod  # noqa: F401 - makes the name below

    result = importlib.import_module("horovod.runner.elastic.worker").HostUpdateResult
    assert [result(value).name for value in range(4)] == ["no_update", "removed", "added", "mixed"]

"""Forms of the collectives over a fake world: names, defaults, returns, errors. Values over real ranks: tests/jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ringtune.torch as hvd
from ringtune.errors import InvalidArgument, NotInitialized
from ringtune.session import Session
from ringtune.torch.handles import DTYPES
from tests.core.fake_native import fake_of

Open = Callable[..., Session]

SYNCHRONOUS = ("allreduce", "allreduce_", "broadcast", "broadcast_", "allgather")
ROOTED = ("broadcast", "broadcast_", "broadcast_async", "broadcast_async_")
ASYNCHRONOUS = ("allreduce_async", "allreduce_async_", "broadcast_async", "broadcast_async_", "allgather_async")


def call(form: str, tensor: torch.Tensor, **options: Any) -> Any:
    """Call a form of a collective and wait if it only starts it."""
    if form in ROOTED:
        options["root_rank"] = 0
    result = getattr(hvd, form)(tensor, **options)
    return hvd.synchronize(result) if "async" in form else result


FORMS = [*SYNCHRONOUS, *ASYNCHRONOUS]
IN_PLACE = [form for form in FORMS if form.endswith("_")]


@pytest.mark.parametrize("name", hvd.__all__)
def test_every_exported_name_is_there(name: str) -> None:
    assert hasattr(hvd, name)


@pytest.mark.parametrize("form", FORMS)
def test_before_init_is_a_runtime_failure(form: str) -> None:
    with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
        call(form, torch.ones(1))


@pytest.mark.parametrize(
    "name", ["rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "start_timeline"]
)
def test_basics_before_init_are_value_errors(name: str) -> None:
    with pytest.raises(ValueError, match=r"Horovod has not been initialized; use hvd.init\(\)"):
        getattr(hvd, name)(*(["x"] if name == "start_timeline" else []))


def test_basics(opened: Open) -> None:
    opened(3)
    assert hvd.is_initialized() and hvd.is_homogeneous()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 3, 0, 3)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    hvd.shutdown()
    assert not hvd.is_initialized()


def test_what_is_built() -> None:
    assert not (hvd.mpi_built() or hvd.ddl_built() or hvd.ccl_built() or hvd.rocm_built() or hvd.mpi_enabled())
    assert hvd.gloo_built() is True, "what scripts ask to know that no MPI is needed"


def test_nccl_version_is_a_number(fake: None) -> None:
    assert hvd.nccl_built() == 0 and isinstance(hvd.nccl_built(), int) and not hvd.cuda_built()


def test_mpi_threads_is_a_value_error(opened: Open) -> None:
    opened()
    with pytest.raises(ValueError, match="MPI is not enabled"):
        hvd.mpi_threads_supported()


def test_init_takes_a_list_of_all_ranks(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "0")  # so that it is put back: init sets it
    hvd.init([0], process_sets="dynamic")
    assert hvd.size() == 1
    hvd.init()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"comm": [0, 1]}, NotImplementedError),
        ({"comm": object()}, NotImplementedError),
        ({"process_sets": [[0]]}, ValueError),
        ({"process_sets": "static"}, ValueError),
    ],
)
def test_init_with_what_makes_no_sense(options: dict[str, Any], error: type[Exception], fake: None) -> None:
    with pytest.raises(error):
        hvd.init(**options)
    assert not hvd.is_initialized()


@pytest.mark.parametrize("form", FORMS)
def test_unnamed_operations_are_counted_per_kind(form: str, opened: Open) -> None:
    now = opened()
    kind = form.removesuffix("_").removesuffix("_async")
    other = "allgather" if kind == "broadcast" else "broadcast"
    for one in (other, form, other, form):
        call(one, torch.ones(1))
    assert [made[1] for made in fake_of(now).calls] == [
        f"{one}.noname.{count}" for count in (1, 2) for one in (other, kind)
    ]


def test_counting_begins_anew_after_shutdown(opened: Open) -> None:
    opened()
    hvd.allreduce(torch.ones(1))
    hvd.shutdown()
    hvd.init()
    hvd.allreduce(torch.ones(1))
    now = Session.current()
    assert now is not None and fake_of(now).calls[0][1] == "allreduce.noname.1"


@pytest.mark.parametrize("form", FORMS)
def test_a_name_travels_with_its_kind(form: str, opened: Open) -> None:
    now = opened()
    call(form, torch.ones(1), name="w")
    assert fake_of(now).calls[0][1] == form.removesuffix("_").removesuffix("_async") + ".w"


@pytest.mark.parametrize("form", FORMS)
def test_other_devices_are_refused(form: str, opened: Open) -> None:
    opened()
    with pytest.raises(InvalidArgument, match="is on meta: only tensors on the CPU and on CUDA devices are reduced"):
        call(form, torch.ones(2, device="meta"))


@pytest.mark.parametrize("form", ["allreduce", "allreduce_", "allgather", "broadcast"])
def test_sparse_tensors_are_refused(form: str, opened: Open) -> None:
    opened()
    with pytest.raises(InvalidArgument, match="sparse_allreduce_async"):
        call(form, torch.eye(2).to_sparse())


@pytest.mark.parametrize("form", FORMS)
def test_non_contiguous_tensors_are_taken(form: str, opened: Open) -> None:
    opened()
    base = torch.arange(12.0).view(3, 4)
    tensor = base.t()
    result = call(form, tensor)
    assert torch.equal(result, torch.arange(12.0).view(3, 4).t())
    assert (result is tensor) == (form in IN_PLACE)


@pytest.mark.parametrize("form", IN_PLACE)
def test_in_place_writes_back_through_views(form: str, opened: Open) -> None:
    opened()
    base = torch.zeros(4, 4)
    view = base[:, 1]
    options = {"op": hvd.Sum, "postscale_factor": 3.0} if "allreduce" in form else {}
    view += 1
    call(form, view, **options)
    expected = torch.zeros(4, 4)
    expected[:, 1] = 3.0 if options else 1.0
    assert torch.equal(base, expected)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 3)])
@pytest.mark.parametrize("form", [form for form in FORMS if "gather" not in form])
def test_shapes(form: str, shape: tuple[int, ...], opened: Open) -> None:
    opened()
    assert call(form, torch.ones(shape)).shape == shape


def test_average_and_factors_reach_the_runtime(opened: Open) -> None:
    now = opened()
    hvd.allreduce(torch.ones(2), name="a", op=hvd.Max, prescale_factor=2, postscale_factor=0.5)
    assert fake_of(now).calls[-1][4:7] == (hvd.Max, 2.0, 0.5)
    hvd.allreduce(torch.ones(2), name="b")
    assert fake_of(now).calls[-1][4:7] == (hvd.Average, 1.0, 1.0)


@pytest.mark.parametrize(("average", "op"), [(True, 0), (False, 1)])
def test_average_is_deprecated(average: bool, op: int, opened: Open) -> None:
    now = opened()
    with pytest.warns(DeprecationWarning, match="replaced with `op`"):
        hvd.allreduce(torch.ones(1), average=average)
    assert fake_of(now).calls[-1][4] == op


@pytest.mark.parametrize("form", ["allreduce", "allreduce_", "allreduce_async", "allreduce_async_"])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"average": True, "op": 1}, ValueError, "supersedes average"),
        ({"op": 9}, ValueError, "op=9: expected one of Average"),
        ({"op": hvd.Adasum}, NotImplementedError, "non-power of 2 ranks"),
        ({"process_set": hvd.ProcessSet([0])}, TypeError, "is not registered"),
    ],
)
def test_bad_operations(form: str, options: dict[str, Any], error: type[Exception], message: str, opened: Open) -> None:
    opened(3)
    with pytest.raises(error, match=message):
        getattr(hvd, form)(torch.ones(1), **options)


@pytest.mark.parametrize("form", ROOTED)
@pytest.mark.parametrize("root", [-1, 3])
def test_bad_roots(form: str, root: int, opened: Open) -> None:
    opened(3)
    with pytest.raises(ValueError, match=f"broadcast received invalid root rank {root} for provided process set"):
        getattr(hvd, form)(torch.ones(1), root_rank=root)


def test_the_global_set(opened: Open) -> None:
    assert hvd.global_process_set.ranks is None and hvd.global_process_set.included() is None
    opened(2)
    assert (hvd.global_process_set.size(), hvd.global_process_set.rank()) == (2, 0)
    assert str(hvd.global_process_set) == "ProcessSet(process_set_id=0, ranks=[0, 1], mpi_comm=None)"


@pytest.mark.parametrize("handle", [0, 77])
@pytest.mark.parametrize("function", ["poll", "synchronize"])
def test_unknown_handles(function: str, handle: int, opened: Open) -> None:
    opened()
    with pytest.raises(ValueError, match=f"Handle {handle} was not created or has been cleared"):
        getattr(hvd, function)(handle)


def test_a_handle_serves_once(opened: Open) -> None:
    now = opened()
    handle = hvd.allreduce_async(torch.ones(1))
    assert isinstance(handle, int) and hvd.poll(handle)
    hvd.synchronize(handle)
    with pytest.raises(ValueError, match="has been cleared"):
        hvd.synchronize(handle)
    assert fake_of(now).open_tickets == 0


def test_a_failed_operation_is_raised_once_and_forgotten(opened: Open) -> None:
    now = opened()
    fake_of(now).failing.add("allreduce.w")
    handle = hvd.allreduce_async(torch.ones(1), name="w")
    with pytest.raises(hvd.HorovodInternalError, match=r"tensor 'allreduce.w': ranks disagree"):
        hvd.synchronize(handle)
    with pytest.raises(ValueError, match="has been cleared"):
        hvd.synchronize(handle)
    assert fake_of(now).open_tickets == 0


def test_an_interrupted_wait_can_be_taken_up_again(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    now = opened()
    handle = hvd.allreduce_async(torch.ones(1))
    real = fake_of(now).wait

    def interrupt(ticket: int, timeout_ns: int) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(fake_of(now), "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        hvd.synchronize(handle)
    monkeypatch.setattr(fake_of(now), "wait", real)
    assert torch.equal(hvd.synchronize(handle), torch.ones(1))


def test_handles_are_forgotten_at_shutdown(opened: Open) -> None:
    opened()
    handle = hvd.allreduce_async(torch.ones(1))
    hvd.shutdown()
    with pytest.raises(ValueError, match="has been cleared"):
        hvd.synchronize(handle)


@pytest.mark.parametrize(
    ("form", "kind"), [("grouped_allreduce", list), ("grouped_allreduce_", tuple), ("grouped_allgather", tuple)]
)
def test_groups_return(form: str, kind: type, opened: Open) -> None:
    now = opened(2)
    tensors = [torch.ones(2), torch.full((3, 1), 2, dtype=torch.int64)]
    results = getattr(hvd, form)(tensors, name="g")
    assert type(results) is kind and [one.dtype for one in results] == [torch.float32, torch.int64]
    base = form.removesuffix("_")
    assert [made[1] for made in fake_of(now).calls] == [f"{base}.g_1of2", f"{base}.g_2of2"]
    if base == "grouped_allreduce":
        assert {made[-2:] for made in fake_of(now).calls} == {("grouped_allreduce.g", 2)}
    assert fake_of(now).open_tickets == 0


@pytest.mark.parametrize("form", ["grouped_allreduce_async", "grouped_allreduce_async_", "grouped_allgather_async"])
def test_a_group_has_one_handle(form: str, opened: Open) -> None:
    opened()
    handle = getattr(hvd, form)([torch.ones(1), torch.zeros(2)])
    assert isinstance(handle, int) and hvd.poll(handle)
    assert [len(one) for one in hvd.synchronize(handle)] == [1, 2]


@pytest.mark.parametrize("form", ["grouped_allreduce", "grouped_allreduce_", "grouped_allgather"])
def test_an_empty_group_is_refused(form: str, opened: Open) -> None:
    opened()
    with pytest.raises(ValueError, match="got no tensors"):
        getattr(hvd, form)([])


def test_a_group_with_a_bad_member_submits_nothing(opened: Open) -> None:
    now = opened()
    with pytest.raises(ValueError, match="not reduced"):
        hvd.grouped_allreduce([torch.ones(1), torch.ones(1, dtype=torch.complex64)])
    assert fake_of(now).calls == []


def test_allgather_needs_a_dimension(opened: Open) -> None:
    opened()
    with pytest.raises(IndexError, match="without dimension"):
        hvd.allgather(torch.tensor(1.0))
    with pytest.raises(hvd.HorovodInternalError, match="no dimension"):
        hvd.allgather_async(torch.tensor(1.0))


@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@pytest.mark.parametrize("shape", [(0,), (1, 3), (2, 0), (3, 2)])
def test_allgather_of_shapes_and_dtypes(shape: tuple[int, ...], dtype: torch.dtype, opened: Open) -> None:
    opened(2)
    tensor = torch.ones(shape, dtype=dtype)
    result = hvd.allgather(tensor)
    assert torch.equal(result, torch.cat([tensor, tensor])) and result.dtype is dtype


def test_a_sparse_tensor_travels_as_its_indices_and_values(opened: Open) -> None:
    now = opened(2)
    wait = hvd.sparse_allreduce_async(torch.eye(3).to_sparse(), "s", hvd.Sum)
    assert [made[:2] for made in fake_of(now).calls] == [
        ("allgather", "allgather.s.indices"), ("allgather", "allgather.s.values"),
    ]  # fmt: skip
    result = wait()
    assert result.is_sparse and not result.is_coalesced() and result._nnz() == 6


def test_sparse_allreduce(opened: Open) -> None:
    opened(2)
    tensor = torch.sparse_coo_tensor([[0, 2]], [1.0, 3.0], (4,), check_invariants=True)
    assert torch.equal(hvd.sparse_allreduce_async(tensor, "s", hvd.Sum)().to_dense(), torch.tensor([2.0, 0, 6, 0]))
    assert torch.equal(hvd.sparse_allreduce_async(tensor, "s", hvd.Average)().to_dense(), torch.tensor([1.0, 0, 3, 0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32], ids=str)
@pytest.mark.parametrize("name", ["none", "fp16", "bf16"])
def test_compression_returns_the_original_dtype(name: str, dtype: torch.dtype, opened: Open) -> None:
    now = opened()
    tensor = torch.tensor([1, 2]).to(dtype)
    result = hvd.allreduce(tensor, compression=getattr(hvd.Compression, name))
    assert result.dtype is dtype and torch.equal(result, tensor)
    small = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(name, dtype) if dtype.is_floating_point else dtype
    assert fake_of(now).calls[-1][3] == DTYPES[dtype] and fake_of(now).travelled[-1] == DTYPES[small]


@pytest.mark.parametrize("function", [hvd.allreduce, hvd.allgather, lambda t: hvd.broadcast(t, 0)])
def test_gradients_flow_through_expanded_gradients(function: Callable[[Any], torch.Tensor], opened: Open) -> None:
    opened()
    tensor = torch.ones(3, requires_grad=True)
    function(tensor * 2).sum().backward()  # type: ignore[no-untyped-call]
    assert tensor.grad is not None and torch.equal(tensor.grad, torch.full((3,), 2.0))


def test_gradients_flow_through_groups_and_compression(opened: Open) -> None:
    opened()
    one, two = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    reduced = hvd.grouped_allreduce([one, two], compression=hvd.Compression.fp16)
    sum(part.sum() for part in reduced).backward()  # type: ignore[union-attr]
    gathered = hvd.grouped_allgather([one, two])
    (gathered[0].sum() * 3 + gathered[1].sum()).backward()
    assert one.grad is not None and two.grad is not None
    assert torch.equal(one.grad, torch.full((2,), 4.0)) and torch.equal(two.grad, torch.full((3,), 2.0))


def test_gradient_of_an_allreduce_is_numerically_right(opened: Open) -> None:
    opened()
    tensor = torch.ones(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: hvd.allreduce(x), (tensor,))


def test_not_initialized_is_both_kinds_of_error() -> None:
    assert issubclass(NotInitialized, hvd.HorovodInternalError) and issubclass(NotInitialized, ValueError)

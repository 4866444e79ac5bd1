"""Programs of JAX with collectives in them: gradients, batches, order, names, errors, memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="JAX is not installed; `make test-frameworks` makes an environment with it")

import jax

from tests.frameworks import cases as shared_cases
from tests.frameworks import jax_cases as cases
from tests.frameworks import jax_session_cases as session_cases
from tests.jobs.launching import Job, variables

GetJob = Callable[..., Job]
FRONT = "jax"
SIZES = pytest.mark.parametrize("size", [2, 3])


@SIZES
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_gradients(compiled: bool, size: int, job: GetJob) -> None:
    job(size).run(cases.gradients, compiled=compiled)


@SIZES
def test_forward_mode_and_gradients_of_gradients(size: int, job: GetJob) -> None:
    job(size).run(cases.higher)


@SIZES
def test_batches(size: int, job: GetJob) -> None:
    job(size).run(cases.batches)


@SIZES
def test_independent_collectives_run_in_one_order(size: int, job: GetJob) -> None:
    assert job(size).run(cases.order, rounds=20) == [20] * size


def test_ranks_that_trace_differently_agree_about_names(job: GetJob) -> None:
    assert job().run(cases.unlike_traces) == [[6.0], [6.0]]


def test_names_say_what_it_is_or_where(job: GetJob) -> None:
    for found in job().run(cases.names):
        assert found[:3] == ["allreduce.grads.dense.bias", "allreduce.grads.dense.kernel", "allreduce.grads.l.0"]
        assert found[3].startswith("broadcast.jax_cases.py:") and found[3].endswith(".float64[4]")
        assert found[4].startswith("allreduce.jax_cases.py:") and len(found) == 5


def test_programs_that_cannot_go_on_say_why_and_others_go_on(job: GetJob) -> None:
    expected = [
        "in jit" if not job().run(cases.uses_handler)[0] else "inside jit all ranks need equally many rows",
        "NotSupported: alltoall with splits inside jit",
        "InvalidArgument: 'alltoall",
        "InvalidArgument: allreduce: prescale_factor is a",
        "InvalidArgument: join() inside a program",
        "invalid root rank 7",
    ]
    for said in job().run(cases.failures_in_programs):
        assert [(words, one) for words, one in zip(expected, said, strict=True) if words not in one] == []


def test_memory_that_is_given_away(job: GetJob) -> None:
    job().run(cases.donated)


def test_programs_work_on_in_the_next_session(fresh: GetJob) -> None:
    for said in fresh().run(session_cases.once_more):
        assert len(said) == 2
        assert all("ringtune.NotInitialized: Horovod has not been initialized; use hvd.init()" in one for one in said)


def test_parameters_of_the_root(job: GetJob) -> None:
    job().run(cases.parameters)


def test_the_handler_is_in_use_where_custom_calls_have_an_order(job: GetJob) -> None:
    expected = tuple(int(part) for part in jax.lib.__version__.split(".")[:2]) >= (0, 5)
    assert job().run(cases.uses_handler) == [expected, expected]


def test_an_elastic_state_is_kept(job: GetJob) -> None:
    job().run(session_cases.elastic_state)


def test_a_lost_rank_is_recognised_in_the_elastic_loop(fresh: GetJob) -> None:
    job = fresh()
    survivor, dead = job.attempt(session_cases.lost)
    assert dead is None and survivor[0].startswith("PeerLost: "), survivor
    assert "rank 1" in survivor[0]


def test_errors_of_the_script_leave_the_elastic_loop_as_they_are(fresh: GetJob) -> None:
    for said in fresh(1).run(session_cases.other_errors):
        assert "of the script" in said and "HorovodInternalError" not in said


def test_where_the_handler_is_refused_the_way_leads_through_python(fresh: GetJob) -> None:
    for *said, failure in fresh().run(session_cases.through_python):
        assert len(said) == 1 and "inside jit, collectives go through Python" in said[0]
        assert failure.startswith("Mismatch: Mismatched ALLREDUCE tensor shapes")


@SIZES
def test_a_train_state_of_flax_trains_as_on_one_rank(size: int, job: GetJob) -> None:
    pytest.importorskip("flax", reason="flax is not installed here")
    for ours, alone in job(size).run(session_cases.flax_training):
        assert ours == pytest.approx(alone, rel=1e-9) and alone < 0.5


OFFSETS = """
#include "xla/ffi/api/c_api.h"
#include "frameworks/xla_ffi.h"
namespace own = ringtune::frameworks::xla;
#define SAME(ours, our_field, theirs, their_field) \\
  static_assert(offsetof(own::ours, our_field) == offsetof(theirs, their_field), #ours "." #our_field)
#define VALUE(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs), #theirs)
SAME(Extension, type, XLA_FFI_Extension_Base, type);
SAME(Extension, next, XLA_FFI_Extension_Base, next);
SAME(ApiVersion, major, XLA_FFI_Api_Version, major_version);
SAME(ApiVersion, minor, XLA_FFI_Api_Version, minor_version);
SAME(Metadata, api_version, XLA_FFI_Metadata, api_version);
SAME(Metadata, traits, XLA_FFI_Metadata, traits);
SAME(MetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);
SAME(Text, data, XLA_FFI_ByteSpan, ptr);
SAME(Text, size, XLA_FFI_ByteSpan, len);
SAME(Buffer, dtype, XLA_FFI_Buffer, dtype);
SAME(Buffer, data, XLA_FFI_Buffer, data);
SAME(Buffer, rank, XLA_FFI_Buffer, rank);
SAME(Buffer, dims, XLA_FFI_Buffer, dims);
SAME(Buffers, size, XLA_FFI_Args, size);
SAME(Buffers, types, XLA_FFI_Args, types);
SAME(Buffers, buffers, XLA_FFI_Args, args);
SAME(Buffers, buffers, XLA_FFI_Rets, rets);
SAME(Attributes, size, XLA_FFI_Attrs, size);
SAME(Attributes, types, XLA_FFI_Attrs, types);
SAME(Attributes, names, XLA_FFI_Attrs, names);
SAME(Attributes, values, XLA_FFI_Attrs, attrs);
SAME(ErrorCreateArgs, message, XLA_FFI_Error_Create_Args, message);
SAME(ErrorCreateArgs, code, XLA_FFI_Error_Create_Args, errc);
SAME(Api, create_error, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME(CallFrame, api, XLA_FFI_CallFrame, api);
SAME(CallFrame, stage, XLA_FFI_CallFrame, stage);
SAME(CallFrame, operands, XLA_FFI_CallFrame, args);
SAME(CallFrame, results, XLA_FFI_CallFrame, rets);
SAME(CallFrame, attributes, XLA_FFI_CallFrame, attrs);
static_assert(sizeof(own::Buffers) == sizeof(XLA_FFI_Args) && sizeof(own::Buffers) == sizeof(XLA_FFI_Rets));
static_assert(sizeof(own::Attributes) == sizeof(XLA_FFI_Attrs));
static_assert(own::kApiMajor == XLA_FFI_API_MAJOR && own::kApiMinor <= XLA_FFI_API_MINOR);
VALUE(own::ExtensionType::kMetadata, XLA_FFI_Extension_Metadata);
VALUE(own::AttributeType::kString, XLA_FFI_AttrType_STRING);
VALUE(own::Stage::kExecute, XLA_FFI_ExecutionStage_EXECUTE);
VALUE(own::ErrorCode::kInvalidArgument, XLA_FFI_Error_Code_INVALID_ARGUMENT);
VALUE(own::ErrorCode::kDeadlineExceeded, XLA_FFI_Error_Code_DEADLINE_EXCEEDED);
VALUE(own::ErrorCode::kFailedPrecondition, XLA_FFI_Error_Code_FAILED_PRECONDITION);
VALUE(own::ErrorCode::kAborted, XLA_FFI_Error_Code_ABORTED);
VALUE(own::ErrorCode::kInternal, XLA_FFI_Error_Code_INTERNAL);
VALUE(own::ErrorCode::kUnavailable, XLA_FFI_Error_Code_UNAVAILABLE);
VALUE(own::DataType::kPred, XLA_FFI_DataType_PRED);
VALUE(own::DataType::kS8, XLA_FFI_DataType_S8);
VALUE(own::DataType::kS16, XLA_FFI_DataType_S16);
VALUE(own::DataType::kS32, XLA_FFI_DataType_S32);
VALUE(own::DataType::kS64, XLA_FFI_DataType_S64);
VALUE(own::DataType::kU8, XLA_FFI_DataType_U8);
VALUE(own::DataType::kU16, XLA_FFI_DataType_U16);
VALUE(own::DataType::kU32, XLA_FFI_DataType_U32);
VALUE(own::DataType::kU64, XLA_FFI_DataType_U64);
VALUE(own::DataType::kF16, XLA_FFI_DataType_F16);
VALUE(own::DataType::kF32, XLA_FFI_DataType_F32);
VALUE(own::DataType::kF64, XLA_FFI_DataType_F64);
VALUE(own::DataType::kC64, XLA_FFI_DataType_C64);
VALUE(own::DataType::kBF16, XLA_FFI_DataType_BF16);
VALUE(own::DataType::kToken, XLA_FFI_DataType_TOKEN);
VALUE(own::DataType::kC128, XLA_FFI_DataType_C128);
"""


def test_own_declarations_are_those_of_jaxlibs_headers(tmp_path: Path, require_tool: Callable[[str], str]) -> None:
    try:
        from jax.ffi import include_dir
    except ImportError:
        from jax.extend.ffi import include_dir
    source = tmp_path / "offsets.cc"
    source.write_text(OFFSETS, encoding="utf-8")
    native = Path(__file__).parents[2] / "native"
    command = [require_tool("compiler"), "-std=c++20", "-fsyntax-only", f"-I{include_dir()}", f"-I{native}"]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_several_devices_of_a_process(tmp_path: Path) -> None:
    """Their arrays are reduced; programs that span them are refused in words, and the job goes on."""
    (tmp_path / "ranks").mkdir()
    environ = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    with Job(2, tmp_path / "ranks", {**variables(2), **environ}) as there:
        there.run(shared_cases.open_session, front=FRONT)
        for by_jit, by_pmap in there.run(session_cases.several_devices):
            assert "whose programs have one device" in by_jit
            # Where jit does not stand behind pmap, JAX itself refuses it.
            assert "whose programs have one device" in by_pmap or "not supported in `pmap`" in by_pmap


def test_importing_starts_nothing() -> None:
    code = (
        "import sys, ringtune.jax, jax\n"
        "assert 'torch' not in sys.modules and 'ringtune._native' not in sys.modules\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mark", [True, False], ids=["by the transformation", "where operations repeat"])
def test_steps_end(mark: bool, fresh: GetJob) -> None:
    job = fresh()
    if not mark and not job.run(cases.uses_handler)[0]:
        pytest.skip("collectives that go through Python belong to no thread whose operations are watched")
    for found in job.run(session_cases.steps_of_programs, mark=mark, count=60):
        assert found["detected"] == (0 if mark else found["steps"])
        # Fewer are detected: the first ones teach what repeats, and short ones are taken together.
        assert found["steps"] == 60 if mark else found["steps"] >= 1
        assert found["bytes"] > 8000

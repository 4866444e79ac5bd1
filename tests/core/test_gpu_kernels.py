from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ringtune.errors import DeviceError, InvalidArgument
from ringtune.gpu import kernels, nvrtc
from tests import fake_cuda

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
OPS = ("sum", "min", "max", "product")
ALL = {
    "copy_bytes", "dots_total",
    *(f"{what}_{name}" for what in ("dots", "adasum") for name in FLOATS),
    *(f"scale_{name}" for name in INTEGERS),
    *(f"cast_{a}_{b}" for a in FLOATS for b in FLOATS),
    *(f"reduce_{name}_{op}" for name in (*FLOATS, *INTEGERS, "bool") for op in OPS),
}  # fmt: skip
# As the runtime numbers them.
NUMBERS = dict(zip((*INTEGERS, *FLOATS, "bool"), range(10), strict=True))


class Counting:
    """A compiler that only counts."""

    def __init__(self, version: str = "12.0") -> None:
        self.version, self.calls = version, 0

    def architectures(self) -> list[int]:
        return [70, 80, 86, 90]

    def compile(self, sources: Mapping[str, str], main: str, architecture: int, *extra: str) -> bytes:
        self.calls += 1
        return f"{main} for {architecture}".encode()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield tmp_path / "ringtune" / "kernels"


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [*(pytest.param(each, marks=pytest.mark.long) for each in (70, 80, 90)), 100])
def test_every_kernel_compiles_and_fits_into_registers(architecture: int) -> None:
    compiler = nvrtc.find()
    if architecture not in compiler.architectures():
        pytest.skip(f"NVRTC {compiler.version} knows no sm_{architecture}")
    assert isinstance(compiler, nvrtc.Nvrtc)
    cubin = compiler.compile(kernels.sources(), kernels.MAIN, architecture, "--ptxas-options=-v")
    assert cubin.startswith(b"\x7fELF")
    reports = re.findall(
        r"Compiling entry function '(\w+)' for 'sm_(\d+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
        r"(\d+) bytes spill loads.*?Used (\d+) registers",
        compiler.log,
        re.DOTALL,
    )
    assert {name for name, *_ in reports} == ALL
    for name, target, *used in reports:
        stack, stores, loads, registers = map(int, used)
        # Four elements of 8 bits in a register want more of them than ptxas gives with some architectures.
        spilled, most = (48, 80) if re.match(r"reduce_(u?int8|bool)_", name) else (0, 64)
        assert int(target) == architecture
        assert max(stack, stores, loads) <= spilled, name
        assert registers <= most, f"{name}: 64 let four blocks of 256 threads run on a processor, 80 three"
        assert f".text.{name}\0".encode() in cubin


def test_an_error_in_a_source_is_told() -> None:
    with pytest.raises(DeviceError, match=r"ringtune.cu does not compile for sm_90 with NVRTC 1\d.*\n(.|\n)*a_mistake"):
        nvrtc.find().compile({"ringtune.cu": "__global__ void kernel() { a_mistake(); }"}, "ringtune.cu", 90)


def test_a_cubin_is_compiled_once(cache: Path) -> None:
    compiler = Counting()
    assert kernels.cubin_for(90, compiler) == kernels.cubin_for(90, compiler) == b"ringtune.cu for 90"
    assert compiler.calls == 1
    assert len(list(cache.iterdir())) == 1


def test_another_version_or_architecture_is_compiled_anew(cache: Path) -> None:
    compiler, newer = Counting(), Counting("12.1")
    kernels.cubin_for(90, compiler)
    kernels.cubin_for(80, compiler)
    kernels.cubin_for(90, newer)
    assert (compiler.calls, newer.calls) == (2, 1)
    assert len(list(cache.iterdir())) == 3


def test_other_sources_are_compiled_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Counting()
    kernels.cubin_for(90, compiler)
    changed = {**kernels.sources(), "elements.cuh": "// changed"}
    monkeypatch.setattr(kernels, "sources", lambda: changed)
    kernels.cubin_for(90, compiler)
    assert compiler.calls == 2


@pytest.mark.parametrize("damage", [b"", b"short", bytes(100)])
def test_a_damaged_file_is_compiled_anew(damage: bytes, cache: Path) -> None:
    compiler = Counting()
    kernels.cubin_for(90, compiler)
    (file,) = cache.iterdir()
    file.write_bytes(damage)
    assert kernels.cubin_for(90, compiler) == kernels.cubin_for(90, compiler) == b"ringtune.cu for 90"
    assert compiler.calls == 2


def test_a_folder_that_cannot_be_written_costs_the_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kernels.cubin_for(90, Counting()) == b"ringtune.cu for 90"
    assert "compiled at every start" in caplog.text


@pytest.mark.parametrize(("capability", "expected"), [(70, 70), (75, 70), (86, 86), (89, 86), (90, 90)])
def test_a_gpu_takes_code_of_its_generation(capability: int, expected: int) -> None:
    assert kernels.architecture_for(capability, [70, 80, 86, 90]) == expected


@pytest.mark.parametrize("capability", [60, 100, 120])
def test_a_gpu_that_the_compiler_does_not_know_is_refused(capability: int) -> None:
    with pytest.raises(
        DeviceError, match=f"compute capability {capability / 10}, only 70, 80, 86, 90: install another"
    ):
        kernels.architecture_for(capability, [70, 80, 86, 90])


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_candidates", lambda: iter(["libno-such-nvrtc.so.1", "libc.so.6"]))
    monkeypatch.setattr(nvrtc, "import_module", lambda name: __import__("no_such_" + name))
    with pytest.raises(DeviceError, match=r"pip install nvidia-cuda-nvrtc.*libno-such-nvrtc.*libc.so.6: .*cupy: "):
        nvrtc.find()


@pytest.fixture
def gpu() -> fake_cuda.Gpu:
    return fake_cuda.Gpu()


@pytest.fixture
def loaded(gpu: fake_cuda.Gpu, cache: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """The kernels on the fake's GPU, which has its own and takes any file for a cubin."""

    class Fitting(Counting):
        def compile(self, *arguments: object, **options: object) -> bytes:
            return b"\x7fELF" + bytes(100)

    monkeypatch.setattr(nvrtc, "find", Fitting)
    return kernels.load(0, str(gpu.path))


def test_many_tensors_are_packed_and_unpacked_in_one_launch_each(gpu: fake_cuda.Gpu, loaded: object) -> None:
    stream = gpu.stream()
    random = np.random.default_rng(1)
    counts = [1, 70_001, 3, 512, 20_000, 64]
    values = [random.standard_normal(count).astype(np.float32) for count in counts]
    tensors = [gpu.array(each, stream) for each in values]
    buffer = gpu.array(np.zeros(sum(counts), np.uint16), stream)
    starts = np.cumsum([0, *counts[:-1]])
    places = [buffer.address + 2 * int(start) for start in starts]
    into = [(tensor.address, place, count) for tensor, place, count in zip(tensors, places, counts, strict=True)]
    pack = loaded.batch(into, NUMBERS["float32"], NUMBERS["bfloat16"], 0.5)  # type: ignore[attr-defined]
    back = [(place, tensor, count) for tensor, place, count in into]
    unpack = loaded.batch(back, NUMBERS["bfloat16"], NUMBERS["float32"], 4.0)  # type: ignore[attr-defined]
    launches = gpu.calls("cuLaunchKernel")
    pack.launch(stream)
    unpack.launch(stream)
    assert gpu.calls("cuLaunchKernel") - launches == 2
    packed = np.concatenate(values) * np.float32(0.5)
    packed = packed.astype(ml_dtypes.bfloat16)
    assert np.array_equal(buffer.values().view(ml_dtypes.bfloat16), packed)
    for tensor, part in zip(tensors, np.split(packed, starts[1:]), strict=True):
        assert np.array_equal(tensor.values(), part.astype(np.float32) * 4)


@pytest.mark.parametrize("op", range(4))
@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_reductions_are_those_of_numpy(name: str, op: int, gpu: fake_cuda.Gpu, loaded: object) -> None:
    stream = gpu.stream()
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    a, b = (np.random.default_rng(seed).integers(0, 100, 5001).astype(dtype) for seed in (1, 2))
    left, right = gpu.array(a.view(np.uint8), stream), gpu.array(b.view(np.uint8), stream)
    numbers = (left.address, left.address, right.address, 5001)
    loaded.reduce(numbers, NUMBERS[name], (1, 3, 4, 5)[op], stream)  # type: ignore[attr-defined]
    wide = (np.float32 if dtype.itemsize == 2 else dtype) if name in FLOATS else dtype
    together = (np.add, np.minimum, np.maximum, np.multiply)[op](a.astype(wide), b.astype(wide)).astype(dtype)
    assert np.array_equal(left.values().view(dtype), together)


def test_what_no_kernel_does_is_refused(loaded: object) -> None:
    with (
        pytest.raises(InvalidArgument, match=r"no kernel makes float32 of int32 times 1\.0"),
        kernels.native.translated(),
    ):
        loaded.batch([], NUMBERS["int32"], NUMBERS["float32"])  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgument, match="no kernel makes bool of bool"), kernels.native.translated():
        loaded.batch([], NUMBERS["bool"], NUMBERS["bool"], 0.5)  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgument, match="no kernel for Average"), kernels.native.translated():
        loaded.reduce((0, 0, 0, 1), NUMBERS["int32"], 0, 0)  # type: ignore[attr-defined]


def test_a_gpu_that_is_not_there_is_refused(gpu: fake_cuda.Gpu) -> None:
    with pytest.raises(DeviceError, match="there is no GPU 7: 2 are visible"):
        kernels.load(7, str(gpu.path))

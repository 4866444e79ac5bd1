"""Calls and kernels of a profile have the colour of what they are for."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from ringtune.dashboard.data.timeline import trace
from ringtune.dashboard.data.timeline.families import NONE, family_of
from ringtune.dashboard.data.timeline.index import Query, TimelineIndex
from ringtune.dashboard.data.timeline.shapes import Window
from ringtune.dashboard.figures import timeline as figures
from ringtune.dashboard.theme import FAMILIES, PHASES
from ringtune.timeline.cli import timeline
from tests.dashboard.test_timeline_sketch import boxes, sketch
from tests.timeline.helpers import write_json

NAMES = {
    "data": ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"],
    "collective": ["c10d::allreduce_", "nccl:all_reduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"],
    "optimizer": ["Optimizer.step#AdamW.step", "aten::_fused_adamw_", "multi_tensor_apply_kernel"],
    "matrix": [
        "aten::mm", "aten::addmm", "aten::_convolution", "aten::scaled_dot_product_attention", "ampere_sgemm_128x64_nn",
        "autograd::engine::evaluate_function: MmBackward0", "sm80_xmma_fprop_implicit_gemm", "flash_fwd_kernel",
    ],
    "layer": ["aten::native_batch_norm", "aten::layer_norm", "ReluBackward0", "cunn_SoftMaxForward", "aten::nll_loss"],
    "copy": ["aten::copy_", "aten::to", "aten::contiguous", "Memcpy HtoD (Pageable -> Device)"],
    "": ["aten::add_", "aten::normal_", "aten::convert", "aten::sum", "forward", "aten::comment", "aten::topk"],
}  # fmt: skip
MS = 1000


@pytest.mark.parametrize("family", NAMES)
def test_a_name_says_what_a_call_is_for(family: str) -> None:
    wanted = list(FAMILIES).index(family) if family else NONE
    assert {name: family_of(name) for name in NAMES[family]} == dict.fromkeys(NAMES[family], wanted)


def call(name: str, at_ms: float, ms: float, *, kernel: bool = False) -> dict[str, Any]:
    where = {"cat": "kernel", "tid": 7, "args": {"stream": 7}} if kernel else {"cat": "cpu_op", "tid": 1}
    return {"ph": "X", "name": name, "pid": 1, "ts": at_ms * MS, "dur": ms * MS, **where}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> TimelineIndex:
    """Ten steps of a convolution that calls another and a copy, its kernel, a sum; and then many small calls."""
    events = []
    for at in range(0, 1000, 100):
        events += [call("aten::conv2d", at, 60), call("aten::convolution", at + 1, 50), call("aten::copy_", at + 52, 5)]
        events += [call("sm80_xmma_fprop_implicit_gemm", at + 5, 60, kernel=True), call("aten::sum", at + 70, 20)]
    for number in range(3000):  # more than a window has room for: mostly copies, and as many sums that are short
        events += [call("aten::copy_", 2000 + number, 0.5), call("aten::sum", 2000.6 + number, 0.1)]
    folder = tmp_path_factory.mktemp("families")
    about = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "baseTimeNanoseconds": 1 << 60}
    write_json(folder / "rank0.json", {**about, "traceEvents": events})
    run = folder / "run"
    CliRunner().invoke(timeline, ["import", str(folder / "rank0.json"), "-o", str(run)], catch_exceptions=False)
    return trace.load(run, trace.sources(run))


def test_bars_have_the_colours_of_their_families(index: TimelineIndex) -> None:
    view = index.view(Query(Window(0, 1000e6)))
    drawn = {bars.name: (bars.marker.color, len(bars.x)) for bars in figures.timeline(index, view).data}
    other = PHASES["other"]
    assert {name: drawn[name] for name in ("Matrices", "Copies", "Other")} == {
        "Matrices": (FAMILIES["matrix"].color, 30),
        "Copies": (FAMILIES["copy"].color, 10),
        other.label: (other.color, 10),
    }
    assert "Kernel" not in drawn
    of_figure = sorted(bars.marker.color for bars in figures.timeline(index, view).data for _ in bars.x)
    assert sorted(box[0] for box in boxes(sketch(index, view, with_path=False).svg)) == of_figure


def test_a_block_has_the_colour_of_what_takes_most_of_its_time(index: TimelineIndex) -> None:
    view = index.view(Query(Window(2000e6, 5000e6)))
    assert view.spans == 6000 and (view.shapes.span < 0).all()
    drawn = {bars.name: len(bars.x) for bars in figures.timeline(index, view).data}
    assert drawn["Copies"] >= 0.9 * len(view.shapes)


def test_one_line_a_rank_shows_phases(index: TimelineIndex) -> None:
    drawn = {bars.name for bars in figures.timeline(index, index.view(Query(compact=True))).data}
    assert not drawn & {family.label for family in FAMILIES.values()}

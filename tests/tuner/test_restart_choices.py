"""What a session with restarts may try: variables, where they mean anything, names that are none."""

from __future__ import annotations

import pytest

from ringtune.errors import UsageError
from ringtune.launch import LaunchOptions
from ringtune.tuner.restarts.choices import CHOICES, Choice, Place, choices_for, may_carry, parse_choice
from ringtune.tuner.restarts.command import wishes_of
from ringtune.tuner.restarts.session import Run

NETWORK = {"RINGTUNE_SOCKETS_PER_PEER", "RINGTUNE_ALGORITHM_TABLE"}
NCCL = {one.variable for one in CHOICES if one.variable.startswith("NCCL_")} | {
    "RINGTUNE_GPU_DATA_PATH",
    "RINGTUNE_GPU_PART_BYTES",
}
DDP = {"RINGTUNE_BUCKET_CAP_MB", "RINGTUNE_DDP_FIRST_BUCKET_MB", "RINGTUNE_DDP_BUCKET_VIEW"}
MADE = dict.fromkeys(DDP, "")
FSDP = {"RINGTUNE_FSDP_RESHARD": "", "RINGTUNE_FSDP_PREFETCH": "0"}
LOADER = {"RINGTUNE_LOADER_WORKERS": "4"}
GLOO = "cpu:gloo,cuda:gloo"


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (Place(), set()),
        (Place(local=2), {"RINGTUNE_OVERLAP"}),
        (Place(hosts=2), NETWORK),
        (Place(hosts=2, lossy=True), NETWORK | {"RINGTUNE_COMPRESSION"}),
        (Place(local=2, lossy=True, made=MADE), {"RINGTUNE_OVERLAP"} | DDP),
        (Place(2, 2, lossy=True, backend="mpi", made=MADE), DDP),
        (Place(2, 1, nccl=True, backend="nccl"), {name for name in NCCL if name.startswith("NCCL_")}),
        (
            Place(local=2, threads=8, backend=GLOO, made={**MADE, "RINGTUNE_DDP_BUCKET_VIEW": "1"}),
            {"RINGTUNE_BUCKET_CAP_MB", "RINGTUNE_DDP_FIRST_BUCKET_MB", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"},
        ),
        (Place(2, 1, threads=8, backend=GLOO, made=FSDP | LOADER), {*FSDP, *LOADER, "OMP_NUM_THREADS"}),
        (Place(local=2, threads=8, backend=GLOO), set()),  # what computes there is not known
        (Place(2, 2), NETWORK | {"RINGTUNE_OVERLAP", "RINGTUNE_HIERARCHICAL_ALLREDUCE"}),
        (Place(2, 1, nccl=True), NETWORK | NCCL),
        (Place(1, 8, nccl=True), {"RINGTUNE_OVERLAP"} | NCCL - {"NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS"}),
    ],
)
def test_only_what_means_anything_is_tried(place: Place, expected: set[str]) -> None:
    assert {one.variable for one in choices_for(place, given=())} == expected


@pytest.mark.parametrize(
    ("build", "gpus", "expected"),
    [({}, False, False), ({"nccl": ""}, False, False), ({"nccl": "2.27.3"}, False, True), ({}, True, True)],
)
def test_nccl_may_carry_tensors_where_it_is_built_in_or_there_are_gpus(
    build: dict[str, str], gpus: bool, expected: bool
) -> None:
    assert may_carry(build, gpus) == expected


@pytest.mark.parametrize(
    ("place", "ways"),
    [
        (Place(1, 8, nccl=True), [("ring", "staged")]),
        (Place(1, 1, nccl=True), [("staged",)]),  # nobody to share a ring with
        (Place(2, 4, nccl=True), [("staged",)]),  # a ring is of GPUs of one host
        (Place(1, 8), []),  # without a GPU
    ],
)
def test_ringtunes_own_ring_is_tried_between_gpus_of_one_host(place: Place, ways: list[tuple[str, ...]]) -> None:
    assert [one.values for one in choices_for(place, given=()) if one.variable == "RINGTUNE_GPU_DATA_PATH"] == ways
    assert "RINGTUNE_GPU_DATA_PATH" not in {
        one.variable for one in choices_for(place, given={"RINGTUNE_GPU_DATA_PATH"})
    }


def test_nccl_has_its_algorithm_protocol_and_channels_tried() -> None:
    assert {"NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS"} < NCCL
    (protocol,) = (one for one in CHOICES if one.variable == "NCCL_PROTO")
    assert "LL128" not in protocol.values  # may corrupt data where NCCL does not choose it itself


def test_a_name_like_no_variables_has_no_nearest() -> None:
    with pytest.raises(UsageError, match=r"there is no variable mode; a variable that the script reads .* in capitals"):
        parse_choice("mode=fast,slow")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("sockets=1", "RINGTUNE_SOCKETS_PER_PEER"),
        ("socket=1,2", "RINGTUNE_SOCKETS_PER_PEER"),
        ("fusion_threshold=1", "RINGTUNE_FUSION_THRESHOLD"),
        ("nccl_algo=Tree", "NCCL_ALGO"),
        ("Overlap=never", "RINGTUNE_OVERLAP"),
        ("RINGTUNE_SOCKETS=4", "RINGTUNE_SOCKETS_PER_PEER"),
        ("hierarchical=0", "RINGTUNE_HIERARCHICAL_ALLREDUCE"),
    ],
)
def test_a_name_that_is_no_variable_is_refused_with_the_nearest(text: str, meant: str) -> None:
    name = text.partition("=")[0]
    with pytest.raises(UsageError, match=f"there is no variable {name}; did you mean {meant}\\?"):
        parse_choice(text)


@pytest.mark.parametrize("name", ["NCCL_P2P_LEVEL", "TORCH_NCCL_BLOCKING_WAIT", "MY_BATCH", "RINGTUNE_CYCLE_TIME"])
def test_names_in_capitals_are_the_scripts_affair(name: str) -> None:
    assert parse_choice(f"{name}=1,2") == Choice(name, ("1", "2"))


def test_what_the_user_sets_is_left_alone_and_what_he_names_comes_first() -> None:
    own = parse_choice("OMP_NUM_THREADS=1, 2,1")
    assert own == Choice("OMP_NUM_THREADS", ("1", "2"))
    assert parse_choice("RINGTUNE_GPU_PLANE=ring").variable == "RINGTUNE_GPU_DATA_PATH"  # a former name
    chosen = choices_for(Place(2, 2), {"RINGTUNE_SOCKETS_PER_PEER"}, [own])
    assert [one.variable for one in chosen] == [
        "OMP_NUM_THREADS", "RINGTUNE_ALGORITHM_TABLE", "RINGTUNE_HIERARCHICAL_ALLREDUCE", "RINGTUNE_OVERLAP",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "NAME", "NAME=", "=1", "A B=1"])
def test_a_choice_has_a_name_and_values(text: str) -> None:
    with pytest.raises(UsageError, match="expected NAME=VALUE"):
        parse_choice(text)


def test_what_the_user_has_set_is_said_not_to_be_tried() -> None:
    pinned = "RINGTUNE_COMPRESSION"
    job = LaunchOptions(command=["true"], num_proc=2, environ={pinned: "bf16", "RINGTUNE_TRANSPORT": "tcp"})
    values = {"horizon": None, "allow_compression": True, "max_trials": None, "budget": None,
              "own": ("OMP_NUM_THREADS=1,2",), "study": None, "apply": "print", "seed": None, "warmup_steps": None,
              "steps_per_trial": None, "run_limit": None, "as_json": False}  # fmt: skip
    choices, said = wishes_of(job, values).choices(Run((), 0.0))
    assert said == (f"{pinned} (set)",)
    assert pinned not in {choice.variable for choice in choices}

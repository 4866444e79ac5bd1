"""What ranks do in the tests of the fast path: calls that repeat themselves, and all that is not quite alike."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

import ringtune.torch as hvd
from ringtune import session
from ringtune.errors import InvalidArgument, Mismatch, RingtuneError
from ringtune.tickets import WAIT_SLICE_NS

Call = Callable[[], Any]


def frames(call: Call) -> list[str]:
    """Return the names of the Python functions of ringtune that a call enters.

    Without those of a wait that was longer than the fast path's: on a loaded machine a peer may come so late.
    """
    entered: list[str] = []
    begin_ns = time.monotonic_ns()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and "ringtune" in frame.f_globals.get("__name__", ""):
            entered.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    if "synchronize" in entered and time.monotonic_ns() - begin_ns >= WAIT_SLICE_NS:
        del entered[entered.index("synchronize") :]
    return entered


def fill(tensor: torch.Tensor, number: int = 0) -> torch.Tensor:
    """Give every rank its own values: rank + 1 + number."""
    with torch.no_grad():
        return tensor.fill_(hvd.rank() + 1 + number)


def total(number: int = 0) -> float:
    """Return the sum of what `fill` gave over all ranks."""
    return sum(rank + 1 + number for rank in range(hvd.size()))


def blocking(tensor: torch.Tensor, name: str, **how: Any) -> torch.Tensor:
    return hvd.allreduce_(tensor, name=name, **how)


def asynchronous(tensor: torch.Tensor, name: str, **how: Any) -> torch.Tensor:
    result: torch.Tensor = hvd.synchronize(hvd.allreduce_async_(tensor, name=name, **how))
    return result


def positional(tensor: torch.Tensor, name: str, **how: Any) -> torch.Tensor:
    return hvd.allreduce_(tensor, None, name, how.get("op"))


def grouped(tensor: torch.Tensor, name: str, **how: Any) -> torch.Tensor:
    result: list[torch.Tensor] = hvd.synchronize(hvd.grouped_allreduce_async_([tensor], name=name, **how))
    return result[0]


FORMS = {"blocking": blocking, "asynchronous": asynchronous, "positional": positional, "grouped": grouped}


def alike(form: str) -> None:
    """Calls that repeat themselves enter no function of ringtune, and return the tensor itself."""
    call = FORMS[form]
    for number in range(30):
        tensor = fill(torch.empty(3, 5), number)  # another tensor, another address, the same shape
        results: list[torch.Tensor] = []
        entered = frames(lambda t=tensor, r=results: r.append(call(t, f"alike.{form}", op=hvd.Sum)))  # type: ignore[misc]
        assert results[0] is tensor
        assert torch.equal(tensor, torch.full((3, 5), total(number))), number
        assert (set(entered) <= {"blocking", "asynchronous", "positional"}) == (number > 0), (number, entered)


def unlike(what: str) -> list[str]:
    """A call that differs from the one before goes the long way, with the right result; return what it entered."""
    known, count = torch.empty(4, 6), hvd.size()
    for _ in range(5):
        hvd.allreduce_(fill(known), name=f"unlike.{what}", op=hvd.Sum)
    make, how, expected = _UNLIKE[what]
    tensor = fill(make())
    entered = frames(lambda: hvd.allreduce_(tensor, name=f"unlike.{what}", **how))
    want = expected(count)
    assert torch.equal(tensor.detach().double(), torch.full(tuple(tensor.shape), want, dtype=torch.float64)), tensor
    # The one before is still right afterwards.
    hvd.allreduce_(fill(known), name=f"unlike.{what}", op=hvd.Sum)
    assert torch.equal(known, torch.full((4, 6), total()))
    return entered


class Subclass(torch.Tensor):
    """A class of tensors of its own."""


def _sum(_: int) -> float:
    return total()


_UNLIKE: dict[str, tuple[Callable[[], torch.Tensor], dict[str, Any], Callable[[int], float]]] = {
    "shape": (lambda: torch.empty(6, 4), {"op": hvd.Sum}, _sum),
    "rank of the shape": (lambda: torch.empty(24), {"op": hvd.Sum}, _sum),
    "dtype": (lambda: torch.empty(4, 6, dtype=torch.float64), {"op": hvd.Sum}, _sum),
    "integers": (lambda: torch.empty(4, 6, dtype=torch.int32), {"op": hvd.Sum}, _sum),
    "transposed": (lambda: torch.empty(6, 4).t(), {"op": hvd.Sum}, _sum),
    "every second column": (lambda: torch.empty(4, 12)[:, ::2], {"op": hvd.Sum}, _sum),
    "subclass": (lambda: torch.empty(4, 6).as_subclass(Subclass), {"op": hvd.Sum}, _sum),
    "op": (lambda: torch.empty(4, 6), {"op": hvd.Max}, float),
    "default op": (lambda: torch.empty(4, 6), {}, lambda n: total() / n),
    "prescale": (lambda: torch.empty(4, 6), {"op": hvd.Sum, "prescale_factor": 2.0}, lambda _: 2 * total()),
    "postscale": (lambda: torch.empty(4, 6), {"op": hvd.Sum, "postscale_factor": 0.5}, lambda _: total() / 2),
    "number of another type": (lambda: torch.empty(4, 6), {"op": hvd.Sum, "prescale_factor": 1}, _sum),
    "scalar": (lambda: torch.empty(()), {"op": hvd.Sum}, _sum),
    "empty": (lambda: torch.empty(0, 6), {"op": hvd.Sum}, _sum),
}
UNLIKE = tuple(_UNLIKE)


def still_alike(what: str) -> list[str]:
    """Calls that only look different take the fast path all the same."""
    for _ in range(5):
        hvd.allreduce_(fill(torch.empty(4)), name=f"still.{what}", op=hvd.Sum, prescale_factor=0.5)
    tensor = torch.nn.Parameter(torch.empty(4)) if what == "parameter" else torch.empty(8)[4:]
    factor = float("0.5")  # the same number, another object
    fill(tensor)
    entered = frames(lambda: hvd.allreduce_(tensor, name=f"still.{what}", op=hvd.Sum, prescale_factor=factor))
    assert tensor.tolist() == [total() / 2] * 4
    return entered


def messages_of(calls: list[Call]) -> list[str]:
    """Return what each call raised, in words."""
    messages = []
    for call in calls:
        try:
            call()
        except Exception as error:
            messages.append(f"{type(error).__name__}: {error}")
        else:
            messages.append("nothing")
    return messages


def refused() -> list[str]:
    """What no call may ask for is refused as by the function behind the fast path; return the messages."""
    tensor = torch.ones(4)
    for _ in range(5):
        hvd.allreduce_(tensor, name="refused", op=hvd.Sum)
    calls: list[Call] = [
        lambda: hvd.allreduce_(tensor, name="refused", op=hvd.Sum, colour=1),
        lambda: hvd.allreduce_(tensor, None, "refused", name="refused"),
        lambda: hvd.allreduce_(name="refused", op=hvd.Sum),
        lambda: hvd.allreduce_(tensor.to_sparse(), name="refused", op=hvd.Sum),
        lambda: hvd.allreduce_(torch.ones(4, device="meta"), name="refused", op=hvd.Sum),
        lambda: hvd.allreduce_(tensor, name="refused", op=99),
        lambda: hvd.synchronize(10**30),
        lambda: hvd.synchronize(5),
        lambda: hvd.synchronize(),
    ]
    messages = messages_of(calls)
    assert hvd.allreduce_(torch.ones(4), name="refused", op=hvd.Sum).tolist() == [hvd.size()] * 4
    return messages


def in_flight_twice() -> list[str]:
    """On rank 0 a name is in flight until the others come: a second submit of it is refused, the first goes on."""
    for _ in range(5):
        hvd.synchronize(hvd.allreduce_async_(torch.ones(4), name="twice", op=hvd.Sum))
    if hvd.rank() != 0:
        hvd.barrier()
    tensor, messages = torch.ones(4), []
    handle = hvd.allreduce_async_(tensor, name="twice", op=hvd.Sum)
    if hvd.rank() == 0:
        for call in (hvd.allreduce_async_, hvd.allreduce_):
            try:
                call(torch.ones(4), name="twice", op=hvd.Sum)
            except InvalidArgument as error:
                messages.append(str(error))
        hvd.barrier()
    assert hvd.synchronize(handle) is tensor
    assert tensor.tolist() == [hvd.size()] * 4
    return messages


def disagree() -> str:
    """In the steady state of a short call one rank asks for something else: all learn, and the job goes on."""
    for _ in range(20):
        hvd.allreduce_(torch.ones(4), name="disagree", op=hvd.Sum)
    try:
        hvd.allreduce_(torch.ones(4), name="disagree", op=hvd.Sum if hvd.rank() else hvd.Max)
    except Mismatch as error:
        message = str(error)
    for _ in range(20):
        assert hvd.allreduce_(torch.ones(4), name="disagree", op=hvd.Sum).tolist() == [hvd.size()] * 4
    return message


def _wait_for(file: str) -> None:
    """Wait for another rank to make a file, but not for ever."""
    until = time.monotonic() + 60
    while not os.path.exists(file) and time.monotonic() < until:
        time.sleep(0.005)


def _interrupt_this_process() -> None:
    while not session.require().open_operations:
        time.sleep(0.005)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


def threads_run_meanwhile(form: str, folder: str) -> int:
    """Rank 0 waits in a short call for the others, who come when another thread of it has run often meanwhile.

    Returns:
        How often that was.
    """
    call = FORMS[form]
    for _ in range(20):
        call(torch.ones(4), f"late.{form}", op=hvd.Sum)
    turns, enough, done = 0, f"{folder}/enough", threading.Event()

    def run() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            if turns == 50 and hvd.rank() == 0:
                open(enough, "x").close()
            time.sleep(0.001)

    thread = threading.Thread(target=run)
    if hvd.rank() != 0:
        _wait_for(enough)
    thread.start()
    before = turns
    call(torch.ones(4), f"late.{form}", op=hvd.Sum)
    found = turns - before
    done.set()
    thread.join()
    return found


def interrupted(form: str, folder: str) -> dict[str, Any]:
    """SIGINT ends the wait of rank 0 in a short call, not the operation: the others' goes on, and so does the job.

    It comes when the operation is under way, and the others come when rank 0 has been interrupted.
    """
    call, noticed = FORMS[form], f"{folder}/noticed"
    for _ in range(20):
        call(torch.ones(4), f"interrupted.{form}", op=hvd.Sum)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tensor, kind, after_s = torch.ones(4), "none", 0.0
    if hvd.rank() == 0:
        sender = threading.Thread(target=_interrupt_this_process)
        begin = time.monotonic()
        try:
            sender.start()
            call(tensor, f"interrupted.{form}", op=hvd.Sum)
        except KeyboardInterrupt:
            kind = "KeyboardInterrupt"
        after_s = time.monotonic() - begin
        sender.join()
        open(noticed, "x").close()
    else:
        _wait_for(noticed)
        call(tensor, f"interrupted.{form}", op=hvd.Sum)
    hvd.barrier()
    for _ in range(20):
        assert call(torch.ones(4), f"interrupted.{form}", op=hvd.Sum).tolist() == [hvd.size()] * 4
    return {"kind": kind, "after_s": after_s, "result": tensor.tolist()}


def counted(folder: str) -> dict[str, Any]:
    """Return what counters say of 50 short calls, and the spans that a timeline of them has."""
    now = session.require()
    tensor = torch.ones(8)
    for _ in range(20):
        hvd.allreduce_(tensor, name="counted", op=hvd.Min)
    hvd.barrier()
    before = now.counters()
    for _ in range(50):
        hvd.allreduce_(tensor, name="counted", op=hvd.Min)
    after = now.counters()
    path = f"{folder}/short-{hvd.rank()}.spans"
    now.start_part(path)
    for _ in range(10):
        hvd.allreduce_(tensor, name="counted", op=hvd.Min)
    now.stop_part()
    changes: dict[str, Any] = {key: after[key] - before[key] for key in after}
    return changes | {"timeline": path}


def again_after_shutdown() -> list[str]:
    """After shutdown nothing of the fast path is left; after init it comes back."""
    found = []
    for _ in range(2):
        for _ in range(5):
            hvd.allreduce_(torch.ones(4), name="again", op=hvd.Sum)
        hvd.shutdown()
        for call in (hvd.allreduce_, hvd.allreduce_async_):
            try:
                call(torch.ones(4), name="again", op=hvd.Sum)
            except RingtuneError as error:
                found.append(type(error).__name__)
        hvd.init()
        assert hvd.allreduce_(torch.ones(4), name="again", op=hvd.Sum).tolist() == [hvd.size()] * 4
    return found


def sets_come_and_go() -> list[str]:
    """A set that was removed is unknown to the fast path; under a new number it works again."""
    found = []
    members = hvd.ProcessSet(range(hvd.size() - 1)) if hvd.size() > 2 else hvd.ProcessSet([0])
    for _ in range(2):
        hvd.add_process_set(members)
        if members.included():
            for _ in range(5):
                tensor = hvd.allreduce_(torch.ones(4), name="set", op=hvd.Sum, process_set=members)
                assert tensor.tolist() == [members.size()] * 4
        hvd.remove_process_set(members)
        other = hvd.ProcessSet([hvd.size() - 1])
        try:
            hvd.allreduce_(torch.ones(4), name="set", op=hvd.Sum, process_set=members)
        except TypeError as error:
            found.append(type(error).__name__)
        hvd.add_process_set(other)  # takes the number
        try:
            hvd.allreduce_(torch.ones(4), name="set", op=hvd.Sum, process_set=members)
        except TypeError as error:
            found.append(type(error).__name__)
        hvd.remove_process_set(other)
    return found


def killed(victim: int, form: str) -> dict[str, Any]:
    """A rank dies among short calls; return how the others learn of it, and how long after their last call."""
    begin = time.monotonic()
    try:
        for number in range(100_000):
            if hvd.rank() == victim and number == 50:
                os.kill(os.getpid(), signal.SIGKILL)
            FORMS[form](torch.ones(4), "killed", op=hvd.Sum)
            begin = time.monotonic()
    except RingtuneError as error:
        return {"kind": type(error).__name__, "after_s": time.monotonic() - begin}
    return {"kind": "none", "after_s": 0.0}


def many_threads(form: str) -> int:
    """Threads repeat calls of their own names at the same time; every sum is checked."""
    wrong: list[Any] = []

    def run(thread: int) -> None:
        for number in range(100):
            tensor = FORMS[form](fill(torch.empty(16), number), f"thread.{thread}", op=hvd.Sum)
            if tensor.tolist() != [total(number)] * 16:
                wrong.append((thread, number, tensor))

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    return len(threads)


def gradients() -> list[list[str]]:
    """Steps of an optimizer; gradients change memory, layout and form between them. Return what the hooks entered."""
    weight, bias = torch.nn.Parameter(torch.zeros(4, 6)), torch.nn.Parameter(torch.zeros(5))
    named = [("short.weight", weight), ("short.bias", bias)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight, bias], lr=1.0), named_parameters=named, op=hvd.Sum)
    entered = []
    for number in range(8):
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        shape = torch.empty(4, 6) if number != 4 else torch.empty(6, 4).t()
        grads = [fill(shape, number), fill(torch.empty(5), number)]
        if number == 4:
            optimizer.zero_grad(set_to_none=True)
            weight.grad = torch.zeros(6, 4).t()
        entered.append(frames(lambda given=grads: torch.autograd.backward([weight, bias], given)))  # type: ignore[misc]
        optimizer.synchronize()
        for param in (weight, bias):
            assert param.grad is not None
            assert torch.equal(param.grad, torch.full(tuple(param.shape), total(number))), (number, param.grad)
    return entered

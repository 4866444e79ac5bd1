"""What ranks do in the tests of RINGTUNE_CHECK and of traced models."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import torch

import ringtune.torch as hvd
from ringtune.errors import Mismatch
from tests.jobs.cases.training import make_network


def spoilt(step_spoilt: int) -> list[str]:
    """Train; rank 1 spoils one gradient after its reduction in one step. Return what each step said."""
    model = make_network()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters())
    said = []
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 20) * (hvd.rank() + 1)).sum().backward()
        if step == step_spoilt and hvd.rank() == 1:
            slot = next(slot for slot in optimizer._reducer.slots if slot.wire.endswith("2.weight"))
            drain = optimizer._reducer.drain

            def spoiling(drain=drain, slot=slot):  # type: ignore[no-untyped-def]
                failure = drain()
                slot.param.grad[0, 0] += 1
                optimizer._reducer.drain = drain
                return failure

            optimizer._reducer.drain = spoiling
        try:
            optimizer.step()
            said.append("")
        except Mismatch as error:
            said.append(str(error))
    return said


def traced(folder: str) -> dict[str, int]:
    """Train three steps with a traced model; return how often each range was recorded."""
    model = make_network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters())
    handle = hvd.trace(model, optimizer)
    hvd.start_timeline(str(Path(folder) / "trace.json"))
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 20)).sum().backward()
        optimizer.step()
    with torch.no_grad():
        model(torch.ones(2, 20))
    handle.remove()
    model(torch.ones(2, 20)).sum().backward()
    optimizer.step()
    hvd.shutdown()
    if not Path(folder, "trace.json").exists():
        return {}
    text = Path(folder, "trace.json").read_text(encoding="utf-8")
    loaded = json.loads(text)
    events = loaded["traceEvents"] if isinstance(loaded, dict) else loaded
    names = Counter(event["name"] for event in events if event.get("ph") in ("X", "B"))
    return {name: names[name] for name in ("forward", "backward", "optimizer")}
